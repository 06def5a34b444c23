"""A report recorded from a real run passes; each way in which training goes wrong is named by a rule of its own."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envbuild.judge import smoke
from envbuild.model import Environment, Severity

Report = dict[str, Any]
GOOD: Report = json.loads((Path(__file__).parent / "data" / "judge" / "zero3.json").read_text())
ENV = Environment.model_validate(
    {
        "name": "cpu",
        "summary": "test",
        "accelerator": "cpu",
        "family": "debian",
        "base": {"image": "docker.io/library/debian:bookworm-slim"},
        "python": "3.11",
        "gcc": {"version": "12.2", "package": "gcc-12"},
        "torch": {"version": "2.13.0", "build": "cpu"},
        "deepspeed": {"version": "0.19.8", "ops": ["cpu_adam", "deepspeed_shm_comm"]},
        "requires": "cpu",
        "sources": {},
    }
)

CUDA = ENV.model_copy(update={"accelerator": "cuda"})


def rules(report: Report, dtype: smoke.Dtype = "fp32", env: Environment = ENV) -> list[str]:
    findings = smoke.judge(env, report, dtype=dtype)
    assert all(finding.severity is Severity.ERROR and finding.message and finding.fix for finding in findings)
    return [finding.rule for finding in findings]


def changed(change: Callable[[Report], None], *, ranks: tuple[int, ...] = (0, 1)) -> Report:
    """The good report with the figures of some ranks changed."""
    report = copy.deepcopy(GOOD)
    for rank in ranks:
        change(report["ranks"][rank]["report"])
    return report


def put(path: str, value: Any) -> Callable[[Report], None]:
    def change(report: Report) -> None:
        *keys, last = path.split(".")
        for key in keys:
            report = report[key]
        if value is DROP:
            del report[last]
        else:
            report[last] = value

    return change


DROP = object()


def both(*changes: Callable[[Report], None]) -> Callable[[Report], None]:
    def change(report: Report) -> None:
        for part in changes:
            part(report)

    return change


def scaled(key: str, factor: float) -> Callable[[Report], None]:
    def change(report: Report) -> None:
        report[key] = [loss * factor for loss in report[key]]

    return change


def test_the_recorded_run_passes() -> None:
    assert rules(GOOD) == []


# What sabotaged DeepSpeeds really printed (see the measurements in judge/training.py), as changes of the good run.
SABOTAGE: dict[str, tuple[Callable[[Report], None], list[str]]] = {
    "gradients doubled": (
        both(put("gradients.relative_error", 1.0), put("gradients.ratio", 2.0), put("gradients.norm", 4.0147)),
        ["smoke.grad.error", "smoke.grad.ratio"],
    ),
    "gradients zero": (
        both(
            put("gradients.relative_error", 1.0),
            put("gradients.ratio", 0.0),
            put("gradients.norm", 0.0),
            put("gradients.zero", 39),
            put("losses", [GOOD["ranks"][0]["report"]["reference_losses"][0]] * 10),
            put("parameters.relative_error", 0.0335),
        ),
        [
            "smoke.grad.error",
            "smoke.grad.ratio",
            "smoke.grad.zero",
            "smoke.loss",
            "smoke.progress",
            "smoke.params",
        ],
    ),
    "one frozen tensor": (put("gradients.zero", 1), ["smoke.grad.zero"]),
    "gradients without a value": (put("gradients.missing", 2), ["smoke.grad.zero"]),
    "not reduced between ranks": (
        both(put("gradients.relative_error", 1.003), put("gradients.ratio", 1.42)),
        ["smoke.grad.error", "smoke.grad.ratio"],
    ),
    "a factor that the error limit lets through": (put("gradients.ratio", 1.011), ["smoke.grad.ratio"]),
    "a factor that is too small": (put("gradients.ratio", 0.98), ["smoke.grad.ratio"]),
    "a tensor nobody looked at": (put("gradients.trainable", 38), ["smoke.grad.zero"]),
    "a device number for an answer": (put("offload.zero_param", 1), ["smoke.offload"]),
    "NaN gradients": (
        both(
            put("gradients.relative_error", "nan"),
            put("gradients.ratio", "nan"),
            put("gradients.norm", "nan"),
            put("gradients.nonfinite", 39),
        ),
        ["smoke.grad.error", "smoke.grad.ratio", "smoke.grad.zero"],
    ),
    "NaN losses": (put("losses", ["nan"] * 10), ["smoke.loss", "smoke.progress"]),
    "losses apart": (scaled("losses", 1.00002), ["smoke.loss"]),
    "one loss too few": (put("losses", [3.0, 2.0, 1.0]), ["smoke.loss"]),
    "plain torch does not learn either": (
        both(put("losses", [3.7] * 10), put("reference_losses", [3.7] * 10)),
        ["smoke.progress"],
    ),
    "parameters apart": (put("parameters.relative_error", 1.1e-3), ["smoke.params"]),
    "parameters NaN": (put("parameters.relative_error", "nan"), ["smoke.params"]),
    "whole parameters on each rank": (put("shards.elements", 942280), ["smoke.shards"]),
    "half of a shard lost": (put("optimizer.master_elements", 200000), ["smoke.shards"]),
    "other precision": (put("shards.dtypes", {"torch.bfloat16": 39}), ["smoke.shards"]),
    "parameters not released": (put("shards.statuses", {"AVAILABLE": 1, "NOT_AVAILABLE": 38}), ["smoke.released"]),
    "parameters whole in spite of their status": (put("shards.largest_unpartitioned", 102560), ["smoke.released"]),
    "shards on the GPU": (put("shards.devices", {"cuda:0": 39}), ["smoke.offload"]),
    "states on the GPU": (put("optimizer.state_devices", {"cpu": 2, "cuda:0": 2}), ["smoke.offload"]),
    "parameters not offloaded": (
        both(put("offload.hooks_param", None), put("offload.zero_param", False)),
        ["smoke.offload"],
    ),
    "optimizer not offloaded": (put("offload.zero_optimizer", False), ["smoke.offload"]),
    "other stage": (put("offload.stage", 2), ["smoke.offload"]),
    "torch's Adam": (
        both(
            put("optimizer.class", "Adam"),
            put("optimizer.module", "torch.optim.adam"),
            put("optimizer.native_calls", {}),
            put("native", None),
        ),
        ["smoke.optimizer"],
    ),
    "an optimizer of that name from elsewhere": (put("optimizer.module", "site_patch"), ["smoke.optimizer"]),
    "the native op is never called": (put("optimizer.native_calls.adam_update", 0), ["smoke.optimizer"]),
    "compiled on first use": (put("jit.extension_files", 7), ["smoke.jit"]),
    "an op from another folder": (put("jit.modules.cpu_adam", "/tmp/extensions/cpu_adam/cpu_adam.so"), ["smoke.jit"]),
    "no op at all": (put("jit.modules", {}), ["smoke.jit"]),
    "another torch": (put("versions.torch", "2.12.1+cpu"), ["smoke.versions"]),
    "another DeepSpeed": (put("versions.deepspeed", "0.19.7"), ["smoke.versions"]),
    "another Python": (put("versions.python", "3.1.1"), ["smoke.versions"]),
    "a CUDA build": (put("versions.torch_cuda", "13.0"), ["smoke.versions"]),
    "another backend": (put("backend", "mpi"), ["smoke.backend"]),
    "an all-reduce that does not reduce": (put("collective.smallest", 1.0), ["smoke.backend"]),
    "no accumulation": (put("accumulation", 1), ["smoke.ranks"]),
    "a rank that failed": (put("error", "RuntimeError: x"), ["smoke.ranks"]),
}


@pytest.mark.parametrize(("change", "expected"), SABOTAGE.values(), ids=SABOTAGE)
def test_each_sabotage_is_named(change: Callable[[Report], None], expected: list[str]) -> None:
    assert rules(changed(change)) == expected


@pytest.mark.parametrize("name", [name for name in SABOTAGE if not name.startswith(("NaN losses", "plain torch"))])
def test_one_bad_rank_is_enough(name: str) -> None:
    change, expected = SABOTAGE[name]
    found = rules(changed(change, ranks=(1,)))
    assert set(expected) <= set(found)


# A figure that is not there must fail by the rule that would have looked at it.
MISSING = {
    "gradients": ["smoke.grad.error", "smoke.grad.ratio", "smoke.grad.zero"],
    "gradients.relative_error": ["smoke.grad.error"],
    "gradients.ratio": ["smoke.grad.ratio"],
    "gradients.norm": ["smoke.grad.ratio"],
    "gradients.reference_norm": ["smoke.grad.ratio"],
    "gradients.trainable": ["smoke.grad.zero"],
    "gradients.nonfinite": ["smoke.grad.zero"],
    "losses": ["smoke.loss", "smoke.progress"],
    "reference_losses": ["smoke.loss", "smoke.progress"],
    "parameters.reference_norm": ["smoke.params"],
    "parameters.missing": ["smoke.params"],
    "shards.elements": ["smoke.shards"],
    "shards.parameter_elements": ["smoke.shards"],
    "shards.statuses": ["smoke.released"],
    "shards.devices": ["smoke.offload"],
    "offload": ["smoke.offload"],
    "optimizer.class": ["smoke.optimizer"],
    "optimizer.native_calls": ["smoke.optimizer"],
    "optimizer.master_devices": ["smoke.offload"],
    "optimizer.state_elements": ["smoke.shards"],
    "native": ["smoke.optimizer"],
    "jit": ["smoke.jit"],
    "jit.mapped_outside": ["smoke.jit"],
    "versions.torch_cuda": ["smoke.versions"],
    "backend": ["smoke.backend"],
    "collective": ["smoke.backend"],
    "accumulation": ["smoke.ranks"],
}


@pytest.mark.parametrize("value", [DROP, None, "nan", math.nan, True], ids=["gone", "null", "text", "nan", "true"])
@pytest.mark.parametrize("path", MISSING)
def test_what_is_missing_or_no_number_fails(path: str, value: Any) -> None:
    expected = [] if (path == "versions.torch_cuda" and value is None) else MISSING[path]
    assert rules(changed(put(path, value))) == expected


def test_a_reason_given_by_the_probe_is_passed_on() -> None:
    report = changed(both(put("gradients", None), put("errors", {"gradients": "AttributeError: no such thing"})))
    assert "AttributeError: no such thing" in smoke.judge(ENV, report, dtype="fp32")[0].message


def test_bf16_has_limits_of_its_own() -> None:
    def bf16(figures: Report) -> None:
        figures["gradients"]["relative_error"] = 7.3e-3
        figures["losses"] = [loss + 8e-4 for loss in figures["losses"]]
        figures["parameters"]["relative_error"] = 6e-4
        figures["shards"]["dtypes"] = {"torch.bfloat16": 39}

    report = changed(bf16)
    report["arguments"]["dtype"] = "bf16"
    assert rules(report, "bf16") == []
    assert "smoke.report" in rules(report, "fp32")
    assert rules(changed(put("gradients.relative_error", 6e-2)), "bf16")[:2] == ["smoke.report", "smoke.grad.error"]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (put("schema", "envbuild.probe.zero3/2"), ["smoke.report"]),
        (put("error", "OSError: no /tmp"), ["smoke.report"]),
        (put("arguments.steps", 3), ["smoke.report", "smoke.loss"]),
        (put("ranks_started", 3), ["smoke.ranks"]),
        (put("arguments.ranks", 4), ["smoke.ranks"]),
        (put("extension_files", 1), ["smoke.jit"]),
        (put("extension_files", None), ["smoke.jit"]),
    ],
)
def test_the_run_itself_is_looked_at(change: Callable[[Report], None], expected: list[str]) -> None:
    report = copy.deepcopy(GOOD)
    change(report)
    assert rules(report) == expected


def test_one_rank_proves_no_communication_on_the_cpu() -> None:
    report = copy.deepcopy(GOOD)
    del report["ranks"][1]
    report["arguments"]["ranks"] = report["ranks_started"] = 1
    assert "smoke.ranks" in rules(report)


def test_a_report_without_ranks_is_no_good_one() -> None:
    assert rules({**GOOD, "ranks": []}) == ["smoke.ranks"]
    assert {"smoke.report", "smoke.ranks"} <= set(rules({}))


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


def _paths(value: Any, prefix: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [(*prefix, key) for key, _ in items] + [path for key, item in items for path in _paths(item, (*prefix, key))]


@given(path=st.sampled_from(_paths(GOOD)), value=_JSON)
@settings(max_examples=300, deadline=None)
def test_nothing_in_a_report_raises(path: tuple[Any, ...], value: Any) -> None:
    report: Any = copy.deepcopy(GOOD)
    place = report
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    smoke.judge(ENV, report, dtype="fp32")


def test_a_cuda_image_on_the_cpu_may_compile_there_and_only_there() -> None:
    """Its prebuilt ops are for the GPU; inspection loads those. On its own accelerator, compiling is a fault."""
    report = changed(put("jit.extension_files", 3))
    assert "smoke.jit" not in rules(report, env=CUDA)
    on_gpu = {**report, "arguments": {**report["arguments"], "accelerator": "cuda"}}
    assert "smoke.jit" in rules(on_gpu, env=CUDA)
