"""The CUDA toolkit that extensions would be compiled with, against torch and the GPUs. A torch wheel brings CUDA's
libraries and not its compiler: that CUDA can be used says nothing about whether an op can be compiled."""

from __future__ import annotations

from collections.abc import Iterator

from envbuild.doctor.checks.imports import reason
from envbuild.doctor.collection import Toolkit
from envbuild.doctor.found import as_row, minor, on_gpu, pending_for, sources, toolkit, torch_cuda
from envbuild.doctor.view import Check, View
from envbuild.matrix.rules.language import deepspeed_for_cuda13
from envbuild.matrix.rules.toolkit import toolkit_is_torchs
from envbuild.model import Finding, Severity

_HEADER = "cuda_runtime.h"
_WHY = "The op is compiled when training first needs it: that is where it would end, after the model was loaded."
_SOURCE = "torch.utils.cpp_extension, _find_cuda_home; DeepSpeed op_builder/builder.py, installed_cuda_version"


def look(view: View) -> Iterator[Finding]:
    """What is wrong with the toolkit, where one is needed; and that there is none, where it is not."""
    cuda = torch_cuda(view)
    if not on_gpu(view) or cuda is None:
        return
    kit, ops = toolkit(view), pending_for(view, "toolkit")
    home = view.collection.environment.get("CUDA_HOME") or view.collection.environment.get("CUDA_PATH")
    if kit is None or not kit.nvcc:
        yield _no_compiler(view, cuda, kit, ops, home)
        return
    yield from _without_headers(view, kit, cuda, ops)
    yield from _another_version(view, kit, cuda, ops)
    yield from _another_gpu(view, kit)


def _no_compiler(view: View, cuda: str, kit: Toolkit | None, ops: tuple[str, ...], home: str | None) -> Finding:
    place = kit.path if kit else home or "CUDA_HOME"
    what = f"{place} has no nvcc" if kit else f"CUDA_HOME={home} is no CUDA toolkit" if home else "there is no nvcc"
    better = _fitting(view, cuda)
    imports = view.collection.deepspeed
    asked = imports is not None and not imports.ok and reason(imports) == "nvcc"
    if not ops and not asked:
        return Finding(
            rule="toolkit.absent",
            severity=Severity.INFO,
            subject=place,
            message=f"CUDA {cuda} can be used, and ops cannot be compiled here ({what}); training needs none",
            fix="nothing to do, unless another op is wanted",
            source=_SOURCE,
        )
    told = f"{', '.join(ops)} {'has' if len(ops) == 1 else 'have'} still to be compiled"
    told = told if ops else "DeepSpeed asks nvcc for its version when it is imported"
    return Finding(
        rule="toolkit.absent",
        severity=Severity.ERROR,
        subject=place,
        message=f"CUDA can be used, and ops cannot be compiled: {told}, and {what}",
        why=_WHY,
        fix=f"set CUDA_HOME to {better.path}"
        if better
        else f"install the CUDA toolkit {cuda} (nvcc with headers) and set CUDA_HOME to it; in a container take the "
        "-devel image in place of -runtime, or compile the ops ahead of time in one",
        command=f"export CUDA_HOME={better.path}" if better and _plain(better.path) else "",
        evidence=(f"torch is built for CUDA {cuda}", *_seen(view)),
        source=_SOURCE,
    )


def _without_headers(view: View, kit: Toolkit, cuda: str, ops: tuple[str, ...]) -> Iterator[Finding]:
    """An nvcc on PATH that lies elsewhere than its toolkit, as a link or a script: torch takes the folder above it."""
    better = _fitting(view, cuda)
    if ops and _HEADER not in kit.headers:
        yield Finding(
            rule="toolkit.headers",
            severity=Severity.ERROR,
            subject=kit.path,
            message=f"torch takes {kit.path} for the CUDA toolkit (found by {kit.found_by or 'torch'}), and it has no "
            f"{_HEADER}, which {', '.join(ops)} includes",
            why=_WHY,
            fix=f"set CUDA_HOME to {better.path}" if better else "set CUDA_HOME to the toolkit's own folder",
            command=f"export CUDA_HOME={better.path}" if better and _plain(better.path) else "",
            evidence=tuple(_seen(view)),
            source=_SOURCE,
        )


