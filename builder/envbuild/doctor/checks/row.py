"""A machine against a row of the matrix, or against versions that were said, before anything is pulled or installed."""

from __future__ import annotations

import re
from collections.abc import Iterator

from envbuild.doctor.found import (
    as_row,
    compiler,
    deepspeed_version,
    driver,
    gpu_names,
    has_gpu,
    is_gcc,
    minor,
    older,
    release,
    sources,
    torch_cuda,
    torch_version,
)
from envbuild.doctor.view import Check, View
from envbuild.facts.versions import cuda_of_build, starts_with
from envbuild.matrix.rules import check
from envbuild.matrix.rules.driver import driver_for_row
from envbuild.matrix.rules.gpus import covered, machine_code_for_gpus
from envbuild.model import Environment, Finding, Severity

_LEVELS = ("x86-64", "x86-64-v2", "x86-64-v3", "x86-64-v4")


def look(view: View) -> Iterator[Finding]:
    """Where the machine does not do for the row, where the row contradicts itself, and what is installed otherwise."""
    row = view.row
    if row is None:
        return
    yield from _itself(view, row)
    yield from _processor(view, row)
    yield from _library(view, row)
    yield from _engine(view, row)
    if row.accelerator == "cuda":
        yield from _gpus(view, row)
    yield from _installed(view, row)


def _itself(view: View, row: Environment) -> Iterator[Finding]:
    for each in check(row, view.facts, today=view.today):
        # Where no GPU was said the row has none on purpose: the machine's own are looked at.
        if each.severity is not Severity.ERROR or (not row.gpus and each.subject.partition(": ")[2] == "gpus"):
            continue
        yield Finding(
            rule=f"row.{each.rule}",
            severity=each.severity,
            subject=re.sub(r"^asked: ", "what was asked for: ", each.subject),
            message=each.message,
            fix=each.fix,
            why=f"No machine makes up for that: see envbuild why-not{_asked(row)}",
            source=each.source,
        )


def _asked(row: Environment) -> str:
    cuda = f" --cuda {row.cuda.version}" if row.cuda else ""
    return f" --torch {row.torch_version}{cuda}" if row.name == "asked" else f" {row.name}"


def _processor(view: View, row: Environment) -> Iterator[Finding]:
    cpu = view.collection.machine.cpu
    platforms = {"x86_64": "linux/amd64", "aarch64": "linux/arm64"}
    own = platforms.get(cpu.machine or "")
    if cpu.machine and own not in row.platforms:
        yield _finding(
            "cpu",
            Severity.ERROR,
            cpu.machine,
            f"{row.name} is for {', '.join(row.platforms)}, and this is {cpu.machine}",
            "take a row for this platform",
            "uname -m",
        )
        return
    if view.said is not None:
        return
    known = row.cpu_baseline in _LEVELS and cpu.level in _LEVELS
    if known and _LEVELS.index(cpu.level or "") < _LEVELS.index(row.cpu_baseline):
        yield _finding(
            "cpu",
            Severity.ERROR,
            cpu.model or "CPU",
            f"the ops of {row.name} are compiled for {row.cpu_baseline}, and this CPU is {cpu.level}",
            f"build the row with cpu_baseline: {cpu.level}",
            "x86-64 psABI",
            "The CPU optimizer ends with an illegal instruction (signal 4).",
        )


def _library(view: View, row: Environment) -> Iterator[Finding]:
    machine = view.collection.machine
    platform = {"x86_64": "linux/amd64", "aarch64": "linux/arm64"}.get(machine.cpu.machine or "", row.platforms[0])
    need = view.facts.torch_libraries(row.torch.version, row.torch.build, platform)
    if need is None or not older(machine.glibc, need.glibc):
        return
    yield _finding(
        "glibc",
        Severity.ERROR if machine.container else Severity.WARNING,
        f"glibc {machine.glibc}",
        f"torch {row.torch_version} needs glibc {need.glibc}, and this system has {machine.glibc}"
        + ("" if machine.container else ": an image brings its own, a bare installation would not start"),
        "use the row's image" if not machine.container else "use an image of a newer system",
        sources((need,)),
    )


def _engine(view: View, row: Environment) -> Iterator[Finding]:
    """Whether a container could be started at all; inside of one that is not asked."""
    engines = [tool for tool in view.collection.tools if tool.name in ("docker", "podman")]
    inside = view.collection.machine.container is not None or view.collection.image is not None
    if view.said is None and engines and not inside and not any(tool.path for tool in engines):
        yield _finding(
            "engine",
            Severity.WARNING,
            "docker",
            f"neither docker nor podman is on PATH: the image of {row.name} cannot be started here",
            f"install one of them; or do without containers: envbuild provision {row.name}",
            "PATH",
        )


