"""The C library has every symbol version that anything asks of it. It cannot be exchanged: the system hangs on it."""

from __future__ import annotations

from collections.abc import Iterator

from envbuild.doctor.loading import Answers, answers
from envbuild.doctor.remedies import cures, trials
from envbuild.doctor.view import Check, View
from envbuild.doctor.words import OFFLOAD, belongs, conda_prefix, listed, named, op_at, remedy_for
from envbuild.elf import Missing, by_family
from envbuild.elf.versions import parse
from envbuild.facts.versions import within
from envbuild.model import Finding, Severity

_SOURCE = "glibc's elf/dl-version.c; the symbol versions were read from the files"


def _look(view: View) -> Iterator[Finding]:
    known = answers(view.collection)
    groups: dict[str, list[Missing]] = {}
    for missing in known.missing:
        parsed = parse(missing.version)
        family = parsed[0] if parsed else missing.version.partition("_")[0]
        if family == "GLIBC":
            groups.setdefault(missing.asker, []).append(missing)
    for asker, wrong in groups.items():
        yield _finding(view, known, asker, wrong)


def _finding(view: View, known: Answers, asker: str, wrong: list[Missing]) -> Finding:
    collection = view.collection
    wanted = by_family(missing.version for missing in wrong).get("GLIBC", wrong[0].version)
    chosen = wrong[0].chosen or wrong[0].library
    has = wrong[0].best or collection.machine.glibc or "none of that kind"
    op = op_at(asker, collection)
    cured = next(
        (trial for trial in trials(collection, known, wrong[0].library) if cures(known, trial.after, wrong)), None
    )
    fix, command = _fix(view, known, asker, wanted)
    if cured is not None:
        fix, command = f"{cured.remedy.words} (tried on what was seen: this is then gone)", cured.remedy.command
    return Finding(
        rule="glibc",
        severity=Severity.ERROR,
        subject=asker,
        message=f"{named([asker], collection)} asks for {wanted}, and the C library "
        f"here, {chosen}, has {has} at most: it was compiled for a newer distribution",
        why=OFFLOAD if op else "it cannot be loaded, nor anything that needs it",
        evidence=tuple(f"{asker}: asks {missing.library} for {missing.version}" for missing in wrong[:6]),
        fix=fix,
        command=command,
        source=_SOURCE,
    )


def _fix(view: View, known: Answers, asker: str, wanted: str) -> tuple[str, str]:
    number = wanted.rpartition("_")[2]
    fitting = [name for name, release in view.facts.releases.items()
               if number.replace(".", "").isdigit() and within(release.glibc, number, None)]  # fmt: skip
    base = f"use a base with glibc {number} or later" + (f" ({listed(fitting)})" if fitting else "")
    op = op_at(asker, view.collection)
    if op is not None:
        words, command = remedy_for(op, view)
        return f"it was compiled on another machine: {words}; or {base}", command
    prefix = conda_prefix(asker, view.collection)
    if prefix is not None:
        return f"take a build of its package for this glibc into {prefix}; or {base}", ""
    whose = belongs(asker, view.collection)
    wheel = "a version whose wheel is for an older glibc (its manylinux tag)" if whose else "a build for this system"
    return f"{base}; or take {wheel}", ""


CHECK = Check(
    name="glibc",
    title="the machine's C library is as new as torch and the ops ask for",
    look=_look,
    explains=(
        "imports.glibc",
        "imports.library",
        "interpreter.dead",
        "host-compiler.runtime",
        "ninja.runtime",
        "ops",
        "loader",
    ),
)
