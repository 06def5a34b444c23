"""The machine's GPUs against what torch holds code for, and against what the ops would be compiled for."""

from __future__ import annotations

import re
from collections.abc import Iterator

from envbuild.doctor.collection import GpuDevice
from envbuild.doctor.found import deepspeed_version, minor, older, on_gpu, release, sources, torch_cuda, torch_version
from envbuild.doctor.view import Check, View
from envbuild.facts import Fact
from envbuild.facts.versions import parse
from envbuild.matrix.rules.gpus import ARCH_LIST, covered
from envbuild.model import Finding, Severity

_CODE = re.compile(r"(sm|compute)_(\d{2,3})([a-z]?)")


def look(view: View) -> Iterator[Finding]:
    """GPUs that torch has no machine code for, and a TORCH_CUDA_ARCH_LIST that leaves one out."""
    if torch_cuda(view) is None:
        yield from _without_cuda(view)
    if not on_gpu(view) or torch_cuda(view) is None:
        return
    devices = {sm: device for device in view.collection.gpu.devices if (sm := minor(device.sm))}
    held, ptx, facts = _held(view)
    for sm, device in devices.items():
        # sm_90a runs on just that GPU; nothing else of its major does.
        code = [each.rstrip("a") for each in held if not each.endswith("a") or each == f"{sm}a"]
        if held and not covered(sm, code):
            yield _uncovered(view, sm, device, held, ptx, facts)
        yield from _left_out(view, sm, device)


def _without_cuda(view: View) -> Iterator[Finding]:
    """GPUs that a torch without CUDA leaves alone, unless that is what is meant."""
    torch, devices = torch_version(view), view.collection.gpu.devices
    meant = view.collection.environment.get("DS_ACCELERATOR") == "cpu"
    meant = meant or (view.row is not None and view.row.accelerator == "cpu")
    if torch is None or "rocm" in torch or not devices or meant:
        return
    yield Finding(
        rule="gpu-arch.without-cuda",
        severity=Severity.WARNING if view.row is None else Severity.ERROR,
        subject=f"torch {torch}",
        message=f"torch {torch} is built without CUDA, and there are {len(devices)} GPU(s): they are not used",
        why="DeepSpeed takes the CPU without a word. A later pip install may have brought it in place of another.",
        fix="install the torch of the same version that is built for CUDA, from PyTorch's own index",
        source="torch.version.cuda",
    )


def _held(view: View) -> tuple[list[str], list[str], tuple[Fact, ...]]:
    """Machine code and PTX in torch: as it says itself, else as the facts know it."""
    torch = view.collection.torch
    if torch is not None and torch.architectures:
        found = [each for each in map(_CODE.fullmatch, torch.architectures) if each]
        return (
            [_dotted(each[2]) + each[3].replace("f", "") for each in found if each[1] == "sm"],
            [_dotted(each[2]) for each in found if each[1] == "compute"],
            (),
        )
    cuda = (torch_cuda(view) or "").replace(".", "")
    build = view.facts.torch_build(release(torch_version(view)) or "", f"cu{cuda}")
    known = build.architectures if build else None
    return (list(known.sm), [], (known,)) if known else ([], [], ())


def _uncovered(
    view: View, sm: str, device: GpuDevice, code: list[str], ptx: list[str], facts: tuple[Fact, ...]
) -> Finding:
    older_ptx = [each for each in ptx if parse(each) <= parse(sm)]
    stuck = older(view.collection.gpu.cuda, torch_cuda(view))
    name, version = device.name or "the GPU", torch_version(view)
    fitting = [
        f"{release_}+{name_}"
        for release_, known in view.facts.versions.items()
        for name_, build in known.builds.items()
        if build.architectures and covered(sm, build.architectures.sm)
    ]
    told = f"torch {version} holds machine code for {', '.join(code)}, and none of it runs on {name} ({sm})"
    if older_ptx:
        told += f"; its PTX for {older_ptx[-1]} would be compiled by the driver" + (
            f", which is for CUDA {minor(view.collection.gpu.cuda)} and cannot" if stuck else " when it is loaded"
        )
    return Finding(
        rule="gpu-arch.torch",
        severity=Severity.WARNING if older_ptx and not stuck else Severity.ERROR,
        subject=f"GPU {device.index}: {name}",
        message=told,
        why="The first kernel ends with 'no kernel image is available for execution on the device'.",
        fix=f"use a torch with code for {sm}: {', '.join(fitting[-3:])}" if fitting else f"use a torch built for {sm}",
        source=sources(facts) or "torch.cuda.get_arch_list()",
    )


def _left_out(view: View, sm: str, device: GpuDevice) -> Iterator[Finding]:
    said = view.collection.environment.get(ARCH_LIST)
    if said is None or not said.strip() or deepspeed_version(view) is None:
        return
    listed = [part for part in re.split(r"[;,\s]+", said.strip()) if part]
    exact = [found[0] for part in listed if (found := re.match(r"\d+\.\d+", part))]
    ptx = [found[0] for part in listed if part.endswith("+PTX") and (found := re.match(r"\d+\.\d+", part))]
    named = [part for part in listed if not part[:1].isdigit()]
    if named or covered(sm, exact) or any(parse(each) <= parse(sm) for each in ptx):
        return
    yield Finding(
        rule="gpu-arch.list",
        severity=Severity.WARNING,
        subject=ARCH_LIST,
        message=f"{ARCH_LIST}={said!r} leaves out {device.name or 'the GPU'} ({sm}): what is compiled ahead of time "
        "under it would not run on it",
        why="It is compiled and loaded without a word; its first kernel ends the training. (The JIT of older DeepSpeed "
        "looks at the visible GPUs instead.)",
        fix=f"add {sm}, or unset it: the visible GPUs decide then",
        command="unset TORCH_CUDA_ARCH_LIST",
        source="torch.utils.cpp_extension; DeepSpeed op_builder/builder.py, compute_capability_args",
    )


def _dotted(digits: str) -> str:
    return f"{digits[:-1]}.{digits[-1]}"


CHECK = Check(
    name="gpu-arch",
    title="torch holds machine code for every GPU, and the ops would be compiled for it",
    look=look,
)
