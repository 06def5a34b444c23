"""torch runs with the CUDA libraries of its own wheels, all of one CUDA."""

from __future__ import annotations

import re
from collections.abc import Iterator

from envbuild.doctor.loading import Answers, answers
from envbuild.doctor.remedies import trials
from envbuild.doctor.view import Check, View, normalised
from envbuild.doctor.wheels import cuda_major, in_wheels, wheel_files
from envbuild.doctor.words import listed, told
from envbuild.elf import Loaded
from envbuild.judge.native import CUDA_LIBRARIES
from envbuild.model import Finding, Severity

_TOOLKIT = re.compile(r"/cuda-(\d+\.\d+)")
_SUFFIX = re.compile(r"nvidia-(.+)-cu(\d+)")
# Wheels of these put their files into one folder, whatever CUDA they are for: the last one installed wins.
_SAME_FOLDER = ("cudnn", "nccl", "nvshmem", "cusparselt")
_SOURCE = "glibc's elf/dl-load.c (LD_LIBRARY_PATH goes before RUNPATH); RUNPATH of the files in NVIDIA's wheels"


def _look(view: View) -> Iterator[Finding]:
    known = answers(view.collection)
    wheels = wheel_files(view)
    shadowed = [
        loaded for loaded in known.loaded
        if (name := loaded.elf.soname or "") in wheels and CUDA_LIBRARIES.fullmatch(name) and "libnccl." not in name
        and known.real(wheels[name]) != loaded.real and not in_wheels(loaded.real)
    ]  # fmt: skip
    if shadowed:
        yield _shadowed(view, known, shadowed, wheels)
    yield from _majors(view)


def _shadowed(view: View, known: Answers, shadowed: list[Loaded], wheels: dict[str, str]) -> Finding:
    collection, torch = view.collection, view.collection.torch
    names = [loaded.elf.soname or loaded.path for loaded in shadowed]
    first = shadowed[0]
    why = known.why(names[0])
    found = _TOOLKIT.search(first.real)
    other = found is not None and torch is not None and torch.cuda is not None and found[1] != torch.cuda
    failed = torch is not None and not torch.ok
    asker = choice.asker if (choice := known.choice(names[0])) else ""
    fix, command = "see that the loader finds the wheel's copy first", ""
    for trial in trials(collection, known, names[0]):
        after = {loaded.real for loaded in trial.after.loaded}
        if not after & {loaded.real for loaded in shadowed} and set(trial.after.unresolved) <= set(known.unresolved):
            fix = f"{trial.remedy.words} (tried on what was seen: the wheels' copies are then loaded)"
            command = trial.remedy.command
            break
    place = f"{first.real} (of CUDA {found[1]})" if found else told(first.real, collection)
    return Finding(
        rule="cuda-libraries.shadowed",
        severity=Severity.ERROR if other or failed else Severity.WARNING,
        subject=names[0],
        message=f"{listed(names)}: {place} is loaded, by {why}, and not the copy of "
        f"torch's own wheels, {wheels[names[0]]}" + (f"; {asker} asked for it" if asker else ""),
        why="the wheels' libraries are made for one another: one of another CUDA among them fails at a function that "
        "it has not, at import or in the middle of training",
        evidence=tuple(f"{loaded.elf.soname}: {loaded.real}, by {known.why(loaded.path)}" for loaded in shadowed[:6]),
        fix=fix,
        command=command,
        source=_SOURCE,
    )


def _majors(view: View) -> Iterator[Finding]:
    interpreter, own = view.collection.interpreter, cuda_major(view)
    groups: dict[str, dict[str, str]] = {}
    for package in interpreter.packages if interpreter else ():
        found = _SUFFIX.fullmatch(normalised(package.name))
        if found:
            groups.setdefault(found[1], {})[found[2]] = f"{normalised(package.name)} {package.version}"
    sets = {major for majors in groups.values() for major in majors}
    together = {name: majors for name, majors in groups.items()
                if len(majors) > 1 and name in _SAME_FOLDER and name != "nccl"}  # fmt: skip
    if len(sets) < 2:
        return
    wrong = [said for majors in groups.values() for major, said in majors.items() if major != own]
    if not wrong or own is None:
        wrong = [said for majors in groups.values() for said in majors.values()]
    right = [said for majors in together.values() for major, said in majors.items() if major == own]
    remove = "pip uninstall -y " + " ".join(said.split()[0] for said in wrong)
    again = " ".join(said.replace(" ", "==") for said in right)
    command = remove + (f" && pip install --no-deps --force-reinstall {again}" if again else "") if own else ""
    yield Finding(
        rule="cuda-libraries.majors",
        severity=Severity.ERROR if together else Severity.WARNING,
        subject="nvidia wheels",
        message=f"NVIDIA's wheels for CUDA {' and '.join(sorted(sets))} are installed together: {listed(wrong)}"
        + (f", and torch is built for CUDA {own}" if own else "")
        + (
            f"; {listed(together)} of both lie in the same files, and the last one installed has won"
            if together
            else ""
        ),
        why="torch takes the libraries by their names: those of the other CUDA are loaded in their place, or one that "
        "is uninstalled takes the other's files with it",
        evidence=tuple(said for majors in groups.values() for said in majors.values()),
        fix="uninstall those for the other CUDA, and install torch's own again: uninstalling removes shared files",
        command=command,
        source="file lists of NVIDIA's wheels (nvidia/nccl/lib, nvidia/cudnn/lib in both); pytorch/pytorch#186591",
    )


CHECK = Check(
    name="cuda-libraries",
    title="torch runs with the CUDA libraries of its own wheels, all of one CUDA",
    look=_look,
    explains=("imports.cuda-library", "imports.library", "loader.cuda-path", "ops"),
)
