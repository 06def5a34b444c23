"""The NCCL that is loaded is the one that this torch was built with."""

from __future__ import annotations

import re
from collections.abc import Iterator

from envbuild.doctor.found import torch_version
from envbuild.doctor.loading import Answers, answers
from envbuild.doctor.remedies import trials
from envbuild.doctor.view import Check, View, normalised
from envbuild.doctor.wheels import cuda_major, in_wheels, nccl_wanted, wheel_files
from envbuild.doctor.words import conda_prefix, listed, told
from envbuild.elf import Loaded
from envbuild.facts.versions import parse, starts_with
from envbuild.model import Finding, Severity

_NAME = "libnccl.so.2"
_INSTALL = "pip install --no-deps --force-reinstall"
_WHEEL = re.compile(r"nvidia-nccl-cu(\d+)")
_WHY = (
    "the ranks meet over NCCL: another one ends the import with 'undefined symbol', or the first collective in a hang"
)
_SOURCE = "glibc's elf/dl-load.c; the dynamic symbols of the files"


def _look(view: View) -> Iterator[Finding]:
    known = answers(view.collection)
    wheels = _wheels(view)
    if len(wheels) > 1:
        yield _two(view, wheels)
    loaded = known.provider(_NAME)
    lacking = view.collection.libraries.lacks.get(loaded.real, ()) if loaded is not None else ()
    elsewhere = loaded is not None and not in_wheels(loaded.real) and _NAME in wheel_files(view)
    if loaded is not None and (lacking or elsewhere):
        yield _other(view, known, loaded, lacking)
    elif len(wheels) < 2:
        yield from _version(view, wheels)
    yield from _said(view, lacking)


def _wheels(view: View) -> dict[str, str]:
    """The NCCL wheels by their CUDA major -> version."""
    interpreter = view.collection.interpreter
    found = {}
    for package in interpreter.packages if interpreter else ():
        match = _WHEEL.fullmatch(normalised(package.name))
        if match:
            found[match[1]] = package.version
    return found


def _two(view: View, wheels: dict[str, str]) -> Finding:
    own, wanted = cuda_major(view), nccl_wanted(view)
    said = [f"nvidia-nccl-cu{major} {version}" for major, version in wheels.items()]
    others = [f"nvidia-nccl-cu{major}" for major in wheels if major != own]
    right = f"nvidia-nccl-cu{own}=={wanted[0] if wanted else wheels.get(own or '', '')}".removesuffix("==")
    return Finding(
        rule="nccl.two-wheels",
        severity=Severity.ERROR,
        subject="nvidia-nccl",
        message=f"{' and '.join(said)} are installed together: both own nvidia/nccl/lib/{_NAME}, and the one that was "
        "installed last has won" + (f"; torch {torch_version(view)} is built for CUDA {own}" if own else ""),
        why=_WHY,
        evidence=tuple(said),
        fix="uninstall the one for the other CUDA, and install torch's own again, for its file goes with the other"
        if own else "keep the one that torch was installed with: uninstall both, and install it again",
        command=f"pip uninstall -y {' '.join(others)} && {_INSTALL} {right}" if own else "",
        source="file lists of the wheels nvidia-nccl-cu12 and nvidia-nccl-cu13; pytorch/pytorch#186591",
    )  # fmt: skip


def _other(view: View, known: Answers, loaded: Loaded, lacking: tuple[str, ...]) -> Finding:
    collection, wanted = view.collection, nccl_wanted(view)
    wheel = wheel_files(view).get(_NAME)
    elsewhere = not in_wheels(loaded.real)
    lacks = f", and has no {listed(lacking, 3)}, which this torch asks for" if lacking else ""
    beside = f", and not the one of torch's wheels, {wheel}" if wheel and elsewhere else ""
    fix, command = _reinstall(view)
    for trial in trials(collection, known, _NAME):
        found = trial.after.provider(_NAME)
        if found is not None and in_wheels(found.real):
            fix = f"{trial.remedy.words} (tried on what was seen: the wheel's is then loaded)"
            command = trial.remedy.command
            break
    return Finding(
        rule="nccl.symbols" if lacking else "nccl.shadowed",
        severity=Severity.ERROR,
        subject=_NAME,
        message=f"the NCCL that is loaded is {told(loaded.real, collection)}, by {known.why(_NAME)}{beside}{lacks}"
        + (f"; torch {torch_version(view)} was built with NCCL {wanted[0]}" if wanted else ""),
        why=_WHY,
        evidence=(
            f"{_NAME}: {loaded.real}, by {known.why(_NAME)}",
            *((f"the wheel's: {wheel}",) if wheel else ()),
            *(f"not defined in it: {name}" for name in lacking[:5]),
        ),
        fix=fix,
        command=command,
        source=f"{_SOURCE}; {wanted[1]}" if wanted else _SOURCE,
    )


