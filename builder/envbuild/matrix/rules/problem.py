"""What a rule says about a row, and words that several rules share."""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from dataclasses import dataclass

from envbuild.facts import Fact, Facts
from envbuild.facts.versions import neighbours
from envbuild.matrix.tree import KeyPath
from envbuild.model import Cuda, Environment, Mark, Severity

# What an info about a fact that the build measures anyway advises.
MEASURED = "nothing to do: the finished image is measured"


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One objection of a rule.

    Attributes:
        key: Path of the value in the row that is wrong, or that nothing is known about.
        fix: Concrete values that would pass.
        facts: What the objection stands on; how well it stands becomes part of the finding's text.
        ends: The last day on which there is no objection; whoever knows the day it is looks at it (``check``).
        waived: What is said behind it where a waiver of the row lives with it.
    """

    key: KeyPath
    message: str
    fix: str
    severity: Severity = Severity.ERROR
    facts: tuple[Fact, ...] = ()
    ends: datetime.date | None = None
    waived: str = ""


def unknown(key: KeyPath, what: str, unjudged: str, *, known: Iterable[str] = (), near: str = "") -> Problem:
    """The facts do not know a value, so something about the row is unverified.

    Args:
        what: The value, such as ``torch 2.99.0``.
        unjudged: What could not be judged for that reason, such as ``its NCCL``.
        known: Versions that the facts do know, to name the nearest ones; ``near`` is the version asked for.
    """
    nearest = " and ".join(neighbours(near, known)) if near else ", ".join(known)
    return Problem(
        key=key,
        severity=Severity.WARNING,
        message=f"{what} is unknown to the facts, so {unjudged} is unverified",
        fix=f"check it by hand, or use what the facts know: {nearest}" if nearest else "check it by hand",
    )


def unknown_torch(env: Environment, facts: Facts, unjudged: str) -> Problem:
    """The facts do not know the row's torch, or not that build of it."""
    known = facts.versions.get(env.torch.version)
    return unknown(
        ("torch", "build" if known else "version"),
        f"torch {env.torch_version}",
        unjudged,
        known=known.builds if known else facts.versions,
        near="" if known else env.torch.version,
    )


def unchecked(key: KeyPath, message: str, *facts: Fact, fix: str = MEASURED) -> Problem:
    """Something agrees with a fact that was not fully checked: it is said, and stops nothing."""
    return Problem(key=key, severity=Severity.INFO, message=message, fix=fix, facts=facts)


def qualification(facts: tuple[Fact, ...]) -> str:
    """`` (unverified: ...)`` for facts that are not fully checked; empty when all are."""
    weak = {fact.mark.value: fact for fact in facts if fact.mark is not Mark.VERIFIED}
    return "".join(f" ({mark} fact{': ' + fact.note if fact.note else ''})" for mark, fact in weak.items())


def either(*ways: str) -> str:
    """Ways to repair something, as one text; empty ones are left out."""
    return ", or ".join(way for way in ways if way)


def compiling(env: Environment) -> Cuda | None:
    """The row's toolkit, if it compiles anything."""
    return env.cuda if env.accelerator == "cuda" and env.cuda and env.cuda.toolkit != "none" else None


def gpu_ops(env: Environment, facts: Facts) -> list[str]:
    """The row's ops that hold GPU code."""
    known = facts.deepspeed.ops
    version = env.deepspeed.version
    return [op for op in env.deepspeed.ops if op in known and known[op].needs_nvcc(env.accelerator, version)]
