"""What an examination came to, as words in reading order: the one thing that terminal, page and ticket show."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from envbuild.doctor.answers import Answer
from envbuild.doctor.changes import Change
from envbuild.doctor.collection import Collection
from envbuild.doctor.layers import Layer
from envbuild.doctor.order import Group
from envbuild.doctor.summary import head
from envbuild.doctor.text import count, line, moment
from envbuild.model import Finding, Severity


@dataclass(frozen=True, slots=True, kw_only=True)
class Since:
    """What a comparison with a snapshot found.

    Attributes:
        taken: When the snapshot was taken.
        strangers: Why it may be of another environment, in words.
        fresh: Rule and subject of the findings that the snapshot does not have.
        gone: Its findings that are no more.
    """

    taken: str
    changes: tuple[Change, ...] = ()
    strangers: tuple[str, ...] = ()
    fresh: frozenset[tuple[str, str]] = frozenset()
    gone: tuple[Finding, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """An examination, every string of it one line that can be shown anywhere.

    Attributes:
        subject: What was examined: an image's name, or ``this machine``.
        held: What it was held to, such as a row's name; empty where nobody said.
        head: The machine in a few lines: name and value.
        looked: How many checks have looked.
        problems: What could not be collected, and why.
    """

    subject: str
    taken: str
    held: str
    head: tuple[tuple[str, str], ...]
    layers: tuple[Layer, ...]
    answers: tuple[Answer, ...]
    groups: tuple[Group, ...]
    looked: int
    since: Since | None = None
    problems: tuple[str, ...] = ()

    def fresh(self, finding: Finding) -> bool:
        """Whether the snapshot does not have it."""
        return self.since is not None and (finding.rule, finding.subject) in self.since.fresh

    def of(self, severity: Severity) -> int:
        """Roots of a severity."""
        return sum(group.root.severity is severity for group in self.groups)

    @property
    def wrong(self) -> bool:
        """Whether an error was found."""
        return self.of(Severity.ERROR) > 0

    @property
    def sums(self) -> str:
        """What was found, as one line, and where to begin."""
        looked = count(self.looked, "check")
        errors, warnings = self.of(Severity.ERROR), self.of(Severity.WARNING)
        echoes = sum(len(group.echoes) for group in self.groups)
        parts = [count(errors, "error")] if errors else ["no error"]
        parts += [count(warnings, "warning")] if warnings else []
        parts += [f"{count(self.of(Severity.INFO), 'note')}"] if self.of(Severity.INFO) else []
        told = f"{looked}: {', '.join(parts)}"
        if echoes:
            told += f", and {count(echoes, 'finding')} that should go away with {'it' if errors == 1 else 'them'}"
        return f"{told}."

    @property
    def first(self) -> str:
        """The first thing to do, as one line; empty where nothing is wrong."""
        if not self.wrong:
            return ""
        root = self.groups[0].root
        what = root.fix or root.message
        return f"Begin with number 1 ({root.rule}): {what}"


def report(
    collection: Collection,
    grouped: Sequence[Group],
    *,
    layers: Iterable[Layer],
    answers: Iterable[Answer],
    looked: int,
    held: str = "",
    since: Since | None = None,
    unanswered: str = "",
) -> Report:
    """Bring together what is to be shown; strings of the collection are made harmless here, once for every view."""
    return Report(
        subject=line(f"image {collection.image}") if collection.image else "this machine",
        taken=moment(collection.taken),
        held=line(held),
        head=tuple((name, line(value)) for name, value in head(collection)),
        layers=tuple(_clean(each) for each in layers),
        answers=tuple(_clean(each) for each in answers),
        groups=tuple(
            Group(root=finding(each.root), echoes=tuple(finding(echo) for echo in each.echoes)) for each in grouped
        ),
        looked=looked,
        since=_since(since) if since is not None else None,
        problems=tuple(
            line(each)
            for each in (
                *((f"the loader's answers: {unanswered}",) if unanswered else ()),
                *(f"libraries: {each}" for each in collection.libraries.errors),
                *(f"{each.part}: {each.error}" for each in collection.errors),
            )
        ),
    )


def finding(found: Finding) -> Finding:
    """A finding whose strings can be shown anywhere; the lines of a command stay lines."""
    command = "\n".join(line(each) for each in found.command.splitlines())
    return dataclasses.replace(_clean(found), command=command)


def _since(found: Since) -> Since:
    return Since(
        taken=moment(found.taken),
        changes=tuple(_clean(each) for each in found.changes),
        strangers=tuple(line(each) for each in found.strangers),
        fresh=frozenset((line(rule), line(subject)) for rule, subject in found.fresh),
        gone=tuple(finding(each) for each in found.gone),
    )


_T = TypeVar("_T", Finding, Layer, Answer, Change)


def _clean(value: _T) -> _T:
    strings = {each.name: getattr(value, each.name) for each in dataclasses.fields(value)}
    changed: dict[str, Any] = {name: line(text) for name, text in strings.items() if type(text) is str}
    changed |= {name: tuple(map(line, texts)) for name, texts in strings.items() if type(texts) is tuple}
    return dataclasses.replace(value, **changed)


def headline(found: Finding) -> str:
    """What is wrong with what; the subject is not said twice where the message names it itself."""
    return found.message if _words(found.subject) <= _words(found.message) else f"{found.subject}: {found.message}"


def _words(text: str) -> set[str]:
    """The words of a text; of ``numpy>=1.20`` and ``(CXX=/x/g++)`` each by itself."""
    return {word.rstrip(".") for word in re.split(r"[\s,:;()<>=!~'\"]+", text)}


def layer_words(layer: Layer, *, brief: bool = False) -> str:
    """A layer as the second half of a line: who compiled it, what it asks for, where it is."""
    strings = {"new": "new C++ strings", "old": "old C++ strings"}.get(layer.abi or "", "")
    needs = f"asks for {', '.join(layer.needs[:1] if brief else layer.needs)}" if layer.needs else ""
    has = f"has up to {', '.join(layer.provides[:1] if brief else layer.provides)}" if layer.provides else ""
    # Where the libraries are, a reader in a hurry does not ask; the run time's own file is in the next table.
    where = "" if brief and layer.name in ("op", "torch", "runtime") else layer.where
    parts = [layer.compiler, strings, needs, has, where]
    told = ", ".join(part for part in parts if part)
    note = "" if brief and layer.name == "runtime" else layer.note
    return f"{told} ({note})" if note and told else told or note
