"""Values of variables that a task of a run needs: in the run's folder, for its user alone, while they are needed."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from envbuild import store
from envbuild.errors import EngineError, InputError


def path_of(folder: Path, task: int) -> Path:
    """Where those of a task lie."""
    return folder / f"{task}-values.json"


def write(folder: Path, task: int, values: Mapping[str, str]) -> None:
    """Write them down, where no other user reads them, whatever the folder is like.

    Raises:
        EngineError: They cannot be written.
    """
    path = path_of(folder, task)
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            os.fchmod(file.fileno(), 0o600)
            json.dump(dict(values), file)
    except OSError as error:
        raise EngineError(f"cannot write {path}: {error.strerror}") from error


def read(folder: Path, task: int) -> str | None:
    """Those of a task as JSON; None where it needs none, or nobody needs them any more.

    Raises:
        InputError: They cannot be read.
    """
    path = path_of(folder, task)
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read: {error}") from error


def remove(folder: Path, task: int) -> None:
    """Take them away; what is gone already is fine, and so is a folder that nobody can write into any more."""
    try:
        store.remove(path_of(folder, task))
    except EngineError:
        return
