"""A report recorded from a real run passes; each way in which training goes wrong is named by a rule of its own."""

from __future__ import annotations

import copy
import dataclasses
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envbuild.judge import smoke
from envbuild.judge.placement import compiling
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
SEED = GOOD["arguments"]["seed"]
EXPECTED = smoke.Expected.of(ENV, seed=SEED, accelerator="cpu", nvme=True)
# What belongs to a pass; everything else belongs to the rank.
OF_PASS = frozenset(GOOD["ranks"][0]["report"]["passes"]["fp32"]) | {"errors"}


def rules(report: Report, expected: smoke.Expected = EXPECTED) -> list[str]:
    findings = smoke.judge(expected, report)
    assert all(finding.severity is Severity.ERROR and finding.message and finding.fix for finding in findings)
    return [finding.rule for finding in findings]


def changed(change: Callable[[Report], None], *, ranks: tuple[int, ...] = (0, 1)) -> Report:
    """The good report with the figures of some ranks changed; a figure of a pass is one of the first pass."""
    report = copy.deepcopy(GOOD)
    for rank in ranks:
        change(report["ranks"][rank]["report"])
    return report


def put(path: str, value: Any) -> Callable[[Report], None]:
    def change(report: Report) -> None:
        *keys, last = path.split(".")
        if (keys or [last])[0] in OF_PASS and "passes" in report:
            report = report["passes"]["fp32"]
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
        figures = report["passes"]["fp32"]
        figures[key] = [loss * factor for loss in figures[key]]

    return change


def test_the_recorded_run_passes() -> None:
    assert rules(GOOD) == []


