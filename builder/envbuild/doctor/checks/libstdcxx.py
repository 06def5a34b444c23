"""The libstdc++ that is loaded has every symbol version that anything asks of it.

Which libstdc++ that is, nobody chooses: the first library that needs one decides for the whole process.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from envbuild.doctor.layers import LIBSTDCXX
from envbuild.doctor.loading import Answers, answers
from envbuild.doctor.remedies import Remedy, Trial, copies, cures, trials
from envbuild.doctor.view import Check, View
from envbuild.doctor.words import (
    OFFLOAD,
    conda_prefix,
    folder,
    gcc_words,
    has_toolset,
    jit_compiler,
    listed,
    named,
    newest_symbol,
    op_at,
    release,
    remedy_for,
    shell_path,
    told,
)
from envbuild.elf import Missing, by_family, highest
from envbuild.elf.versions import parse
from envbuild.facts import Facts
from envbuild.model import Finding, Severity

_SOURCE = "GCC manual, libstdc++, ABI Policy and Guidelines; glibc's elf/dl-version.c"


def _look(view: View) -> Iterator[Finding]:
    known = answers(view.collection)
    groups: dict[str, list[Missing]] = {}
    for missing in known.missing:
        parsed = parse(missing.version)
        if parsed is not None and parsed[0] in ("GLIBCXX", "CXXABI") and missing.chosen is not None:
            groups.setdefault(missing.chosen, []).append(missing)
    for chosen, wrong in groups.items():
        yield _finding(view, known, chosen, wrong)
    if not groups:
        yield from _waiting(view, known)
        yield from _next(view, known)


def _finding(view: View, known: Answers, chosen: str, wrong: list[Missing]) -> Finding:
    collection, facts = view.collection, view.facts
    newest = _newest(wrong)
    askers = list(dict.fromkeys(missing.asker for missing in wrong))
    who = named(askers, collection)
    has = by_family(file.provides) if (file := known.read(chosen)) else {}
    why, bringer = known.why(LIBSTDCXX), known.bringer(LIBSTDCXX)
    every = copies(collection, known, LIBSTDCXX)
    better = [
        path for path, provides in every.items()
        if known.real(path) != known.real(chosen) and _enough(provides, wrong)
    ]  # fmt: skip
    remedies, shadowed = _remedies(view, known, chosen, wrong, better)
    most = listed(has.get(family, f"no {family}") for family in newest)
    lacks = " and ".join(f"{version}{gcc_words(version, facts)}" for version in newest.values())
    choice = known.choice(LIBSTDCXX)
    own = choice is None or choice.why not in ("rpath", "runpath") or bringer in (choice.owner, *askers)
    first = "" if own else f"; {named([bringer], collection)} was loaded first and brought it"
    return Finding(
        rule="libstdcxx.shadowed" if shadowed else "libstdcxx",
        severity=Severity.ERROR,
        subject=chosen,
        message=f"{who} {'ask' if len(askers) > 1 else 'asks'} for {lacks}, and the libstdc++ that is loaded, "
        f"{told(known.real(chosen), collection)}, has {most} at most. It won by {why or 'its name'}{first}",
        why=f"a process has one libstdc++, whoever asks for it first; {OFFLOAD}",
        evidence=(
            *(f"{asker}: asks for {listed(_asked(wrong, asker))}" for asker in askers),
            f"loaded: {known.real(chosen)}, by {why}",
            *(f"a better copy: {told(path, collection)} has {listed(every[path].get(family, '') for family in newest)}"
              for path in better[:3]),
        ),
        fix="; or ".join(remedy.words for remedy in remedies),
        command=remedies[0].command,
        source=_SOURCE,
    )  # fmt: skip


def _remedies(
    view: View, known: Answers, chosen: str, wrong: list[Missing], better: list[str]
) -> tuple[list[Remedy], bool]:
    """What helps, best first, and whether something only stands in front of a better copy."""
    collection = view.collection
    tried = [trial for trial in trials(collection, known, LIBSTDCXX, better) if cures(known, trial.after, wrong)]
    taken_away = [trial for trial in tried if "in front" not in trial.remedy.words]
    found = [_said(trial) for trial in taken_away[:1]]
    prefix = conda_prefix(known.real(chosen), collection)
    gcc = _gcc(wrong, view.facts)
    if prefix is not None and gcc is not None:
        wanted = f"libstdcxx-ng>={gcc.split('.')[0]}"
        found.append(
            Remedy(
                words=f"give the environment a newer libstdc++ (conda package {wanted})",
                command=f"conda install -p {shell_path(prefix)} -c conda-forge '{wanted}'",
            )
        )
    if not taken_away:
        found += _rebuilds(view, known, chosen, wrong)
        found += [_said(trial) for trial in tried if trial not in taken_away][:1]
    if not found:
        wanted = listed(_newest(wrong).values())
        found.append(
            Remedy(words=f"use a base whose libstdc++ has {wanted}, or builds of these files for an older one")
        )
    return found, bool(taken_away)


def _said(trial: Trial) -> Remedy:
    whole = not trial.after.missing and not trial.after.unresolved
    said = "every library then resolves" if whole else "this is then gone"
    return Remedy(words=f"{trial.remedy.words} (tried on what was seen: {said})", command=trial.remedy.command)


def _rebuilds(view: View, known: Answers, chosen: str, wrong: list[Missing]) -> Iterator[Remedy]:
    """Compiling the ops again helps where the compiler that would do it is old enough."""
    collection = view.collection
    askers = dict.fromkeys(missing.asker for missing in wrong)
    ops = [op for asker in askers if (op := op_at(asker, collection))]
    if not ops or len(ops) < len(askers):
        return
    has = by_family(file.provides).get("GLIBCXX") if (file := known.read(chosen)) else None
    compiler = jit_compiler(collection)
    newest = newest_symbol(compiler, view.facts) if compiler else None
    if has and newest and highest((has, newest), "GLIBCXX") == has and compiler is not None:
        words, command = remedy_for(ops[0], view)
        yield Remedy(words=f"{words} by {compiler.path} (GCC {compiler.version}), which is old enough", command=command)
    elif has:
        gcc = view.facts.gcc_of_symbol(has)
        limit = f" that is no newer than the GCC {release(gcc)} of that libstdc++" if gcc else ""
        yield Remedy(words=f"compile {listed(op.name for op in ops)} by a compiler{limit} (CXX)")


def _waiting(view: View, known: Answers) -> Iterator[Finding]:
    """An older copy in the environment itself: what is imported before torch may bring it, and it then serves all."""
    loaded = known.provider(LIBSTDCXX)
    for path, has in copies(view.collection, known, LIBSTDCXX).items():
        prefix = next((each for each in _prefixes(view) if path.startswith(f"{each}/")), None)
        if prefix is None or (loaded is not None and known.real(path) == loaded.real):
            continue
        after = known.what_if(first=(path,))
        wrong = [missing for missing in after.missing if known.real(missing.chosen or "") == known.real(path)]
        gcc = _gcc(wrong, view.facts)
        if not wrong or gcc is None:
            continue
        wanted = f"libstdcxx-ng>={gcc.split('.')[0]}"
        conda = conda_prefix(path, view.collection) is not None
        askers = list(dict.fromkeys(missing.asker for missing in wrong))
        yield Finding(
            rule="libstdcxx.waiting",
            severity=Severity.WARNING,
            subject=path,
            message=f"{named(askers, view.collection)} {'ask' if len(askers) > 1 else 'asks'} for "
            f"{listed(_newest(wrong).values())}, and the environment's own libstdc++, {told(path, view.collection)}, "
            f"has {listed(has.get(family, '') for family in _newest(wrong))} at most: torch brings another, "
            "and this one is loaded when a package that needs it is imported before torch",
            why=f"a process has one libstdc++, whoever asks for it first; {OFFLOAD}",
            evidence=(*(f"{asker}: asks for {listed(_asked(wrong, asker))}" for asker in askers[:4]), f"copy: {path}"),
            fix=f"give the environment a newer libstdc++ (conda package {wanted}), or import torch and deepspeed first"
            if conda
            else "remove that copy, or import torch and deepspeed first",
            command=f"conda install -p {shell_path(prefix)} -c conda-forge '{wanted}'" if conda else "",
            source=_SOURCE,
        )


def _prefixes(view: View) -> list[str]:
    """The environment that the interpreter is of; the system's is none."""
    interpreter = view.collection.interpreter
    if interpreter is None:
        return []
    found = (
        interpreter.prefix,
        folder(folder(interpreter.executable)),
        view.collection.environment.get("CONDA_PREFIX"),
    )
    return [each.rstrip("/") for each in found if each and each.rstrip("/") not in ("", "/usr", "/usr/local")]


