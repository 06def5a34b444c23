"""The facts one by one, for people who look something up: where each lies, what it says, and who says so."""

from __future__ import annotations

import datetime
import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envbuild.errors import InputError
from envbuild.facts import read
from envbuild.facts.versions import starts_with

# What upstream publishes moves on; facts that nobody has looked at for so long deserve a refresh (days).
STALE_AFTER = 183
_EVIDENCE = frozenset({"mark", "source", "date", "note"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One fact.

    Attributes:
        file: The facts file, without ``.yaml``.
        path: Where in the file; an entry of a list is named by the versions that it is for.
        values: What it says, by key.
    """

    file: str
    path: tuple[str, ...]
    values: Mapping[str, str]
    mark: str
    source: str
    date: datetime.date | None
    note: str

    @property
    def name(self) -> str:
        """The path in one word."""
        return ".".join(self.path)


@dataclass(frozen=True, slots=True, kw_only=True)
class FactsFile:
    """One facts file that counts here.

    Attributes:
        newer: A file of this name further down the search path whose newest fact is younger; it does not count.
    """

    name: str
    path: Path
    entries: tuple[Entry, ...]
    newer: Path | None = None

    @property
    def dates(self) -> tuple[datetime.date, ...]:
        """The dates of its facts, oldest first."""
        return tuple(sorted(entry.date for entry in self.entries if entry.date is not None))

    def marked(self, mark: str) -> int:
        """How many of its facts have a mark."""
        return sum(entry.mark == mark for entry in self.entries)

    def stale(self, today: datetime.date) -> int:
        """How many of its facts nobody has looked at for half a year."""
        return sum((today - date).days > STALE_AFTER for date in self.dates)


def overview(folders: Sequence[Path]) -> tuple[FactsFile, ...]:
    """The facts files that count, with all their facts.

    Raises:
        InputError: One cannot be read.
    """
    return tuple(_file(path, folders) for path in read.paths(folders))


def look_up(folders: Sequence[Path], words: Sequence[str]) -> tuple[Entry, ...]:
    """The facts that all of the words speak of: a file, a key, or a version (2.7 finds 2.7.0 and 2.7.1).

    Raises:
        InputError: There is none, or the facts cannot be read.
    """
    entries = [entry for file in overview(folders) for entry in file.entries]
    found = tuple(entry for entry in entries if all(_speaks_of(entry, word.lower()) for word in words))
    # `torch 2.7.1` is about that release, though toolkit facts may name a 2.7.1 too.
    if found:
        return found
    known = {word for entry in entries for word in (entry.file, *entry.path)}
    lost = [word for word in words if not any(_speaks_of(entry, word.lower()) for entry in entries)]
    close = [match for word in lost for match in difflib.get_close_matches(word, known, n=2)]
    what = f"nothing is known about {' '.join(words)}"
    raise InputError(what, hint=f"did you mean {' or '.join(close)}?" if close else "see: envbuild facts list")


def _file(path: Path, folders: Sequence[Path]) -> FactsFile:
    file = FactsFile(name=path.stem, path=path, entries=tuple(_entries(path)))
    newest = max(file.dates, default=datetime.date.min)
    for folder in folders:
        other = folder / path.name
        if other != path and other.is_file():
            dates = [entry.date for entry in _entries(other) if entry.date is not None]
            if max(dates, default=datetime.date.min) > newest:
                return FactsFile(name=file.name, path=path, entries=file.entries, newer=other)
    return file


def _entries(path: Path) -> Iterator[Entry]:
    yield from _below(path.stem, (), read.document(path))


def _below(file: str, path: tuple[str, ...], value: Any) -> Iterator[Entry]:
    if isinstance(value, Mapping):
        if "mark" in value:
            yield _entry(file, path, value)
        for key, each in value.items():
            yield from _below(file, (*path, str(key)), each)
    elif isinstance(value, list):
        for number, each in enumerate(value):
            if isinstance(each, Mapping):
                yield from _below(file, (*path, _label(each, number)), each)


def _label(entry: Mapping[str, Any], number: int) -> str:
    words = [f"{key} {entry[key]}" for key in ("since", "through", "build", "platform") if key in entry]
    return ", ".join(words) or str(number + 1)


def _entry(file: str, path: tuple[str, ...], value: Mapping[str, Any]) -> Entry:
    said = {str(key): _text(each) for key, each in value.items() if key not in _EVIDENCE and not _nested(each)}
    date = value.get("date")
    return Entry(
        file=file, path=path, values=said, mark=str(value["mark"]), source=str(value.get("source", "")),
        date=date if isinstance(date, datetime.date) else None, note=str(value.get("note", "")),
    )  # fmt: skip


def _nested(value: Any) -> bool:
    """Whether a value holds facts of its own, which are told by themselves."""
    if isinstance(value, Mapping):
        return "mark" in value or any(_nested(each) for each in value.values())
    return isinstance(value, list) and any(_nested(each) for each in value)


def _text(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(_text, value))
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_text(each)}" for key, each in value.items())
    return str(value).lower() if isinstance(value, bool) else str(value)


def _speaks_of(entry: Entry, word: str) -> bool:
    names = [entry.file, *(part.lower() for part in entry.path)]
    if word in names:
        return True
    return word[:1].isdigit() and any(starts_with(name, word) for name in names)