def _another_version(view: View, kit: Toolkit, cuda: str, ops: tuple[str, ...]) -> Iterator[Finding]:
    row, better = as_row(view), _fitting(view, cuda)
    if row is None or row.cuda is None or minor(kit.version) is None:
        return
    for problem in toolkit_is_torchs(row, view.facts):
        skipped = problem.severity is Severity.WARNING
        yield Finding(
            rule="toolkit.version",
            severity=Severity.ERROR if ops and not skipped else Severity.WARNING,
            subject=kit.path,
            message=f"the CUDA toolkit is {minor(kit.version)}, torch is built for {cuda}, and DeepSpeed "
            f"{row.deepspeed.version} does not tolerate that pair"
            + ("; DS_SKIP_CUDA_CHECK=1 lets it through, and nothing promises that the op works" if skipped else "")
            + (f" when it compiles {', '.join(ops)}" if ops else "; no op that training needs has to be compiled"),
            why=_WHY if ops else "DeepSpeed compares the two whenever it compiles an op, were it another one.",
            fix=f"set CUDA_HOME to {better.path}"
            if better
            else f"install the toolkit {cuda} beside it and set CUDA_HOME, or a torch built for CUDA "
            f"{minor(kit.version)}",
            command=f"export CUDA_HOME={better.path}" if better and _plain(better.path) else "",
            evidence=(f"found by {kit.found_by or 'torch'}", *_seen(view)),
            source=sources(problem.facts) or _SOURCE,
        )
    for problem in deepspeed_for_cuda13(row, view.facts):
        if pending_for(view, "nvcc"):
            yield Finding(
                rule="toolkit.language", severity=problem.severity, subject=f"DeepSpeed {row.deepspeed.version}",
                message=problem.message, fix=problem.fix, why=_WHY, source=sources(problem.facts),
            )  # fmt: skip


def _another_gpu(view: View, kit: Toolkit) -> Iterator[Finding]:
    version, ops = minor(kit.version), pending_for(view, "nvcc")
    if version is None:
        return
    devices = {minor(device.sm): device.name or "the GPU" for device in view.collection.gpu.devices if device.sm}
    for sm, name in devices.items():
        if sm is None or view.facts.compiles(version, sm) is not False:
            continue
        toolkits = view.facts.toolkits_for(sm)
        yield Finding(
            rule="toolkit.gpu",
            severity=Severity.ERROR if ops else Severity.WARNING,
            subject=kit.path,
            message=f"nvcc of CUDA {version} does not compile for {name} (compute capability {sm})"
            + (f", and {', '.join(ops)} has GPU code to be compiled" if ops else ""),
            why="DeepSpeed may accept the toolkit's version; nvcc still stops at the architecture.",
            fix=f"use a toolkit from {toolkits[0]} to {toolkits[-1]}" if toolkits else "use a newer toolkit",
            source=sources((view.facts.architectures[sm],)),
        )


def _fitting(view: View, cuda: str) -> Toolkit | None:
    """Another toolkit of the machine that is torch's version."""
    whole = (kit for kit in view.collection.toolkits if kit.nvcc and _HEADER in kit.headers)
    return next((kit for kit in whole if minor(kit.version) == cuda), None)


def _seen(view: View) -> Iterator[str]:
    for kit in view.collection.toolkits[:6]:
        yield f"{kit.path}: CUDA {kit.version or '?'}{'' if kit.nvcc else ', without nvcc'} ({kit.found_by or 'found'})"


def _plain(path: str) -> bool:
    """Whether a path can stand in a command line as it is."""
    return all(letter.isalnum() or letter in "/._+-" for letter in path)


CHECK = Check(
    name="toolkit",
    title="the CUDA toolkit is there where an op must be compiled, is torch's version, and knows the GPUs",
    look=look,
    explains=("imports.nvcc",),
)