def _next(view: View, known: Answers) -> Iterator[Finding]:
    """A JIT compiler that is newer than what is loaded: what it compiles next may not load."""
    collection = view.collection
    compiler, loaded = jit_compiler(collection), known.provider(LIBSTDCXX)
    if compiler is None or compiler.version is None or loaded is None or has_toolset(compiler):
        return
    has = highest(loaded.elf.provides, "GLIBCXX")
    may = newest_symbol(compiler, view.facts)
    if has is None or may is None or highest((has, may), "GLIBCXX") == has:
        return
    prefix = conda_prefix(loaded.real, collection)
    wanted = f"libstdcxx-ng>={compiler.version.split('.')[0]}"
    yield Finding(
        rule="libstdcxx.jit",
        severity=Severity.WARNING,
        subject=compiler.path or compiler.name,
        message=f"an op that is compiled now, by {compiler.path} (GCC {compiler.version}), may ask for {may}, and the "
        f"libstdc++ that Python loads, {told(loaded.real, collection)}, has {has} at most (by {known.why(LIBSTDCXX)})",
        why="what is not prebuilt is compiled on the first step, and then cannot be loaded: 'version not found'",
        evidence=(f"{compiler.role}: {compiler.says or compiler.path}", f"loaded: {loaded.real}: {has}"),
        fix=f"install {wanted} into {prefix}" if prefix else "compile the ops by the compiler of that libstdc++ (CXX)",
        command=f"conda install -p {shell_path(prefix)} -c conda-forge '{wanted}'" if prefix else "",
        source=_SOURCE,
    )


def _asked(wrong: Iterable[Missing], asker: str) -> list[str]:
    return [missing.version for missing in wrong if missing.asker == asker]


def _newest(wrong: Iterable[Missing]) -> dict[str, str]:
    return by_family(missing.version for missing in wrong)


def _enough(provides: dict[str, str], wrong: list[Missing]) -> bool:
    return all(highest((version, provides.get(family, "")), family) == provides.get(family)
               for family, version in _newest(wrong).items())  # fmt: skip


def _gcc(wrong: list[Missing], facts: Facts) -> str | None:
    known = [gcc for version in _newest(wrong).values() if (gcc := facts.gcc_of_symbol(version))]
    return max(known, key=lambda gcc: tuple(map(int, gcc.split("."))), default=None)


CHECK = Check(
    name="libstdcxx",
    title="the libstdc++ that is loaded has every symbol version that torch and the ops ask for",
    look=_look,
    explains=(
        "imports.libstdcxx",
        "imports.library",
        "interpreter.dead",
        "host-compiler.runtime",
        "ninja.runtime",
        "ops",
        "loader",
    ),
)
