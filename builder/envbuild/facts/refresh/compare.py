"""Readings against the facts: what is confirmed, what changes, and the files with the changes in them."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence

from packaging.version import InvalidVersion, Version

from envbuild.errors import InputError
from envbuild.facts.refresh.document import Document
from envbuild.facts.refresh.reading import Change, Notebook, Reading, Value

# A date that is not older than this stays: a diff of dates alone is nothing to review (days).
RENEW_AFTER = 30
_EVIDENCE = ("mark", "source", "date")


def compare(book: Notebook, documents: Mapping[str, Document], today: datetime.date) -> tuple[list[Change], int]:
    """Put every reading into its document; returns the changes, and how many facts stay as they are.

    What a document cannot take (a layout, an alias) is written down in the book as not read.
    """
    changes: list[Change] = []
    confirmed = 0
    for reading in sorted(book.readings, key=_order):
        document = documents[reading.file]
        try:
            made = _put(document, reading, today)
        except InputError as error:
            book.missed(_name(reading), error.message, failed=True)
            continue
        changes += made
        confirmed += not made
    return changes, confirmed


def _put(document: Document, reading: Reading, today: datetime.date) -> list[Change]:
    found = document.get(reading.path)
    if found is None:
        evidence = {"mark": "verified", "source": reading.source, "date": today.isoformat()}
        document.add(reading.path, {**reading.values, **evidence}, before=reading.before)
        return [_change(reading, key, "added", None, _text(value), today) for key, value in reading.values.items()]
    was = str(found.get("mark", ""))
    changes: list[Change] = []
    for key, value in reading.values.items():
        if key not in found:
            changes.append(_change(reading, key, "added", None, _text(value), today, was))
        elif not _same(found[key], value):
            changes.append(_change(reading, key, "changed", _text(found[key]), _text(value), today, was))
    if not changes and was != "verified":
        changes.append(_change(reading, "mark", "proven", was, "verified", today, was))
    if not changes and _age(found, today) > RENEW_AFTER:
        changes.append(_change(reading, "date", "renewed", str(found.get("date")), today.isoformat(), today, was))
    if changes:
        _write(document, reading, changes, found, today)
    return changes


def _write(
    document: Document, reading: Reading, changes: Sequence[Change], found: Mapping[str, Value], today: datetime.date
) -> None:
    before: str | None = None
    for key, value in reading.values.items():
        if any(change.key == key for change in changes):
            document.set(reading.path, key, value, after=before)
        before = key
    evidence = {"mark": "verified", "source": reading.source, "date": today.isoformat()}
    for key in _EVIDENCE:
        if found.get(key) != evidence[key]:
            document.set(reading.path, key, evidence[key])
    # It spoke of the evidence that this one replaces.
    if found.get("mark") != "verified" or any(change.kind == "changed" for change in changes):
        document.drop(reading.path, "note")


def _age(found: Mapping[str, Value], today: datetime.date) -> int:
    try:
        return (today - datetime.date.fromisoformat(str(found.get("date")))).days
    except ValueError:
        return RENEW_AFTER + 1


def _same(old: Value, new: Value) -> bool:
    if isinstance(old, tuple) or isinstance(new, tuple):
        return old == new
    try:
        return Version(old) == Version(new)
    except InvalidVersion:
        return old == new


def _change(
    reading: Reading, key: str, kind: str, old: str | None, new: str, today: datetime.date, was: str | None = None
) -> Change:
    return Change(
        file=reading.file, fact=_dotted(reading), key=key, kind=kind, old=old, new=new, source=reading.source,
        date=today, was=was or None,
    )  # fmt: skip


def _text(value: Value) -> str:
    return ", ".join(value) if isinstance(value, tuple) else value


def _dotted(reading: Reading) -> str:
    return ".".join(map(str, reading.path))


def _name(reading: Reading) -> str:
    return f"{reading.file}.yaml: {_dotted(reading)}"


def _order(reading: Reading) -> tuple[str, list[tuple[int, ...]]]:
    """By file, kind and version; within one version as they were read, which is the order of a new fact's keys."""
    return reading.file, [_rank(str(step)) for step in reading.path[:2]]


def _rank(step: str) -> tuple[int, ...]:
    try:
        return Version(step).release
    except InvalidVersion:
        return tuple(map(ord, step))
