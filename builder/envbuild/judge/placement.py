"""Was it ZeRO-3 with offload at all? Where things were, which code ran, and between whom."""

from __future__ import annotations

from typing import Any

from envbuild.judge.number import count, counts, number, show, tally
from envbuild.judge.outcome import dig
from envbuild.judge.run import BACKENDS, SCHEMA, Check, Problems, Run, told
from envbuild.judge.versions import cuda_of, matches

LEAST_STEPS = 4
# One rank proves no communication; of GPUs a machine may have one only.
LEAST_RANKS = {"cpu": 2, "cuda": 1}
LEAST_ACCUMULATION = 2
_DTYPES = {"fp32": "torch.float32", "bf16": "torch.bfloat16"}
_ADAM = ("DeepSpeedCPUAdam", "deepspeed.ops.adam.")
# What DeepSpeed says of itself: on the CPU accelerator every device is "cpu", and only this shows a missing offload.
_OFFLOAD = {
    "stage": 3,
    "config_param": "cpu",
    "config_optimizer": "cpu",
    "zero_param": True,
    "zero_optimizer": True,
    "hooks_param": "cpu",
}
_PLACES = (("shards", "devices"), ("optimizer", "master_devices"), ("optimizer", "state_devices"))


def _report(run: Run) -> Problems:
    if run.report.get("schema") != SCHEMA:
        yield f"schema {show(run.report.get('schema'))}, not {SCHEMA}"
    if run.report.get("error") is not None:
        yield f"the probe itself failed: {show(run.report['error'])}"
    if not run.accelerator:
        yield f"accelerator: {show(dig(run.report, 'arguments', 'accelerator'))}"
    if dig(run.report, "arguments", "dtype") != run.dtype:
        yield f"{run.dtype} was asked for, the probe ran {show(dig(run.report, 'arguments', 'dtype'))}"
    if run.steps is None or run.steps < LEAST_STEPS:
        yield f"steps: {show(run.steps)}, at least {LEAST_STEPS} are needed"


def _ranks(run: Run) -> Problems:
    asked = count(dig(run.report, "arguments", "ranks"))
    started = count(run.report.get("ranks_started"))
    if asked is None or (asked and asked != started) or len(run.ranks) != started:
        yield f"asked for: {show(asked)}, started: {show(started)}, in the report: {len(run.ranks)}"
    if len(run.ranks) < LEAST_RANKS.get(run.accelerator, 1):
        yield f"{len(run.ranks)} ranks ran, {LEAST_RANKS.get(run.accelerator, 1)} are needed"
    for place, rank in enumerate(run.ranks):
        figures = rank.get("report")
        if rank.get("rank") != place:
            yield f"rank {place} calls itself {show(rank.get('rank'))}"
        if rank.get("exit_code") != 0 or rank.get("signal") is not None or rank.get("phase") != "done":
            end = rank.get("signal_name") or f"exit code {show(rank.get('exit_code'))}"
            yield f"rank {place} ended in phase '{show(rank.get('phase'))}' with {end}"
        if dig(figures, "error") is not None:
            yield f"rank {place} failed: {show(dig(figures, 'error'))}"
        if (count(dig(figures, "accumulation")) or 0) < LEAST_ACCUMULATION:
            yield f"rank {place}: gradient accumulation {told(figures, 'accumulation')}, not {LEAST_ACCUMULATION}"