COMPILER = ["smoke.compiler"]
# What sabotaged DeepSpeeds really printed (see the measurements in judge/training.py), as changes of the good run.
SABOTAGE: dict[str, tuple[Callable[[Report], None], list[str]]] = {
    "gradients doubled": (
        both(put("gradients.relative_error", 1.0), put("gradients.ratio", 2.0), put("gradients.norm", 4.0147)),
        ["smoke.grad.ratio", "smoke.grad.error"],
    ),
    "gradients zero": (
        both(
            put("gradients.relative_error", 1.0),
            put("gradients.ratio", 0.0),
            put("gradients.norm", 0.0),
            put("gradients.zero", 39),
            put("unreduced", {way: {"error": None, "scale": 0.0} for way in ("own", "pieces")}),
            put("losses", [GOOD["ranks"][0]["report"]["passes"]["fp32"]["reference_losses"][0]] * 10),
            put("parameters.relative_error", 0.0335),
        ),
        [
            "smoke.grad.zero",
            "smoke.grad.ratio",
            "smoke.grad.error",
            "smoke.loss",
            "smoke.progress",
            "smoke.params",
        ],
    ),
    "one frozen tensor": (put("gradients.zero", 1), ["smoke.grad.zero"]),
    "gradients without a value": (put("gradients.missing", 2), ["smoke.grad.zero"]),
    "not reduced between ranks": (
        both(
            put("gradients.relative_error", 1.003),
            put("gradients.ratio", 1.42),
            put("unreduced.pieces", {"error": 2.4e-7, "scale": 1.0}),
        ),
        ["smoke.grad.reduce", "smoke.grad.ratio", "smoke.grad.error"],
    ),
    "not reduced, and averaged all the same": (
        both(
            put("gradients.relative_error", 0.7),
            put("gradients.ratio", 0.71),
            put("unreduced.own", {"error": 2.4e-7, "scale": 0.5}),
        ),
        ["smoke.grad.reduce", "smoke.grad.ratio", "smoke.grad.error"],
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
        ["smoke.grad.zero", "smoke.grad.ratio", "smoke.grad.error"],
    ),
    "NaN losses": (put("losses", ["nan"] * 10), ["smoke.loss.nan"]),
    "a loss that overflows late": (put("losses", [3.0] * 9 + ["inf"]), ["smoke.loss.nan"]),
    "plain torch has no number either": (put("reference_losses", ["nan"] * 10), ["smoke.loss.nan"]),
    "figures of another run": (put("seed", 1), ["smoke.seed"]),
    "weights that no seed changes": (
        both(
            put("checkpoint.blank_loss", GOOD["ranks"][0]["report"]["passes"]["fp32"]["losses"][0]),
            put("passes.fp32.losses", GOOD["ranks"][0]["report"]["passes"]["fp32"]["losses"]),
            put("passes.fp32.reference_losses", GOOD["ranks"][0]["report"]["passes"]["fp32"]["losses"]),
        ),
        ["smoke.seed"],
    ),
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
    "an all-reduce that does not reduce": (put("collective.smallest", 1.0), ["smoke.collective"]),
    "no accumulation": (put("accumulation", 1), ["smoke.accumulation"]),
    "a rank that failed": (put("error", "RuntimeError: x"), ["smoke.ranks"]),
    "a checkpoint that is not loaded": (
        both(
            put("checkpoint.loaded.path", False),
            put("checkpoint.loaded.client_step", None),
            put("checkpoint.loaded.global_steps", 0),
            put("checkpoint.loaded.parameter_error", 0.04),
        ),
        ["smoke.checkpoint"],
    ),
    "loading that says it did and did nothing": (
        put("checkpoint.losses_again", [GOOD["ranks"][0]["report"]["checkpoint"]["blank_loss"], 3.5, 3.3]),
        ["smoke.checkpoint"],
    ),
    "moments that are not in the checkpoint": (put("checkpoint.loaded.moment_error", 1.0), ["smoke.checkpoint"]),
    "an optimizer that counts from 0 again": (put("checkpoint.loaded.optimizer_steps", [0]), ["smoke.checkpoint"]),
    "parameters that went on otherwise": (put("checkpoint.parameter_error", 1e-5), ["smoke.checkpoint"]),
    "weights that cannot show whether they were loaded": (
        put("checkpoint.blank_loss", GOOD["ranks"][0]["report"]["checkpoint"]["losses"][0]),
        ["smoke.checkpoint"],
    ),
    "bf16 that was not run": (put("passes.bf16", None), ["smoke.bf16"]),
    "bf16 gradients doubled": (put("passes.bf16.gradients.ratio", 2.0), ["smoke.grad.ratio"]),
    "a NaN on disk": (put("passes.nvme.losses", ["nan"] * 5), ["smoke.loss.nan"]),
    "nothing on disk": (put("passes.nvme.swapped.files", 0), ["smoke.nvme"]),
    "empty files on disk": (put("passes.nvme.swapped.bytes", 4096), ["smoke.nvme"]),
    "another swapper": (put("passes.nvme.swapped.config_optimizer", "cpu"), ["smoke.nvme"]),
    "losses apart with states on disk": (put("passes.nvme.losses", [3.8, 3.7, 3.6, 3.5, 3.4]), ["smoke.nvme"]),
    "no pass on disk": (put("passes.nvme", None), ["smoke.nvme"]),
    "a compiler": (put("programs.started", [{"argv": ["g++", "-c", "x.cpp"], "program": "/usr/bin/g++"}]), COMPILER),
    "ninja": (put("programs.started", [{"argv": ["ninja", "-v"], "program": "ninja"}]), COMPILER),
    "a compiler in a shell": (
        put("programs.started", [{"argv": ["/bin/sh", "-c", "cd /tmp && nvcc -c a.cu"], "program": "/bin/sh"}]),
        COMPILER,
    ),
    "programs that nobody counted": (put("programs", None), COMPILER),
}


@pytest.mark.parametrize(("change", "expected"), SABOTAGE.values(), ids=SABOTAGE)
def test_each_sabotage_is_named(change: Callable[[Report], None], expected: list[str]) -> None:
    assert rules(changed(change)) == expected


