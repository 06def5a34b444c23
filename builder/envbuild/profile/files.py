"""Measurement files: read with clear errors and bounded memory, written so that equal ones are equal bytes."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from envbuild.errors import InputError
from envbuild.profile.document import SCHEMA, Document, Measurement

# Ten launches of 64 ranks, 200 steps and 16 columns are some 40 MiB.
MAX_BYTES = 512 * 1024 * 1024
_SHOWN = 5


def read(path: Path) -> Measurement:
    """Read one measurement.

    Raises:
        InputError: It is missing, too large, not JSON, or not this document; with the place.
    """
    data = content(path)
    try:
        return Document.model_validate_json(data).measurement
    except ValidationError as error:
        raise InputError(f"{path}: {_problems(error)}", hint=_hint(data)) from error


def measurement(value: Any, name: str) -> Measurement:
    """The measurement in a document that is parsed already.

    Raises:
        InputError: It is not this document; with the place.
    """
    try:
        return Document.model_validate(value).measurement
    except ValidationError as error:
        raise InputError(f"{name}: {_problems(error)}") from error


def as_dict(value: Measurement) -> dict[str, Any]:
    """What the document holds, without what is absent."""
    found: dict[str, Any] = _pruned(value.model_dump(mode="json", by_alias=True, exclude_none=True))
    if value.config is not None:
        # The user's own: nothing of it is left out.
        found["config"] = value.config
    if value.origin.made is not None and value.origin.made.ds_config is not None:
        found["origin"]["made"]["ds_config"] = value.origin.made.ds_config
    return found


def document(value: Measurement) -> dict[str, Any]:
    """The whole document, for ``store.encode_json``."""
    return {"schema": SCHEMA, "measurement": as_dict(value)}


def _pruned(value: Any) -> Any:
    if isinstance(value, dict):
        inner = {name: _pruned(each) for name, each in value.items()}
        return {name: each for name, each in inner.items() if each not in ([], {})}
    return [_pruned(each) for each in value] if isinstance(value, list) else value


def content(path: Path) -> bytes:
    """What is in a file, if it is one and not larger than anything of ours.

    Raises:
        InputError: It is missing, no file, too large, or cannot be read.
    """
    try:
        # Not blocking: a fifo would wait for a writer for ever.
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise InputError(f"{path}: is no file")
            if status.st_size > MAX_BYTES:
                raise InputError(f"{path}: larger than {MAX_BYTES >> 20} MiB, so no measurement of envbuild's")
            return file.read(MAX_BYTES)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from error


def _problems(error: ValidationError) -> str:
    found = error.errors(include_url=False, include_context=False, include_input=False)
    if found[0]["type"] == "json_invalid":
        return f"not valid JSON: {found[0]['msg'].removeprefix('Invalid JSON: ')}"
    lines = [f"{place(each['loc'])}: {each['msg'].removeprefix('Value error, ')}" for each in found[:_SHOWN]]
    more = f" (and {len(found) - _SHOWN} more)" if len(found) > _SHOWN else ""
    return "not a measurement of envbuild's: " + "; ".join(lines) + more


def place(location: tuple[int | str, ...]) -> str:
    """Where in a document something is wrong, for people."""
    text = ".".join(map(str, location)) or "the document"
    return "".join(letter if letter.isprintable() else "?" for letter in text)[:200]


def _hint(data: bytes) -> str:
    start = data[:4096].lstrip()
    if start.startswith(b"SQLite format 3") or b"traceEvents" in start or not start.startswith(b"{"):
        return "Logs, traces and nsys exports are turned into one by: envbuild profile --from FILE --json > M.json"
    return "Make one with: envbuild profile IMAGE --json > M.json"