def _shards(run: Run) -> Problems:
    world = max(1, len(run.ranks))
    for name, figures in run.figures:
        numels = counts(dig(figures, "numels")) or []
        # DeepSpeed pads each parameter to a multiple of the ranks and gives each rank the same share.
        share = sum(-(-size // world) for size in numels)
        if not share or count(dig(figures, "shards", "elements")) != share:
            yield f"{name}: holds {told(figures, 'shards', 'elements')} elements of {sum(numels)}, its share is {share}"
        if count(dig(figures, "shards", "parameter_elements")) != sum(numels):
            yield f"{name}: parameters have {told(figures, 'shards', 'parameter_elements')} elements, not {sum(numels)}"
        for key, part in (("master_elements", None), ("state_elements", "exp_avg"), ("state_elements", "exp_avg_sq")):
            held = dig(figures, "optimizer", key) if part is None else dig(figures, "optimizer", key, part)
            if (count(held) or 0) < max(1, share):
                yield f"{name}: the optimizer's {part or 'fp32 parameters'} have {show(held)} elements, not {share}"
        kinds = tally(dig(figures, "shards", "dtypes"))
        if kinds is None or set(kinds) != {_DTYPES[run.dtype]}:
            yield f"{name}: shards are {told(figures, 'shards', 'dtypes')}, not {_DTYPES[run.dtype]}"


def _released(run: Run) -> Problems:
    for name, figures in run.figures:
        tensors = len(counts(dig(figures, "numels")) or [])
        statuses = tally(dig(figures, "shards", "statuses"))
        if not tensors or statuses != {"NOT_AVAILABLE": tensors}:
            yield f"{name}: {told(figures, 'shards', 'statuses')}, not all {tensors} NOT_AVAILABLE"
        left = count(dig(figures, "shards", "largest_unpartitioned"))
        if left is None or left > 1:
            yield f"{name}: one parameter still holds {told(figures, 'shards', 'largest_unpartitioned')} elements"


def _offload(run: Run) -> Problems:
    for name, figures in run.figures:
        for section, key in _PLACES:
            places = tally(dig(figures, section, key))
            if not places or set(places) != {"cpu"}:
                yield f"{name}: {section} {key}: {told(figures, section, key)}, not all on cpu"
        for key, right in _OFFLOAD.items():
            value = dig(figures, "offload", key)
            if value != right or type(value) is not type(right):
                yield f"{name}: DeepSpeed's {key} is {told(figures, 'offload', key)}, not {right}"


def _optimizer(run: Run) -> Problems:
    for name, figures in run.figures:
        kind, module = dig(figures, "optimizer", "class"), dig(figures, "optimizer", "module")
        if kind != _ADAM[0] or not str(module).startswith(_ADAM[1]):
            yield f"{name}: {show(module)}.{told(figures, 'optimizer', 'class')}, not DeepSpeed's CPU Adam"
        calls = count(dig(figures, "optimizer", "native_calls", "adam_update"))
        if calls is None or calls < max(1, run.steps or 1):
            yield f"{name}: the native op was called {show(calls)} times in {show(run.steps)} steps"
        if not str(dig(figures, "native", "file")).endswith(".so"):
            yield f"{name}: the native op's file is {told(figures, 'native', 'file')}"


def _jit(run: Run) -> Problems:
    if run.accelerator and run.accelerator != run.env.accelerator:
        # DeepSpeed takes a prebuilt op only on the accelerator it was built for (op_builder/builder.py, load), so a
        # cuda image that trains on the CPU compiles its CPUAdam. That its own ops load is seen by inspection.
        return
    if count(run.report.get("extension_files")) != 0:
        yield f"files in the extension folder at the end: {show(run.report.get('extension_files'))}"
    for name, figures in run.figures:
        if count(dig(figures, "jit", "extension_files")) != 0:
            yield f"{name}: files in the extension folder: {told(figures, 'jit', 'extension_files')}"
        outside = dig(figures, "jit", "mapped_outside")
        if outside != []:
            yield f"{name}: libraries mapped from an extension folder: {told(figures, 'jit', 'mapped_outside')}"
        yield from _foreign(name, figures)


def _foreign(name: str, figures: Any) -> Problems:
    package, modules = dig(figures, "jit", "package"), dig(figures, "jit", "modules")
    if not isinstance(package, str) or not isinstance(modules, dict) or not modules:
        yield f"{name}: native op modules: {told(figures, 'jit', 'modules')}"
        return
    for module, file in modules.items():
        if not str(file).startswith(package.rstrip("/") + "/"):
            yield f"{name}: {show(module)} was loaded from {show(file)}, outside {package}"


def _versions(run: Run) -> Problems:
    env = run.env
    expected: dict[str, str | None] = {
        "torch": env.torch_version,
        "deepspeed": env.deepspeed.version,
        "python": env.python,
        "torch_cuda": cuda_of(env.torch.build),
    }
    for name, figures in run.figures:
        versions = dig(figures, "versions")
        for key, right in expected.items():
            value = dig(versions, key)
            known = isinstance(versions, dict) and key in versions
            good = matches(env.python, value) if key == "python" else value == right
            if not known or not good:
                yield f"{name}: {key} is {show(value) if known else 'missing'}, the row says {right or 'none'}"


def _backend(run: Run) -> Problems:
    world = len(run.ranks)
    right = world * (world + 1) / 2
    for name, figures in run.figures:
        backend = dig(figures, "backend")
        if not run.accelerator or backend != BACKENDS[run.accelerator]:
            yield f"{name}: ran over {told(figures, 'backend')}, not {BACKENDS.get(run.accelerator, 'a known backend')}"
        answers = [number(dig(figures, "collective", key)) for key in ("expected", "smallest", "largest")]
        if answers != [right] * 3:
            found = told(figures, "collective", "smallest") + " to " + told(figures, "collective", "largest")
            yield f"{name}: an all-reduce gave {found}, the answer is {right:g}"


CHECKS = (
    Check(
        rule="smoke.report",
        what="the probe's report cannot be judged",
        fix="Run smoke again with the probe of this envbuild.",
        problems=_report,
        source="",
    ),
    Check(
        rule="smoke.ranks",
        what="not every rank trained to the end",
        fix="See the rank's last lines in the report.",
        problems=_ranks,
        source="",
    ),
    Check(
        rule="smoke.versions",
        what="what was imported is not what the row says",
        fix="The image does not hold what the row claims: build it again, or correct the row.",
        problems=_versions,
        source="the row",
    ),
    Check(
        rule="smoke.backend",
        what="the ranks did not talk over the right backend",
        fix="Look at the collective library of the image (`content.nccl`) and at the container's network.",
        problems=_backend,
    ),
    Check(
        rule="smoke.shards",
        what="the parameters are not partitioned as ZeRO-3 does",
        fix="Parameters are not partitioned over the ranks: this is not ZeRO-3.",
        problems=_shards,
    ),
    Check(
        rule="smoke.released",
        what="parameters are still whole after the step",
        fix="Parameters stay whole after the step: memory is not saved.",
        problems=_released,
    ),
    Check(
        rule="smoke.offload",
        what="parameters or optimizer states are not offloaded to the CPU",
        fix="Parameters or optimizer states are not offloaded: this DeepSpeed ignores its configuration.",
        problems=_offload,
    ),
    Check(
        rule="smoke.optimizer",
        what="the optimizer is not DeepSpeed's CPU Adam at work",
        fix="DeepSpeed's CPU Adam must do the steps; a plain optimizer on the CPU is several times slower.",
        problems=_optimizer,
    ),
    Check(
        rule="smoke.jit",
        what="an op did not come from the image",
        fix="An op was compiled on first use: add it to deepspeed.ops of the row, so that it is compiled in the build.",
        problems=_jit,
    ),
)
