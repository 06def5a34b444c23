"""What comes home of measurements that a node has made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from envbuild import store
from envbuild.errors import EngineError
from envbuild.executors import Attempt
from envbuild.pipeline.cluster import Result
from envbuild.pipeline.sessions import SIDES
from envbuild.profile import files
from envbuild.profile.comparing import Comparison
from envbuild.profile.document import Measurement, Node

SCHEMA = "envbuild.compare/1"


def measurement(result: Result) -> Measurement:
    """The measurement that a task has printed, with the name of its node.

    Raises:
        InputError: It is none that this envbuild knows.
    """
    node = result.ending.node
    return _named(files.measurement(result.document, f"the measurement of {node}"), node)


def comparison(result: Result) -> Comparison | None:
    """The comparison that a task has printed; None where it came to none, or another envbuild made it."""
    found = result.document.get("comparison") if result.document.get("schema") == SCHEMA else None
    if not isinstance(found, dict) or result.ending.interrupted or result.ending.message:
        return None
    fields = {name: value for name, value in found.items() if name not in ("delta", "differs")}
    try:
        return TypeAdapter(Comparison).validate_python(fields)
    except ValidationError:
        return None


def verdict(attempt: Attempt) -> str | None:
    """The answer of a comparison, for a list of runs."""
    try:
        found: Any = TypeAdapter(dict[str, Any]).validate_json(attempt.result.read_bytes())
        return str(found["comparison"]["verdict"]) if found.get("schema") == SCHEMA else None
    except (OSError, ValidationError, KeyError, TypeError):
        return None


def leave(folder: Path, base: Measurement, candidate: Measurement) -> None:
    """On the node: write both sides beside the result."""
    for name, side in zip(SIDES, (base, candidate), strict=True):
        store.write_json(folder / f"{name}.json", files.document(side))


def sides(result: Result) -> tuple[Measurement, Measurement]:
    """Both sides of a comparison, with the name of their node.

    Raises:
        EngineError: The attempt has left none.
        InputError: They are none that this envbuild knows.
    """
    if result.ending.attempt is None:
        raise EngineError(f"{result.name}: nothing was launched")
    folder, node = result.ending.attempt.path, result.ending.node
    base, candidate = (_named(files.read(folder / f"{name}.json"), node) for name in SIDES)
    return base, candidate


def keep_sides(run: str, base: Measurement, candidate: Measurement) -> tuple[Path, ...]:
    """Write both sides into this host's store; returns where."""
    paths = tuple(store.home() / "measurements" / f"{run}-{name}.json" for name in SIDES)
    for path, side in zip(paths, (base, candidate), strict=True):
        store.write_json(path, files.document(side))
    return paths


def _named(found: Measurement, node: str) -> Measurement:
    """With the node's name, where it does not name its nodes itself."""
    launches = tuple(
        each if each.nodes or not node else each.model_copy(update={"nodes": (Node(name=node),)})
        for each in found.launches
    )
    return found.model_copy(update={"launches": launches})