# Losses are compared as the mean over ranks, and one bad one spoils it for all.
ONLY_TOGETHER = (
    "plain torch does not learn either",
    "weights that no seed changes",
    "weights that cannot show whether they were loaded",
)


@pytest.mark.parametrize("name", [name for name in SABOTAGE if name not in ONLY_TOGETHER])
def test_one_bad_rank_is_enough(name: str) -> None:
    change, expected = SABOTAGE[name]
    found = rules(changed(change, ranks=(1,)))
    assert set(expected) <= set(found)


# A figure that is not there must fail by the rule that would have looked at it.
MISSING = {
    "gradients": ["smoke.grad.zero", "smoke.grad.ratio", "smoke.grad.error"],
    "unreduced": ["smoke.grad.reduce"],
    "unreduced.pieces.error": ["smoke.grad.reduce"],
    "seed": ["smoke.seed"],
    "checkpoint": ["smoke.checkpoint"],
    "checkpoint.saved.bytes": ["smoke.checkpoint"],
    "checkpoint.step": ["smoke.checkpoint"],
    "checkpoint.losses": ["smoke.checkpoint"],
    "checkpoint.losses_again": ["smoke.checkpoint"],
    "checkpoint.moved": ["smoke.checkpoint"],
    "checkpoint.loaded.moment_error": ["smoke.checkpoint"],
    "bf16": ["smoke.bf16"],
    "passes.nvme.swapped": ["smoke.nvme"],
    "passes.nvme.swapped_bytes": ["smoke.nvme"],
    "programs.count": ["smoke.compiler"],
    "programs.started": ["smoke.compiler"],
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
    "collective": ["smoke.collective"],
    "accumulation": ["smoke.accumulation"],
}


@pytest.mark.parametrize("value", [DROP, None, "nan", math.nan, True], ids=["gone", "null", "text", "nan", "true"])
@pytest.mark.parametrize("path", MISSING)
def test_what_is_missing_or_no_number_fails(path: str, value: Any) -> None:
    expected = [] if (path == "versions.torch_cuda" and value is None) else MISSING[path]
    assert rules(changed(put(path, value))) == expected


def test_a_reason_given_by_the_probe_is_passed_on() -> None:
    report = changed(both(put("gradients", None), put("errors", {"gradients": "AttributeError: no such thing"})))
    assert "AttributeError: no such thing" in smoke.judge(EXPECTED, report)[0].message


def test_bf16_has_limits_of_its_own() -> None:
    def looser(figures: Report) -> None:
        figures["gradients"]["relative_error"] = 7.3e-3
        figures["losses"] = [loss + 8e-4 for loss in figures["losses"]]
        figures["parameters"]["relative_error"] = 6e-4

    assert rules(changed(lambda figures: looser(figures["passes"]["bf16"]))) == []
    assert "smoke.loss" in rules(changed(lambda figures: looser(figures["passes"]["fp32"])))
    report = changed(put("passes.bf16.gradients.relative_error", 6e-2))
    (finding,) = smoke.judge(EXPECTED, report)
    assert finding.rule == "smoke.grad.error" and "bf16 pass, rank 0" in finding.message


