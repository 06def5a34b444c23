"""Baselines: measurements that a team keeps in git, one file for each key, with the history of why each was taken."""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import json
import math
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AwareDatetime, Field, ValidationError

from envbuild import store
from envbuild.errors import InputError
from envbuild.model.words import Frozen, Line
from envbuild.profile import files, keys, summary
from envbuild.profile.document import Key, Measurement
from envbuild.profile.figures import Seconds

FOLDER = "baselines"
SCHEMA: Literal["envbuild.baseline/1"] = "envbuild.baseline/1"
# In what a baseline and its successor may differ: another image is what it is for, and another probe comes with every
# envbuild. Whoever promotes has looked, and says why.
_SUCCEEDED = ("image", "probe")


class Promotion(Frozen):
    """Why a measurement became the baseline, and what it was then.

    Attributes:
        measurement: SHA-256 of the measurement's canonical JSON.
        step_seconds: Its median step.
    """

    at: AwareDatetime
    reason: Line
    measurement: Line
    image: Line | None = None
    step_seconds: Seconds | None = None


class Baseline(Frozen):
    """One baseline: the measurement that counts, and every promotion before it, oldest first."""

    schema_: Literal["envbuild.baseline/1"] = Field(SCHEMA, alias="schema")
    name: Line
    history: Annotated[tuple[Promotion, ...], Field(min_length=1)]
    measurement: Measurement


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A baseline and its file."""

    path: Path
    baseline: Baseline


@dataclass(frozen=True, slots=True, kw_only=True)
class Broken:
    """Something in the folder that should be a baseline and is none."""

    path: Path
    error: InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class Shelf:
    """What a folder holds. A file that cannot be read is no reason not to read the others."""

    stored: tuple[Stored, ...] = ()
    broken: tuple[Broken, ...] = ()


def name_of(key: Key) -> str:
    """``cpu-tiny-2x-1f0c93a2``: row, model, ranks, and a hash of what must be equal for a comparison.

    The image is not in it: a baseline is what the next image of the row is compared with. Memory is in it as coarsely
    as ``fits`` tells it apart: of two machines with one name it is the same.
    """
    memory = key.hardware.memory_bytes
    hardware = key.hardware.model_dump(mode="json")
    hardware["memory_bytes"] = math.floor(-math.log(memory) / math.log1p(-keys.MEMORY)) if memory else memory
    same = {
        "config": key.config, "model": key.model, "hardware": hardware,
        "world_size": key.world_size, "nodes": key.nodes, "accelerator": key.accelerator, "row": key.row,
    }  # fmt: skip
    digest = hashlib.sha256(json.dumps(same, sort_keys=True).encode()).hexdigest()[:8]
    words = [key.row or "any", key.model or "own", f"{key.world_size or 0}x", digest]
    return "-".join(word_of(word) for word in words)[:120]


def word_of(word: str) -> str:
    """As a word is in the name of a baseline."""
    return re.sub(r"[^a-z0-9.]+", "-", word.lower()).strip("-.") or "x"


def fits(one: Key, other: Key) -> bool:
    """Whether one baseline is for both: they are equal but for the image and its versions, and for the probe."""
    ours, theirs = one.hardware.memory_bytes, other.hardware.memory_bytes
    memory = ours == theirs if ours is None or theirs is None else keys.same_memory(ours, theirs)
    return memory and _same(one) == _same(other)


def _same(key: Key) -> tuple[object, ...]:
    hardware = key.hardware.model_copy(update={"memory_bytes": None})
    return key.config, key.model, hardware, key.world_size, key.nodes, key.accelerator, key.row


def of_key(known: Iterable[Baseline], key: Key) -> Baseline | None:
    """The baseline that a measurement with this key is compared with; None where there is none.

    By what it was measured with and not by its name: names of older versions told machines apart by the byte.
    """
    found = [each for each in known if fits(each.measurement.key, key)]
    memory = key.hardware.memory_bytes or 0

    def distance(each: Baseline) -> tuple[int, float, str]:
        return (
            abs((each.measurement.key.hardware.memory_bytes or 0) - memory),
            -each.history[-1].at.timestamp(),
            each.name,
        )

    return min(found, key=distance) if found else None


def read(path: Path) -> Stored:
    """Read one baseline.

    Raises:
        InputError: It is missing or not what a baseline looks like.
    """
    data = files.content(path)
    try:
        return Stored(path=path, baseline=Baseline.model_validate_json(data))
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        if first["type"] == "json_invalid":
            raise InputError(f"{path}: not valid JSON: {first['msg'].removeprefix('Invalid JSON: ')}") from error
        raise InputError(f"{path}: not a baseline: {files.place(first['loc'])}: {first['msg']}") from error


def every(folder: Path) -> Shelf:
    """All baselines of a folder, and what is beside them; nothing where there is no folder."""
    found = [_seen(path) for path in sorted(folder.glob("*.json"))] if folder.is_dir() else []
    return Shelf(
        stored=tuple(each for each in found if isinstance(each, Stored)),
        broken=tuple(each for each in found if isinstance(each, Broken)),
    )


def _seen(path: Path) -> Stored | Broken:
    try:
        return read(path)
    except InputError as error:
        return Broken(path=path, error=error)


def find(folder: Path, name: str) -> Stored:
    """A baseline by its name or the start of it.

    Raises:
        InputError: There is none, there are several, or the one that is meant cannot be read.
    """
    shelf = every(folder)
    named: list[tuple[str, Stored | Broken]] = [(each.baseline.name, each) for each in shelf.stored]
    named += [(each.path.stem, each) for each in shelf.broken]
    exact = [pair for pair in named if pair[0] == name]
    fitting = exact or [pair for pair in named if pair[0].startswith(name)]
    if len(fitting) == 1:
        found = fitting[0][1]
        if isinstance(found, Broken):
            raise found.error
        return found
    known = ", ".join(each for each, _ in fitting or named) or "none"
    problem = f"{len(fitting)} baselines begin with '{name}'" if fitting else f"there is no baseline '{name}'"
    raise InputError(problem, hint=f"In {folder}: {known}. Add one with: envbuild baseline add M.json --reason TEXT")


def fitting(folder: Path, key: Key) -> Stored | None:
    """The baseline that a measurement with this key is compared with.

    Raises:
        InputError: What has its name cannot be read, or is another's.
    """
    path = folder / f"{name_of(key)}.json"
    if os.path.lexists(path) and not fits(read(path).baseline.measurement.key, key):
        raise InputError(
            f"{path}: it is of another key than its name says", hint="Move it away, or bring the right one back."
        )
    shelf = every(folder)
    found = of_key((each.baseline for each in shelf.stored), key)
    return next((each for each in shelf.stored if each.baseline is found), None)


@contextlib.contextmanager
def changing(folder: Path) -> Iterator[None]:
    """Nobody else with this store changes the folder's baselines meanwhile: what is written follows from what is read.

    The lock lies in the store, because the folder is for git.

    Raises:
        EngineError: The store cannot be written.
    """
    place = hashlib.sha256(os.fsencode(folder.resolve())).hexdigest()[:16]
    with store.FileLock(store.home() / "locks" / f"baselines-{place}.lock"):
        yield


def promoted(before: Baseline | None, measurement: Measurement, *, reason: str, now: datetime.datetime) -> Baseline:
    """The baseline that this measurement makes, with its history. It keeps the name of the one before.

    Raises:
        InputError: The reason is no line of text, or it is another key's.
    """
    if before is not None:
        apart = [
            each for each in keys.differences(before.measurement.key, measurement.key) if each.aspect not in _SUCCEEDED
        ]
        if apart:
            what = "; ".join(f"{each.name}: {each.base} -> {each.candidate}" for each in apart)
            raise InputError(
                f"it is no successor of '{before.name}': {what}",
                hint="A measurement of another key is a baseline of its own: envbuild baseline add.",
            )
    text = " ".join(reason.split())
    if not text:
        raise InputError("a baseline needs a reason", hint='Such as --reason "torch 2.13, measured on node 7"')
    try:
        entry = Promotion(
            at=now, reason=text, measurement=digest_of(measurement), image=measurement.key.image,
            step_seconds=summary.step_median(measurement),
        )  # fmt: skip
    except ValidationError as error:
        raise InputError(f"--reason: {error.errors()[0]['msg']}", hint="One line of at most 500 letters.") from error
    history = (*(before.history if before else ()), entry)
    name = before.name if before is not None else name_of(measurement.key)
    return Baseline(schema=SCHEMA, name=name, history=history, measurement=measurement)


def digest_of(measurement: Measurement) -> str:
    """SHA-256 of the canonical JSON."""
    return hashlib.sha256(store.encode_json(files.as_dict(measurement)).encode()).hexdigest()


def write(folder: Path, baseline: Baseline, *, over: Path | None = None) -> Path:
    """Write it under its name, whole or not at all; returns where.

    Args:
        over: The file of the one before, which may be called otherwise.

    Raises:
        EngineError: The folder cannot be written.
    """
    path = over or folder / f"{baseline.name}.json"
    store.write_json(path, as_dict(baseline))
    return path


def as_dict(baseline: Baseline) -> dict[str, Any]:
    """The file's content."""
    return {
        "schema": SCHEMA,
        "name": baseline.name,
        "history": history(baseline.history),
        "measurement": files.as_dict(baseline.measurement),
    }


def history(entries: Sequence[Promotion]) -> list[dict[str, Any]]:
    """The promotions for JSON."""
    return [each.model_dump(mode="json", exclude_none=True) for each in entries]
