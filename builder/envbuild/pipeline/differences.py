"""What differs between two rows, two locks, or two trees of plain values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from envbuild.model import Environment, Lock


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldChange:
    """One value of a row; None where it is not there. ``source`` is who says so now, with the mark."""

    path: str
    old: Any
    new: Any
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackageChange:
    """One package of a lock; None where it is not there."""

    name: str
    old: str | None
    new: str | None


def row_fields(
    before: Environment | Mapping[str, Any], after: Environment | Mapping[str, Any]
) -> Iterator[FieldChange]:
    """Every value of a row that is not what it was, by its dotted path."""
    for change in differences(_values(before), _values(after)):
        source = ""
        if isinstance(after, Environment) and change.path.partition(".")[0] not in ("sources", "claimed"):
            source = _source(after, change.path)
        yield FieldChange(path=change.path, old=change.old, new=change.new, source=source)


def _values(row: Environment | Mapping[str, Any]) -> Mapping[str, Any]:
    """What a row holds; who says so, and what it lives with, as one text each."""
    if not isinstance(row, Environment):
        return row
    values = row.model_dump(mode="json", exclude={"name"})
    for key, said in row.sources.items():
        note = f"; {said.note}" if said.note else ""
        values["sources"][key] = f"{said.mark.value}: {said.source} ({said.date}){note}"
    values["claimed"] = {key: f"{said.value} ({said.by}): {said.contradicted}" for key, said in row.claimed.items()}
    values["waivers"] = [f"{w.rule} {w.key} until {w.until}: {w.reason}" for w in row.waivers]
    return values


def _source(row: Environment, path: str) -> str:
    """Who vouches for a value: the source of the longest path that leads to it."""
    while path:
        if path in row.sources:
            said = row.sources[path]
            return f"{said.mark.value}: {said.source} ({said.date})"
        path = path.rpartition(".")[0]
    return ""


def differences(old: Any, new: Any, path: str = "") -> Iterator[FieldChange]:
    """Every leaf that is not the same; what is empty is as good as absent."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in dict.fromkeys([*new, *old]):
            yield from differences(old.get(key), new.get(key), f"{path}.{key}" if path else str(key))
    elif old != new and not (_empty(old) and _empty(new)):
        if isinstance(old, Mapping) or isinstance(new, Mapping):
            was, now = (each if isinstance(each, Mapping) else {} for each in (old, new))
            yield from differences(was, now, path)
        else:
            yield FieldChange(path=path, old=old, new=new)


def _empty(value: Any) -> bool:
    return value in (None, "", [], {})


def packages(old: Lock | str | None, new: Lock | str | None) -> Iterator[PackageChange]:
    """Every package of a lock whose version or files are not what they were."""
    if isinstance(old, str) or isinstance(new, str):
        return
    was, now = _pinned(old), _pinned(new)
    for name in sorted(was.keys() | now.keys()):
        if was.get(name) != now.get(name):
            before, after = (each[name][0] if name in each else None for each in (was, now))
            yield PackageChange(name=name, old=before, new=after)


def _pinned(lock: Lock | str | None) -> dict[str, tuple[str, Iterable[str]]]:
    if not isinstance(lock, Lock):
        return {}
    pinned: dict[str, tuple[str, Iterable[str]]] = {
        package.name: (package.version, package.hashes) for package in lock.packages
    }
    # The images that the row stands on, where the lock names them.
    if lock.base is not None:
        for name, digest in (("digest", lock.base.digest), ("toolkit_digest", lock.base.toolkit_digest)):
            if digest:
                pinned[f"base.{name}"] = digest[:19], ()
    return pinned