def test_a_device_without_bf16_is_no_fault_and_a_gpu_that_has_it_is() -> None:
    without = both(put("bf16", {"supported": False, "here": False, "reason": "x"}), put("passes.bf16", None))
    assert rules(changed(without)) == []
    report = changed(both(without, put("device", {**GPU, "capability": [9, 0]})))
    assert "smoke.bf16" in rules(report)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (put("schema", "envbuild.probe.zero3/1"), ["smoke.report"]),
        (put("error", "OSError: no /tmp"), ["smoke.report"]),
        (put("arguments.accelerator", "cuda"), None),
        (put("arguments.steps", 3), ["smoke.report", "smoke.loss"]),
        (put("ranks_started", 3), ["smoke.ranks"]),
        (put("arguments.ranks", 4), ["smoke.ranks"]),
        (put("arguments.seed", SEED + 1), ["smoke.seed"]),
        (put("extension_files", 1), ["smoke.jit"]),
        (put("extension_files", None), ["smoke.jit"]),
        (put("extensions_writable", True), ["smoke.jit"]),
        (put("surroundings.nvme.direct", False), ["smoke.nvme"]),
        (put("surroundings.nvme", None), ["smoke.nvme"]),
    ],
)
def test_the_run_itself_is_looked_at(change: Callable[[Report], None], expected: list[str] | None) -> None:
    report = copy.deepcopy(GOOD)
    change(report)
    if expected is None:
        assert "smoke.report" in rules(report)
    else:
        assert rules(report) == expected


def test_figures_of_another_run_do_not_fit() -> None:
    """The same good document, of a run that was given another seed."""
    other = dataclasses.replace(EXPECTED, seed=SEED + 1)
    assert rules(GOOD, other) == ["smoke.seed"]


def test_one_rank_proves_no_communication_on_the_cpu() -> None:
    report = copy.deepcopy(GOOD)
    del report["ranks"][1]
    report["arguments"]["ranks"] = report["ranks_started"] = 1
    assert "smoke.ranks" in rules(report)


def test_a_report_without_ranks_is_no_good_one() -> None:
    assert "smoke.ranks" in rules({**GOOD, "ranks": []})
    assert {"smoke.report", "smoke.ranks"} <= set(rules({}))


# --- programs ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "counts"),
    [
        (["gcc", "-c", "x.c"], True),
        (["/usr/bin/x86_64-linux-gnu-g++-12", "-shared", "x.o"], True),
        (["/usr/local/cuda/bin/nvcc", "x.cu"], True),
        (["/bin/bash", "-c", "exec ninja -j2"], True),
        (["gcc", "--version"], False),
        (["which", "g++"], False),
        (["uname", "-p"], False),
        (["/opt/venv/bin/python", "cpuinfo.py", "--json"], False),
        (["gcc-12", "-O2", "-c", "/tmp/tmp54iez_q5/test.c", "-o", "/tmp/tmp54iez_q5/tmp/tmp54iez_q5/test.o"], False),
        (["gcc-12", "/tmp/tmp54iez_q5/test.o", "-laio", "-o", "/tmp/tmp54iez_q5/a.out"], False),
        (["gcc-12", "-c", "/tmp/extensions/test.c"], True),
    ],
)
def test_what_counts_as_compiling(argv: list[str], counts: bool) -> None:
    found = compiling([{"how": "subprocess.Popen", "argv": argv, "program": argv[0]}])
    assert found is not None and bool(found) is counts


# --- other expectations -----------------------------------------------------------------------------------------------

GPU = {
    "name": "NVIDIA H200",
    "uuid": "GPU-11111111-2222-3333-4444-555555555555",
    "capability": [9, 0],
    "memory_bytes": 150_000_000_000,
    "driver_cuda": 13000,
    "nccl": "2.28.9",
}
GPUS = smoke.Gpus(uuids=(str(GPU["uuid"]),), names=("H200",), capabilities=("9.0",))


def on_gpu(**device: Any) -> Report:
    """As a run on one GPU would look; nobody has recorded one yet."""
    report = copy.deepcopy(GOOD)
    report["arguments"].update(accelerator="cuda", ranks=0)
    report["ranks_started"] = 1
    del report["ranks"][1]
    figures = report["ranks"][0]["report"]
    figures.update(device={**GPU, **device}, backend="nccl")
    figures["collective"] = {"expected": 1.0, "smallest": 1.0, "largest": 1.0}
    return report