def _version(view: View, wheels: dict[str, str]) -> Iterator[Finding]:
    """The version, where the file is the wheel's: an install after torch's may have exchanged it."""
    wanted, torch = nccl_wanted(view), view.collection.torch
    if wanted is None or cuda_major(view) is None or _from_conda(view):
        return
    version = next(iter(wheels.values()), None) or (torch.nccl if torch is not None else None)
    if not version or starts_with(version, wanted[0]) or not re.fullmatch(r"\d+(\.\d+)+", version):
        return
    older = parse(version) < parse(wanted[0])
    who = "the NCCL wheel is" if wheels else "torch says of its NCCL that it is"
    fix, command = _reinstall(view)
    yield Finding(
        rule="nccl.version",
        severity=Severity.ERROR if older else Severity.WARNING,
        subject=_NAME,
        message=f"{who} {version}, and torch {torch_version(view)} was built with {wanted[0]}"
        + ("" if older else ": a later install has exchanged it"),
        why=_WHY if older else "torch was built and tested with its own: every rank of every node needs the same one",
        evidence=(f"found: {version}", f"expected: {wanted[0]} ({wanted[1]})"),
        fix=fix,
        command=command if wheels else "",
        source=wanted[1],
    )


def _said(view: View, lacking: tuple[str, ...]) -> Iterator[Finding]:
    """What the import itself said, where nothing else has explained it."""
    torch = view.collection.torch
    found = re.search(r"undefined symbol: (nccl\w+)", (torch.error or "") if torch is not None else "")
    if found is None or found[1] in lacking:
        return
    wanted, loaded = nccl_wanted(view), answers(view.collection).provider(_NAME)
    place = loaded.real if loaded is not None else "which could not be worked out"
    fix, command = _reinstall(view)
    yield Finding(
        rule="nccl.import",
        severity=Severity.ERROR,
        subject=_NAME,
        message=f"torch cannot be imported: the NCCL that it met ({place}) has no {found[1]}: it is another than the "
        f"{wanted[0] if wanted else 'one'} that torch {torch_version(view)} was built with",
        why=_WHY,
        evidence=((torch.error or "") if torch is not None else "",),
        fix=fix,
        command=command,
        source=f"the import of torch; {wanted[1]}" if wanted else "the import of torch",
    )


def _reinstall(view: View) -> tuple[str, str]:
    own, wanted = cuda_major(view), nccl_wanted(view)
    if own is None or wanted is None:
        return "install torch again with its own dependencies", ""
    pin = f"nvidia-nccl-cu{own}=={wanted[0]}"
    exact = len(wanted[0].split(".")) > 2
    return (
        f"install the one that this torch pins, {pin}",
        f"{_INSTALL} {pin}" if exact else "",
    )


def _from_conda(view: View) -> bool:
    """conda's torch is built against conda's NCCL, which no wheel's METADATA speaks of."""
    loaded = answers(view.collection).provider(_NAME)
    return loaded is not None and not in_wheels(loaded.real) and conda_prefix(loaded.real, view.collection) is not None


CHECK = Check(
    name="nccl",
    title="the NCCL that is loaded is the one that this torch was built with, and the only one",
    look=_look,
    explains=("imports.nccl", "imports.library", "cuda-libraries.majors", "loader.preload", "loader.cuda-path", "ops"),
)
