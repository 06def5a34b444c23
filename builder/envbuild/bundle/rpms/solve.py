"""Ask the solver: the question as JSON to a program of its own, and its answer as values."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from envbuild import process
from envbuild.bundle.rpms.types import SMALL_ARCHES, Installed, Nevra, Package
from envbuild.errors import BundleError, EngineError
from envbuild.evidence.record import printable

_WORKER = Path(__file__).with_name("worker.py")
# Address space of the solver. A distribution with its file lists takes some 700 MB.
MEMORY = 4 << 30
SECONDS = 600.0


class SolverError(BundleError):
    """The solver gave no answer: it crashed, ran out of memory or time, or cannot read what it was given (exit 6)."""

    code = "solver"


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """A repository as the solver takes it: plain files."""

    id: str
    primary: Path
    filelists: Path | None = None
    priority: int = 99
    hotfixes: bool = False
    excludes: tuple[str, ...] = ()
    includes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """What modularity leaves out for one target: full names with their epoch (see ``modules.Active``)."""

    inactive: frozenset[str] = frozenset()
    active: frozenset[str] = frozenset()
    names: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A target as the solver takes it."""

    name: str
    installed: tuple[Installed, ...] = ()
    filter: Filter = Filter()


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What the solver is asked; ``memory`` is a limit in bytes, of its address space."""

    arch: str
    roots: tuple[str, ...]
    repositories: tuple[Loaded, ...]
    machines: tuple[Machine, ...]
    multilib: bool = False
    memory: int = MEMORY
    seconds: float = SECONDS


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """What the solver says of one target.

    Attributes:
        missing: Roots that nothing has; ``near`` is what is called almost so.
        problems: Why there is no solution.
        multilib_helps: Whether there would be one with 32-bit packages.
        erases: Installed packages that would go, ``replaces`` those that another one obsoletes.
    """

    name: str
    missing: tuple[str, ...] = ()
    near: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    multilib_helps: bool = False
    installs: tuple[Package, ...] = ()
    erases: tuple[str, ...] = ()
    replaces: tuple[str, ...] = ()
    downgrades: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Every target's solution; how many packages each repository has; the most memory that it took, in bytes."""

    solutions: tuple[Solution, ...]
    packages: Mapping[str, int]
    peak: int


def solve(question: Question) -> Answer:
    """Ask the solver.

    Raises:
        SolverError: It crashed, or ran out of memory or time.
        EngineError: It cannot be started here.
    """
    document = {
        "arch": question.arch,
        "roots": question.roots,
        "multilib": question.multilib,
        "memory_bytes": question.memory,
        "small_arches": sorted(SMALL_ARCHES.get(question.arch, ())),
        "repositories": [
            {
                "id": each.id, "priority": each.priority, "primary": str(each.primary),
                "filelists": str(each.filelists) if each.filelists else None,
                "hotfixes": each.hotfixes, "excludes": each.excludes, "includes": each.includes,
            }
            for each in question.repositories
        ],
        "targets": [
            {
                "name": machine.name, "installed": [_installed(each) for each in machine.installed],
                "inactive": sorted(machine.filter.inactive), "active": sorted(machine.filter.active),
                "names": sorted(machine.filter.names),
            }
            for machine in question.machines
        ],
    }  # fmt: skip
    done = _run(question, json.dumps(document).encode())
    try:
        answer = json.loads(done.stdout)
        if unreadable := answer.get("unreadable"):
            raise SolverError(f"repository {unreadable[0]}: its metadata cannot be read ({unreadable[1][:200]})")
        return Answer(
            solutions=tuple(map(_solution, answer["targets"])), packages=answer["packages"], peak=answer["peak_bytes"]
        )
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise SolverError(f"the solver's answer is none: {_said(done)}") from error


def _run(question: Question, document: bytes) -> process.Completed:
    # Isolated: of the user's own environment and folders nothing is imported.
    argv = (sys.executable, "-I", str(_WORKER))
    try:
        done = process.run(argv, input=document, timeout=question.seconds)
    except process.TimedOut as error:
        raise SolverError(
            f"the solver found no answer within {question.seconds:.0f} seconds",
            hint="Ask for less at once (--root), or leave repositories out.",
        ) from error
    if done.returncode == 0:
        return done
    if "No module named 'solv'" in done.stderr:
        raise EngineError(
            "the solver (solv) is not installed: there is none for this system",
            hint="Run the export on Linux, or inside one of envbuild's own containers.",
        )
    if any(words in done.stderr for words in ("MemoryError", "bad_alloc", "Out of memory")):
        raise SolverError(f"the solver wants more than {question.memory >> 20} MiB of memory")
    if done.returncode < 0:
        name = signal.Signals(-done.returncode).name
        raise SolverError(
            f"the solver crashed ({name})",
            hint="The metadata of one of the repositories is damaged, or made to do this. Leave them out one by one.",
        )
    raise SolverError(f"the solver failed: {_said(done)}")


def _said(done: process.Completed) -> str:
    return process.last_words(done.stderr, 300) or "it said nothing"


def _installed(each: Installed) -> dict[str, Any]:
    return {
        "name": each.nevra.name, "evr": each.nevra.evr, "arch": each.nevra.arch, "provides": each.provides,
        "requires": each.requires, "conflicts": each.conflicts, "obsoletes": each.obsoletes, "files": each.files,
    }  # fmt: skip


def _solution(answer: Mapping[str, Any]) -> Solution:
    def told(key: str) -> tuple[str, ...]:
        # Names out of metadata are somebody else's: no escape sequence of theirs reaches a terminal.
        return tuple(map(printable, answer.get(key, ())))

    return Solution(
        name=answer["name"],
        missing=tuple(answer["missing"]),
        near={root: tuple(map(printable, names)) for root, names in answer["near"].items()},
        problems=told("problems"),
        multilib_helps=answer["helps"],
        installs=tuple(sorted(map(_package, answer.get("installs", ())), key=lambda package: str(package.nevra))),
        erases=tuple(sorted(told("erases"))),
        replaces=tuple(sorted(told("replaces"))),
        downgrades=tuple(sorted(told("downgrades"))),
    )


def _package(found: Mapping[str, Any]) -> Package:
    kind, digest = found["checksum"]
    return Package(
        nevra=nevra(found["name"], found["evr"], found["arch"]),
        repository=found["repository"],
        checksum=(str(kind).lower(), digest),
        location=(found["location"].removeprefix("./"), found["base"] or None),
        bytes=found["bytes"],
        installed_bytes=found["installed_bytes"],
        licence=found["licence"],
        source_rpm=found["source_rpm"],
        vendor=found["vendor"],
        summary=found["summary"],
        built=found["built"],
    )


def nevra(name: str, evr: str, arch: str) -> Nevra:
    """A full name, from epoch, version and release in one."""
    epoch, colon, rest = evr.partition(":")
    version, _, release = (rest if colon else evr).rpartition("-")
    return Nevra(name=name, epoch=epoch if colon else "0", version=version, release=release, arch=arch)