@pytest.mark.parametrize(
    ("device", "bad"),
    [
        ({}, False),
        ({"uuid": "11111111-2222-3333-4444-555555555555"}, False),
        ({"name": "NVIDIA A100-SXM4-80GB", "capability": [8, 0]}, True),
        ({"capability": [8, 0]}, True),
        ({"name": None}, True),
        ({"uuid": "GPU-99999999-2222-3333-4444-555555555555"}, True),
        ({"memory_bytes": 0}, True),
        ({"driver_cuda": None}, True),
    ],
)
def test_the_gpu_is_one_that_the_row_names(device: dict[str, Any], bad: bool) -> None:
    expected = dataclasses.replace(EXPECTED, accelerator="cuda", gpus=GPUS)
    assert ("smoke.device" in rules(on_gpu(**device), expected)) is bad


def test_two_ranks_on_one_gpu_are_no_two_gpus() -> None:
    report = on_gpu()
    report["ranks"].append({**copy.deepcopy(report["ranks"][0]), "rank": 1})
    report["ranks_started"] = 2
    expected = dataclasses.replace(EXPECTED, accelerator="cuda")
    assert "smoke.device" in rules(report, expected)


def test_a_cuda_image_on_the_cpu_may_compile_there_and_only_there() -> None:
    """Its prebuilt ops are for the GPU; inspection loads those. On its own accelerator, compiling is a fault."""
    report = changed(both(put("jit.extension_files", 3), put("programs.started", [{"argv": ["ninja"]}])))
    there = smoke.Expected.of(CUDA, seed=SEED, accelerator="cpu", nvme=True)
    assert not {"smoke.jit", "smoke.compiler"} & set(rules(report, there))
    on_its_own = smoke.Expected.of(CUDA, seed=SEED, accelerator="cuda", nvme=True)
    assert {"smoke.jit", "smoke.compiler"} <= set(rules(report, on_its_own))


def test_a_host_claims_no_version_and_may_compile() -> None:
    report = changed(both(put("versions.torch", "2.4.0"), put("jit.extension_files", 3)))
    host = smoke.Expected.host(seed=SEED, accelerator="cpu")
    assert rules(report, host) == []
    assert "smoke.grad.ratio" in rules(changed(put("gradients.ratio", 2.0)), host)


# --- minutes ----------------------------------------------------------------------------------------------------------

LONG = dataclasses.replace(EXPECTED, seconds=60.0)
MIB = 1024 * 1024


def samples(loss: Callable[[int], float], rss: Callable[[int], float]) -> list[dict[str, Any]]:
    return [
        {"half": step // 40, "step": step, "seconds": step, "loss": loss(step), "rss_bytes": int(rss(step)),
         "gpu_bytes": None}
        for step in range(80)
    ]  # fmt: skip


def long(**more: Any) -> Report:
    kept = {"seconds": 61.0, "steps": 80, "checkpoint": GOOD["ranks"][0]["report"]["checkpoint"]}
    kept["samples"] = samples(lambda step: 3.6 - step / 40, lambda step: (720 + 40 * (step // 40)) * MIB)
    return changed(put("long", {**kept, **more}))


def test_minutes_of_good_training_pass_and_are_asked_for() -> None:
    assert rules(long(), LONG) == []
    assert rules(GOOD, LONG) == ["smoke.long", "smoke.long.loss", "smoke.long.memory", "smoke.long.checkpoint"]


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({"seconds": 30.0}, ["smoke.long"]),
        ({"samples": samples(lambda step: 3.6, lambda step: 720 * MIB)}, ["smoke.long.loss"]),
        ({"samples": samples(lambda step: 3.6 - step / 40, lambda step: (720 + step) * MIB)}, ["smoke.long.memory"]),
        ({"checkpoint": {}}, ["smoke.long.checkpoint"]),
    ],
)
def test_each_fault_of_minutes_is_named(more: dict[str, Any], expected: list[str]) -> None:
    assert rules(long(**more), LONG) == expected


# --- anything at all --------------------------------------------------------------------------------------------------

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
    smoke.judge(LONG, report)
