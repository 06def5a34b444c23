"""What a task on a cluster is to run, and the files that go along with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from envbuild.executors import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """A file that a command reads, as it was when the command was typed: nodes need not see where it lies.

    Attributes:
        option: The option that names it.
        name: What it is called in the run's folder.
    """

    option: str
    name: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One task that is wanted.

    Attributes:
        name: What its audience knows it by.
        argv: The arguments of envbuild.
        row: The row that it is for: that decides which nodes will do; None where it is not known.
        inputs: What it reads; a copy goes along in the run's folder.
        values: Of variables that ``argv`` names: they go another way, since everybody can read a command line.
    """

    name: str
    argv: tuple[str, ...]
    row: str | None = None
    inputs: tuple[Input, ...] = ()
    values: Mapping[str, str] = field(default_factory=dict)

    def task(self, number: int, folder: Path) -> Task:
        """The same as a task of a run."""
        read = (f"{each.option}={folder / _name(each, number)}" for each in self.inputs)
        return Task(name=self.name, argv=(*self.argv[:1], *read, *self.argv[1:]))

    def files(self, number: int) -> tuple[tuple[str, str], ...]:
        """What it reads, by the names in the run's folder."""
        return tuple((_name(each, number), each.text) for each in self.inputs)


def _name(each: Input, number: int) -> str:
    return f"{number}-{each.name}"