def _gpus(view: View, row: Environment) -> Iterator[Finding]:
    devices, cuda = view.collection.gpu.devices, cuda_of_build(row.torch.build)
    if not has_gpu(view):
        if view.collection.image is None:
            yield _finding(
                "gpu",
                Severity.ERROR,
                row.name,
                f"{row.name} trains on NVIDIA GPUs, and none is here",
                "examine the machine that is to train, or take a row for the CPU (accelerator: cpu)",
                "NVML, /dev/nvidia*",
            )
        return
    names, version = gpu_names(view), driver(view)
    if version is not None:
        here = row.model_copy(update={"driver": version, "gpus": names or row.gpus})
        for problem in driver_for_row(here, view.facts):
            # What the facts do not know is no fault of the machine.
            if problem.severity is not Severity.INFO and problem.facts:
                yield _finding(
                    "driver",
                    problem.severity,
                    f"driver {version}",
                    problem.message.replace("the row is meant for", "this machine has"),
                    f"update the host's driver; or {problem.fix}".replace(f'driver: "{row.driver}", or ', ""),
                    sources(problem.facts),
                    "torch sees no GPU with an older driver.",
                )
        if view.said is None and older(version, row.driver):
            yield from _meant(view, row, version)
    here = row.model_copy(update={"gpus": names})
    told = [problem for problem in machine_code_for_gpus(here, view.facts) if problem.severity is Severity.ERROR]
    for problem in told:
        yield _finding(
            "gpu",
            Severity.ERROR,
            ", ".join(names),
            problem.message,
            problem.fix.replace("remove the GPU", "another row"),
            sources(problem.facts),
            "The first kernel ends with 'no kernel image is available'.",
        )
    build = view.facts.torch_build(row.torch.version, row.torch.build)
    held = build.architectures.sm if build and build.architectures else ()
    wanted = {view.facts.gpus[name].sm for name in row.gpus if name in view.facts.gpus}
    for device in {minor(each.sm): each for each in devices}.values():
        sm, name = minor(device.sm), device.name or "a GPU"
        runs = not held or covered(sm or "0.0", held)
        if told or sm is None or sm in wanted or (runs and not row.gpus):
            continue
        meant = f"{row.name} is for {', '.join(row.gpus)}, and " if row.gpus else ""
        yield _finding(
            "gpu",
            Severity.WARNING if runs else Severity.ERROR,
            f"GPU {device.index}: {name}",
            f"{meant}this is {name} ({sm})"
            + ("" if runs else f": torch {row.torch_version} (CUDA {cuda}) has no machine code for it"),
            f"let the ops be compiled for {sm} too: add the GPU to the row" if runs else "take a row for this GPU",
            sources((build.architectures,)) if build and build.architectures else "",
        )


def _meant(view: View, row: Environment, version: str) -> Iterator[Finding]:
    floor = view.facts.driver_floor(cuda_of_build(row.torch.build) or "", gpu_names(view) or row.gpus)
    if floor is not None and not older(version, floor.floor):
        yield _finding(
            "driver",
            Severity.WARNING,
            f"driver {version}",
            f"{row.name} is meant for driver {row.driver} or newer, and this machine has {version}",
            "update the host's driver",
            "the row's driver",
        )


def _installed(view: View, row: Environment) -> Iterator[Finding]:
    """An interpreter with torch that was examined beside the row: what it has otherwise."""
    found, tool, torch = as_row(view), compiler(view), torch_version(view)
    if found is None or torch is None:
        return
    nccl = view.collection.torch.nccl if view.collection.torch else None
    cuda, row_cuda = torch_cuda(view), cuda_of_build(row.torch.build)
    gcc = minor(tool.version) if tool and is_gcc(tool) else None
    python = view.collection.interpreter
    pairs = (
        ("torch", release(torch), row.torch.version),
        ("cuda", cuda or "none", row_cuda or "none"),
        ("deepspeed", deepspeed_version(view), row.deepspeed.version),
        ("python", minor(python.version if python else None), row.python),
        ("gcc", gcc.split(".")[0] if gcc else None, row.gcc.version.split(".")[0]),
        ("nccl", release(nccl), row.nccl),
    )
    names = {
        "torch": "torch",
        "cuda": "torch's CUDA",
        "deepspeed": "DeepSpeed",
        "python": "Python",
        "gcc": "GCC",
        "nccl": "NCCL",
    }
    for field, here, there in pairs:
        said = view.said is None or field in view.said
        if here is None or there is None or not said or starts_with(here, there):
            continue
        yield _finding(
            field,
            Severity.WARNING,
            f"{names[field]} {here}",
            f"{names[field]} is {here}, and {row.name} has {there}",
            f"use the row's own environment: envbuild run {row.name}, or envbuild provision {row.name}"
            if row.name != "asked"
            else f"install {names[field]} {there}",
            "the row",
        )


def _finding(
    part: str, severity: Severity, subject: str, message: str, fix: str, source: str, why: str = ""
) -> Finding:
    message = re.sub(r"\basked\b (is for|has|trains|is meant)", r"what was asked for \1", message)
    return Finding(
        rule=f"row.{part}", severity=severity, subject=subject, message=message, fix=fix, source=source, why=why
    )


CHECK = Check(
    name="row",
    title="with --row or versions: the machine does for it, and what is installed is what it says",
    look=look,
)
