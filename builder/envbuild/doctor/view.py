"""What a check sees: a machine as it was collected, the facts, and the row it is held to."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from envbuild.doctor.collection import Collection
from envbuild.model import Environment, Finding

if TYPE_CHECKING:
    from envbuild.facts import Facts


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """A machine under examination.

    Attributes:
        row: What it is meant to be; None where nobody said.
        said: The fields of the row that were asked for one by one (``doctor.intended``); None: the whole row counts.
        gpus: Ranks that would train on this machine, for sums of memory; None: as many as there are GPUs, else 1.
        params: Parameters of the model that is to be trained, for sums of memory; None where nobody said.
        today: For ends of support.
    """

    collection: Collection
    facts: Facts
    row: Environment | None = None
    said: frozenset[str] | None = None
    gpus: int | None = None
    params: int | None = None
    today: datetime.date = field(default_factory=datetime.date.today)

    def package(self, name: str) -> str | None:
        """Version of an installed Python distribution, whatever way its name is written."""
        return installed(self.collection, name)


def installed(collection: Collection, name: str) -> str | None:
    """Version of an installed Python distribution; of one that is there twice, of the one that counts."""
    wanted, packages = normalised(name), collection.interpreter.packages if collection.interpreter else ()
    return next((each.version for each in packages if normalised(each.name) == wanted), None)


def normalised(name: str) -> str:
    """A distribution's name as PEP 503 compares it."""
    return name.lower().replace("_", "-").replace(".", "-")


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing that is looked at.

    Attributes:
        name: Stable, such as ``libstdcxx``; its findings' rules are it, or begin with it and a dot.
        title: What it holds a machine to, in one line, for docs/doctor.md and ``doctor --list``.
        explains: Rules (or whole checks) of other findings that are echoes when this one is an error.
    """

    name: str
    title: str
    look: Callable[[View], Iterable[Finding]]
    explains: tuple[str, ...] = ()
