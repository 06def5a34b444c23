"""Every library that the loader takes is one that can serve.

Whatever bears a library's name, the first one found is taken: text, half a file, an empty one or a folder ends the
search with an error; a library without symbol versions is taken for any version, and lacks the symbols.
"""

from __future__ import annotations

from collections.abc import Iterator

from envbuild.doctor.found import has_gpu, torch_version
from envbuild.doctor.loading import FROM_DRIVER, Answers, answers
from envbuild.doctor.remedies import Trial, cures, trials
from envbuild.doctor.view import Check, View
from envbuild.doctor.wheels import cuda_major, in_wheels, wheel_files
from envbuild.doctor.words import OFFLOAD, belongs, harmless, listed, named, op_at, ours, told
from envbuild.elf import Choice, Loaded
from envbuild.model import Finding, Severity

_SOURCE = "glibc's elf/dl-load.c (open_verify)"
_VERSIONS = "glibc's elf/dl-version.c and elf/dl-lookup.c: without versions every name counts for every version"
_MOUNTS = "NVIDIA/libnvidia-container#140"


def _look(view: View) -> Iterator[Finding]:
    known = answers(view.collection)
    groups: dict[str, list[Choice]] = {}
    asked = list(known.unresolved)
    if cuda_major(view) is not None:  # torch opens them by their names
        asked += [choice for name in sorted(FROM_DRIVER) for choice in known.opened(name)]
    for choice in asked:
        path = known.refused(choice)
        # A damaged op is told by `ops`.
        if path is not None and op_at(choice.name, view.collection) is None:
            groups.setdefault(path, []).append(choice)
    for path, choices in groups.items():
        yield _damaged(view, known, path, choices)
    for loaded in known.loaded:
        lacks = view.collection.libraries.lacks.get(loaded.real, ())
        if lacks and not loaded.elf.versioned and (askers := _askers(known, loaded)):
            yield _unversioned(view, known, loaded, lacks, askers)


def _damaged(view: View, known: Answers, path: str, choices: list[Choice]) -> Finding:
    collection, first = view.collection, choices[0]
    name = first.name.rpartition("/")[2]
    askers = list(dict.fromkeys(choice.asker for choice in choices if choice.asker))
    mounted = name in FROM_DRIVER
    cured = next((trial for trial in trials(collection, known, first.name, refused=first) if _gone(trial, path)), None)
    why, reason = "" if first.why == "dlopen" else known.because(first), first.problem.removeprefix(path).strip(" :")
    starts = any(choice in known.start.choices for choice in choices)
    severity = Severity.ERROR if starts else _severity(view, askers or [path])
    if mounted:
        severity = Severity.ERROR if has_gpu(view) else Severity.WARNING
    return Finding(
        rule="unfit.damaged",
        severity=severity,
        subject=path,
        message=f"{told(path, collection)} is what the loader takes for {name}{f', by {why}' if why else ''}, and it "
        f"{reason if reason.startswith('is ') else f'is damaged: {reason}'}"
        + (f"; {named(askers, collection)} {'ask' if len(askers) > 1 else 'asks'} for it" if askers else ""),
        why=f"the loader looks no further: it ends in 'file too short', 'invalid ELF header' or a bus error; {OFFLOAD}",
        evidence=(f"{path}: {reason}", *(f"{asker}: needs {name}" for asker in askers[:6])),
        fix=_said(cured) if cured is not None else _again(view, path, mounted=mounted),
        command=cured.remedy.command if cured is not None else "",
        source=f"{_SOURCE}; {_MOUNTS}" if mounted else _SOURCE,
    )


def _unversioned(view: View, known: Answers, loaded: Loaded, lacks: tuple[str, ...], askers: list[str]) -> Finding:
    collection, name = view.collection, loaded.elf.soname or loaded.path.rpartition("/")[2]
    ask = "ask" if len(askers) > 1 else "asks"
    cured = next(
        (trial for trial in trials(collection, known, name)
         if cures(known, trial.after) and loaded.real not in {other.real for other in trial.after.loaded}), None,
    )  # fmt: skip
    return Finding(
        rule="unfit.unversioned",
        severity=_severity(view, askers),
        subject=loaded.path,
        message=f"{told(loaded.real, collection)} is what the loader takes for {name}, by {known.why(loaded.path)}: it "
        f"has no symbol versions, and not what {named(askers, collection)} {ask} of it: {listed(lacks, 3)}",
        why="it is another library of that name, or a stand-in: a library without versions is taken for any version, "
        f"and the import ends in 'undefined symbol'; {OFFLOAD}",
        evidence=(f"{name}: {loaded.real}, by {known.why(loaded.path)}", *(f"not in it: {each}" for each in lacks[:5])),
        fix=_said(cured) if cured is not None else _again(view, loaded.real),
        command=cured.remedy.command if cured is not None else "",
        source=_VERSIONS,
        # It need not break the import: what a function of it is first called may be long after.
        explained_by="cuda-libraries.shadowed" if name in wheel_files(view) and not in_wheels(loaded.real) else "",
    )


def _askers(known: Answers, loaded: Loaded) -> list[str]:
    return [
        other.path for other in known.loaded
        if any(not need.weak and known.provider(need.library) is loaded for need in other.elf.requires)
    ]  # fmt: skip


def _gone(trial: Trial, path: str) -> bool:
    after = trial.after
    return not after.problem and path not in {after.refused(choice) for choice in after.unresolved}


def _severity(view: View, askers: list[str]) -> Severity:
    mine = ours(askers, view.collection)
    return Severity.WARNING if not mine or harmless(view.collection, mine) else Severity.ERROR


def _said(trial: Trial) -> str:
    whole = not trial.after.missing and not trial.after.unresolved
    return f"{trial.remedy.words} (tried on what was seen: {'every library then resolves' if whole else 'it is gone'})"


def _again(view: View, path: str, *, mounted: bool = False) -> str:
    """What to do where nothing but the file itself is wrong."""
    if mounted:
        return (
            "remove it from the image, and build the image without the NVIDIA runtime: such a file, or folder, is what "
            "a mount of the driver's libraries leaves behind, and it stands in the way of the host's"
        )
    if in_wheels(path):
        return "install the wheel that it is of again: pip install --force-reinstall --no-deps"
    whose = belongs(path, view.collection)
    if whose == "of torch":
        same = torch_version(view) or "the same version and build"
        return f"install torch again ({same}): pip install --force-reinstall --no-deps"
    if whose == "of the system":
        return "install the system's package that it is of again, or remove it where no package owns it"
    return "remove it, or install again what it came with"


CHECK = Check(
    name="unfit",
    title="every library that the loader takes can serve: whole, and with the symbols that are asked of it",
    look=_look,
    explains=(
        "imports.abi",
        "imports.cuda-library",
        "interpreter.dead",
        "imports.libcuda",
        "imports.library",
        "imports.libstdcxx",
        "imports.nccl",
        "imports.unknown",
        "libcuda.missing",
        "nvml.missing",
        "driver.refused",
        "host-compiler.runtime",
        "ninja.runtime",
        "loader",
        "libstdcxx.waiting",
        "ops",
    ),
)
