"""Read what ``uv pip compile`` printed, strictly, and say which build step installs what."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from packaging.utils import canonicalize_name

from envbuild.errors import EngineError
from envbuild.model import LockGroup

_PIN = re.compile(r"(?P<name>[a-z0-9][a-z0-9._-]*)==(?P<version>[A-Za-z0-9.+!]+)(?: \\)?", re.IGNORECASE)
_HASH = re.compile(r" {4}--hash=(?P<hash>[a-z0-9]+:[0-9a-f]+)(?: \\)?")
_VIA = re.compile(r" {4}# via(?: (?P<parent>\S.*))?")
_VIA_MORE = re.compile(r" {4}#   (?P<parent>\S.*)")
_PARENT = re.compile(r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[^\]]*\])?")
_SHA256 = re.compile(r"sha256:[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """One package of a resolution.

    Attributes:
        name: Canonical name.
        parents: Canonical names of the packages that need it; empty when only the row itself asks for it.
    """

    name: str
    version: str
    hashes: tuple[str, ...]
    parents: tuple[str, ...]


def parse(text: str) -> tuple[Resolved, ...]:
    """The packages in the output of ``uv pip compile --no-header --annotation-style split``, by name.

    Raises:
        EngineError: A line has another form (a direct URL, say), a package comes twice, or a hash is not SHA-256.
    """
    packages: list[tuple[str, str, list[str], list[str]]] = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        if pin := _PIN.fullmatch(line):
            packages.append((canonicalize_name(pin["name"]), pin["version"], [], []))
        elif packages and (found := _HASH.fullmatch(line)):
            packages[-1][2].append(found["hash"])
        elif packages and (via := _VIA.fullmatch(line) or _VIA_MORE.fullmatch(line)):
            # "-r FILE" and "-c FILE" are what the row asks for.
            if (said := via["parent"]) and (parent := _PARENT.fullmatch(said)):
                packages[-1][3].append(canonicalize_name(parent["name"]))
        else:
            raise EngineError(
                f"uv's output has a line that envbuild does not understand (line {number}): {line.strip()[:120]}",
                hint="this version of uv may be newer than envbuild knows; the README names the tested one",
            )
    names = [name for name, *_ in packages]
    if doubled := sorted({name for name in names if names.count(name) > 1}):
        raise EngineError(f"uv resolved {', '.join(doubled)} more than once")
    for name, version, hashes, _ in packages:
        if other := sorted({value.partition(":")[0] for value in hashes if not _SHA256.fullmatch(value)}):
            raise EngineError(
                f"an index lists {name} {version} with {', '.join(other)} hashes and no SHA-256",
                hint="locks need SHA-256; take this package from another index or a wheel folder",
            )
    return tuple(
        Resolved(
            name=name, version=version, hashes=tuple(sorted(set(hashes))), parents=tuple(sorted(set(parents) - {name}))
        )
        for name, version, hashes, parents in sorted(packages)
    )


def assign(
    everything: Iterable[Resolved],
    runtime: Iterable[Resolved],
    *,
    built: frozenset[str],
    tools: Iterable[str],
    torch: Iterable[str],
) -> dict[str, LockGroup]:
    """The group of every package of ``everything``.

    Args:
        everything: The resolution of all requirements.
        runtime: The same without the toolkit. What is only in ``everything`` is needed for compiling alone. (The
            parents do not tell: torch and the toolkit share packages whose extras differ, and an edge has no extras.)
        built: Names that are compiled from source.
        tools: Names whose needs go first, since they install the rest.
        torch: Names whose needs are one layer with torch.
    """
    needed = {package.name for package in runtime}
    children: dict[str, set[str]] = {}
    for package in runtime:
        for parent in package.parents:
            children.setdefault(parent, set()).add(package.name)
    first = _closure(tools, children) & needed
    second = _closure(torch, children) & needed
    groups: dict[str, LockGroup] = {}
    for package in everything:
        name = package.name
        if name in built:
            groups[name] = "ops"
        elif name not in needed:
            groups[name] = "toolkit"
        else:
            groups[name] = "tools" if name in first else "torch" if name in second else "deps"
    return groups


def _closure(roots: Iterable[str], children: Mapping[str, set[str]]) -> set[str]:
    found: set[str] = set()
    todo = list(roots)
    while todo:
        name = todo.pop()
        if name not in found:
            found.add(name)
            todo += children.get(name, ())
    return found
