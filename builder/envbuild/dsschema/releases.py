"""The stored data, and which of it answers for a release."""

from __future__ import annotations

import json
import re
from functools import cache, partial
from pathlib import Path
from typing import Any

from envbuild.dsschema.types import Deprecation, Key, Schema, Section
from envbuild.errors import InputError

FILE = Path(__file__).with_name("schema.json")
_DATA: dict[str, Any] = json.loads(FILE.read_bytes())
DATE: str = _DATA["date"]
SOURCE: str = _DATA["source"]
# Releases that were read, oldest first.
VERSIONS: tuple[str, ...] = tuple(_DATA["releases"])
NEWEST = VERSIONS[-1]
# Numbers, and what a build of one's own or a release candidate has behind them: 0.16.9+cu124, 0.20.0rc1, 0.19.8.dev0.
_VERSION = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,6})*)(?:[.+_-]?[A-Za-z][A-Za-z0-9.+_-]*|\+[A-Za-z0-9.+_-]+)?", re.ASCII)


def release(version: str) -> tuple[int, ...]:
    """A version for comparing: its numbers, without what stands behind them.

    Raises:
        InputError: It is no version.
    """
    match = _VERSION.fullmatch(version)
    if match is None or len(version) > 60:
        shown = "".join(letter if letter.isprintable() else "?" for letter in version[:60])
        raise InputError(f"DeepSpeed: '{shown}' is no version", hint="Say it like 0.19.8.")
    numbers = tuple(int(part) for part in match[1].split("."))
    return numbers + (0,) * (3 - len(numbers))


def known(version: str) -> str:
    """The version, where anything is known of it.

    Raises:
        InputError: It is no version, or an older one than the first that was read.
    """
    if release(version) < release(VERSIONS[0]):
        raise InputError(
            f"DeepSpeed {version}: nothing is known of releases before {VERSIONS[0]}",
            hint=f"Say --deepspeed {VERSIONS[0]} for the oldest one that was read.",
        )
    return version


@cache
def for_version(version: str) -> Schema:
    """What a release knows: its own data, else that of the nearest lower release that was read."""
    wanted = release(version)
    lower = [each for each in VERSIONS if release(each) <= wanted]
    measured = lower[-1] if lower else VERSIONS[0]
    said = _DATA["releases"][measured]
    return Schema(
        version=version, measured=measured, pydantic=said["pydantic"], root=_section(said["root"]),
        by_stage={name: tuple(values) for name, values in said["by_stage"].items()},
        optimizers=tuple(said["optimizers"]), schedulers=said["schedulers"],
    )  # fmt: skip


@cache
def _section(number: int) -> Section:
    said = _DATA["sections"][number]
    entries = {}
    for name, key in said["keys"].items():
        made = partial(_key, key, name)
        # Only what differs from the name is stored.
        entries[name] = made
        for other in _DATA["keys"][key].get("also", ()):
            entries[other] = made
    return Section(extra=said["extra"], model=said.get("model", ""), removed=said.get("removed", {}), entries=entries)


@cache
def _key(number: int, name: str) -> Key:
    said = _DATA["keys"][number]
    old = said.get("deprecated")
    return Key(
        names=(name, *said.get("also", ())), types=tuple(said.get("types", ())), default=said.get("default"),
        allowed=tuple(said.get("enum", ())), bounds=tuple(said.get("bounds", {}).items()), takes=said.get("takes", ""),
        required=said.get("required", False), section=_section(said["section"]) if "section" in said else None,
        deprecated=Deprecation(new=old["new"], message=old["message"], becomes=old.get("becomes", {})) if old else None,
    )  # fmt: skip
