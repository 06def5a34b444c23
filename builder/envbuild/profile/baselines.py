"""Baselines: measurements that a team keeps in git, one file for each key, with the history of why each was taken."""

from __future__ import annotations

import datetime
import hashlib
import json
import re
from collections.abc import Sequence
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


def name_of(key: Key) -> str:
    """``cpu-tiny-2x-1f0c93a2``: row, model, ranks, and a hash of what must be equal for a comparison.

    The image is not in it: a baseline is what the next image of the row is compared with.
    """
    same = {
        "config": key.config, "model": key.model, "hardware": key.hardware.model_dump(mode="json"),
        "world_size": key.world_size, "nodes": key.nodes, "accelerator": key.accelerator, "row": key.row,
    }  # fmt: skip
    digest = hashlib.sha256(json.dumps(same, sort_keys=True).encode()).hexdigest()[:8]
    words = [key.row or "any", key.model or "own", f"{key.world_size or 0}x", digest]
    return "-".join(re.sub(r"[^a-z0-9.]+", "-", word.lower()).strip("-.") or "x" for word in words)[:120]


def read(path: Path) -> Stored:
    """Read one baseline.

    Raises:
        InputError: It is missing or not what a baseline looks like.
    """
    value = store.read_json(path)
    try:
        return Stored(path=path, baseline=Baseline.model_validate(value))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))[:200]
        raise InputError(f"{path}: not a baseline: {place}: {first['msg']}") from error


def every(folder: Path) -> list[Stored]:
    """All baselines of a folder; none where there is no folder.

    Raises:
        InputError: One of them cannot be read.
    """
    return [read(path) for path in sorted(folder.glob("*.json"))] if folder.is_dir() else []


def find(folder: Path, name: str) -> Stored:
    """A baseline by its name or the start of it.

    Raises:
        InputError: There is none, or there are several.
    """
    found = every(folder)
    exact = [each for each in found if each.baseline.name == name]
    fitting = exact or [each for each in found if each.baseline.name.startswith(name)]
    if len(fitting) == 1:
        return fitting[0]
    known = ", ".join(each.baseline.name for each in fitting or found) or "none"
    problem = f"{len(fitting)} baselines begin with '{name}'" if fitting else f"there is no baseline '{name}'"
    raise InputError(problem, hint=f"In {folder}: {known}. Add one with: envbuild baseline add M.json --reason TEXT")


def fitting(folder: Path, key: Key) -> Stored | None:
    """The baseline that a measurement with this key is compared with.

    Raises:
        InputError: One in the folder cannot be read.
    """
    path = folder / f"{name_of(key)}.json"
    return read(path) if path.is_file() else None


def promoted(before: Baseline | None, measurement: Measurement, *, reason: str, now: datetime.datetime) -> Baseline:
    """The baseline that this measurement makes, with its history.

    Raises:
        InputError: The reason is no line of text, or it is another key's.
    """
    if before is not None:
        apart = [each for each in keys.differences(before.measurement.key, measurement.key) if each.aspect != "image"]
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
    return Baseline(schema=SCHEMA, name=name_of(measurement.key), history=history, measurement=measurement)


def digest_of(measurement: Measurement) -> str:
    """SHA-256 of the canonical JSON."""
    return hashlib.sha256(store.encode_json(files.as_dict(measurement)).encode()).hexdigest()


def write(folder: Path, baseline: Baseline) -> Path:
    """Write it where its key belongs, whole or not at all.

    Raises:
        EngineError: The folder cannot be written.
    """
    path = folder / f"{baseline.name}.json"
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
