"""Was it ZeRO-3 with offload at all? Where things were, and which code ran."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import PurePosixPath
from typing import Any

from envbuild.judge.number import count, counts, show, tally
from envbuild.judge.outcome import dig
from envbuild.judge.run import Check, Problems, Run, told

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
    if run.expected.jit:
        return
    # The folder belongs to the probe's user and is closed to writing; only root writes to it all the same.
    uid = count(dig(run.report, "surroundings", "uid"))
    if run.report.get("extensions_writable") is not False and uid != 0:
        yield f"the extension folder was not closed: {show(run.report.get('extensions_writable'))}"
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


def compiling(started: Any) -> list[str] | None:
    """Of the programs that a rank started, those that compile or link; None where the list is none.

    Not counted: asking a compiler for its version, and DeepSpeed's own question whether libaio is there, for which it
    compiles and links a two-line ``test.c`` in a temporary folder (op_builder/builder.py, has_function). It asks at
    every start, prebuilt ops or not (deepspeed/ops/__init__.py, __compatible_ops__).
    """
    if not isinstance(started, list):
        return None
    found = []
    for item in started:
        argv = dig(item, "argv")
        words = [str(word) for word in argv] if isinstance(argv, list) else []
        program = dig(item, "program") or (words[0] if words else "")
        names = [str(program), *(words if _SHELL.fullmatch(PurePosixPath(str(program)).name) else words[:1])]
        tools = [name for text in names for name in map(_tool, text.split()) if name]
        # `ninja -v` is no question: so it builds, and says what.
        asks = (
            words[1:]
            and all(word in _QUESTIONS for word in words[1:])
            and (tools[:1] != ["ninja"] or "-v" not in words)
        )
        if tools and not asks and not any(_TEST.search(word) for word in words):
            found.append(" ".join(words)[:160] or str(program))
    return found


_SHELL = re.compile(r"(ba|da|z)?sh|env")
_TOOL = re.compile(
    r"(.*-)?(cc|c\+\+|gcc|g\+\+|clang|clang\+\+|cc1|cc1plus|icc|icpc|icx|icpx|nvcc|cicc|ptxas|fatbinary|hipcc|ninja"
    r"|make|cmake|ld|lld|as|ar|collect2)(-[0-9.]+)?"
)
_QUESTIONS = frozenset({"-V", "-v", "--version", "-dumpversion", "-dumpfullversion", "-dumpmachine"})
_TEST = re.compile(r"^/\S*/tmp[a-z0-9_]+/(\S*/)?test\.[co]$")


def _tool(text: str) -> str:
    name = PurePosixPath(text.strip("'\"")).name
    return name if _TOOL.fullmatch(name) else ""


def _compiler(run: Run) -> Problems:
    if run.expected.jit:
        return
    for name, figures in run.figures:
        started = compiling(dig(figures, "programs", "started"))
        total = count(dig(figures, "programs", "count"))
        if started is None or total is None:
            yield f"{name}: the programs that it started: {told(figures, 'programs', 'started')}"
        for program in _few(started or ()):
            yield f"{name}: started {show(program)}"


def _few(items: Iterable[str]) -> list[str]:
    kept = list(items)
    return kept if len(kept) <= 3 else [*kept[:3], f"{len(kept) - 3} more"]


_PASSES = ("fp32", "bf16")

CHECKS = (
    Check(
        rule="smoke.shards",
        what="the parameters are not partitioned as ZeRO-3 does",
        fix="Parameters are not partitioned over the ranks: this is not ZeRO-3.",
        problems=_shards,
        passes=_PASSES,
    ),
    Check(
        rule="smoke.released",
        what="parameters are still whole after the step",
        fix="Parameters stay whole after the step: memory is not saved.",
        problems=_released,
        passes=_PASSES,
    ),
    Check(
        rule="smoke.offload",
        what="parameters or optimizer states are not offloaded to the CPU",
        fix="Parameters or optimizer states are not offloaded: this DeepSpeed ignores its configuration.",
        problems=_offload,
        passes=_PASSES,
    ),
    Check(
        rule="smoke.optimizer",
        what="the optimizer is not DeepSpeed's CPU Adam at work",
        fix="DeepSpeed's CPU Adam must do the steps; a plain optimizer on the CPU is several times slower.",
        problems=_optimizer,
        passes=_PASSES,
    ),
    Check(
        rule="smoke.jit",
        what="an op did not come from the image",
        fix="An op was compiled on first use: add it to deepspeed.ops of the row, so that it is compiled in the build.",
        problems=_jit,
    ),
    Check(
        rule="smoke.compiler",
        what="a compiler was at work during training",
        fix="Something is compiled at run time: an op that is not prebuilt, or code of a patch. See the programs in "
        "the report.",
        problems=_compiler,
    ),
)
