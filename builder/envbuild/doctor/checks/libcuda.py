"""The libcuda.so.1 that wins is the one of the kernel's driver, or one that may take its place."""

from __future__ import annotations

import re
from collections.abc import Iterator

from envbuild.doctor.loading import answers
from envbuild.doctor.remedies import trials
from envbuild.doctor.view import Check, View
from envbuild.doctor.wheels import cuda_major
from envbuild.doctor.words import folder
from envbuild.facts.versions import parse
from envbuild.model import Finding, Severity

_NAME = "libcuda.so.1"
_COMPAT = "NVIDIA, CUDA Compatibility (Forward Compatibility)"
_WHY = "no GPU can be used: torch.cuda.is_available() is false, or the first call ends in error"


def _look(view: View) -> Iterator[Finding]:
    gpu = view.collection.gpu
    if cuda_major(view) is None:
        return
    path, why = _winner(view)
    if path is None:
        yield from _missing(view)
        return
    version = gpu.libcuda.get(path) or next(
        (v for p, v in gpu.libcuda.items() if _real(view, p) == _real(view, path)), ""
    )
    named = f"{path} ({version})" if version else path
    if "/stubs" in f"{path} {_real(view, path)}":
        yield Finding(
            rule="libcuda.stub",
            severity=Severity.ERROR,
            subject=path,
            message=f"{named} is loaded as {_NAME}, by {why}: the link stub of a CUDA toolkit, which drives no GPU",
            why=f"{_WHY} 34 (stub library)",
            evidence=_evidence(view, why),
            fix=f"take {folder(path)} out of what the loader searches (LD_LIBRARY_PATH, /etc/ld.so.conf.d): stubs "
            "are for the linker alone",
            command=_without(view, path),
            source="CUDA Runtime API, cudaErrorStubLibrary",
        )
        return
    if not version or not gpu.module or not _numbers(version) or not _numbers(gpu.module) or version == gpu.module:
        return
    compat = "/compat" in f"{path} {_real(view, path)}"
    if compat and parse(version) < parse(gpu.module):
        yield Finding(
            rule="libcuda.compat",
            severity=Severity.ERROR,
            subject=path,
            message=f"{named} is a forward-compatibility library, and wins, by {why}, over that of the newer driver "
            f"{gpu.module}",
            why=f"{_WHY} 803 (unsupported display driver / cuda driver combination): the driver is not too old, the "
            "library is",
            evidence=_evidence(view, why),
            fix="remove the package cuda-compat-* from the image, or its folder from /etc/ld.so.conf.d (then run "
            "ldconfig) and LD_LIBRARY_PATH: a driver this new needs none",
            command=_without(view, path),
            source=f"{_COMPAT}; CUDA Runtime API, cudaErrorSystemDriverMismatch",
        )
    elif not compat and (gpu.nvml is None or gpu.nvml == gpu.module):
        yield Finding(
            rule="libcuda.mismatch",
            severity=Severity.ERROR,
            subject=path,
            message=f"{named} is loaded, by {why}, and the kernel's driver is {gpu.module}",
            why=f"{_WHY} 803: libcuda and the kernel module have to be of one driver",
            evidence=_evidence(view, why),
            fix="remove that copy, or what puts it in front: the driver's own comes with the driver, and into a "
            "container with the container runtime; none belongs into an image",
            command=_without(view, path),
            source="CUDA Runtime API, cudaErrorSystemDriverMismatch",
        )


def _winner(view: View) -> tuple[str | None, str]:
    """What the process really had; else what the loader would take for the bare name."""
    collection = view.collection
    known = answers(collection)
    after = known.what_if(first=(_NAME,))
    choice = after.choice(_NAME)
    torch = collection.torch
    maps = torch.maps if torch is not None else {}
    mapped = next((path for name, path in maps.items() if name.startswith("libcuda.so.")), None)
    if mapped:
        same = choice is not None and choice.path is not None and _real(view, choice.path) == _real(view, mapped)
        return (choice.path if same and choice else mapped), after.why(_NAME) if same else "the process itself"
    if choice is not None and choice.path is not None:
        return choice.path, after.why(_NAME)
    return None, ""


def _without(view: View, path: str) -> str:
    """The line that takes it out of LD_LIBRARY_PATH (or LD_PRELOAD), where that led to it."""
    after = answers(view.collection).what_if(first=(_NAME,))
    for trial in trials(view.collection, after, _NAME):
        found = trial.after.find(_NAME)
        if found is None or found.real != _real(view, path):
            return trial.remedy.command
    return ""


def _missing(view: View) -> Iterator[Finding]:
    machine, gpu = view.collection.machine, view.collection.gpu
    # Without a GPU in sight there is nothing to drive; that a container was started without one is told elsewhere.
    if (
        gpu.libcuda
        or not (gpu.device_files or gpu.module)
        or view.collection.environment.get("DS_ACCELERATOR") == "cpu"
    ):
        return
    inside = machine.container is not None
    yield Finding(
        rule="libcuda.missing",
        severity=Severity.ERROR,
        subject=_NAME,
        message=f"{_NAME} is not there, and the NVIDIA driver {gpu.module or ''} is".replace("  ", " ")
        + (": the container has the devices, and not the driver's libraries" if inside else ""),
        why="no GPU can be used: torch.cuda.is_available() is false",
        evidence=tuple(gpu.device_files[:4]),
        fix="start the container with the NVIDIA runtime, and NVIDIA_DRIVER_CAPABILITIES=compute,utility" if inside
        else "install the driver's user-space libraries, of the version of the kernel module",
        source="NVIDIA Container Toolkit, Driver Capabilities" if inside else "NVIDIA driver installation guide",
    )  # fmt: skip


def _evidence(view: View, why: str) -> tuple[str, ...]:
    gpu = view.collection.gpu
    found = (f"found: {path}: {version or 'of no version'}" for path, version in gpu.libcuda.items())
    return (f"kernel module: {gpu.module or 'unknown'}", f"it won by {why}", *found)


def _real(view: View, path: str) -> str:
    return answers(view.collection).real(path)


def _numbers(version: str) -> bool:
    """Whether it is a driver's version; WSL's libcuda.so.1.1 has none in its name."""
    return re.fullmatch(r"\d{3,}(\.\d+){1,2}", version) is not None


CHECK = Check(
    name="libcuda",
    title="the libcuda that is loaded is the kernel driver's, or a compatibility library that is newer than it",
    look=_look,
    explains=("imports.libcuda", "imports.library", "driver.refused", "loader.stubs", "loader.cuda-path"),
)
