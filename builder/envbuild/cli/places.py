"""Places that a line names for what is to be written: looked at before any work is done for it."""

from __future__ import annotations

import os
from pathlib import Path

import typer

from envbuild.errors import InputError


def file(param: typer.CallbackParam, value: Path | str | None) -> Path | str | None:
    """A file in a folder that is there: one whose name is mistyped is not made, and no work is lost at the end."""
    # - is standard output, where that can be, and an empty name is another slip.
    if value is not None and str(value) not in ("-", ""):
        parent = Path(value).parent
        if not _is_folder(parent):
            raise InputError(
                f"{param.opts[-1]} {value}: there is no folder {parent}", hint=f"mkdir -p {parent}, or mend the name."
            )
    return value


def kept(param: typer.CallbackParam, value: Path | None) -> Path | None:
    """A file that is replaced again and again."""
    if value is not None:
        file(param, value)
        if os.access(value, os.F_OK) and not value.is_file():
            raise InputError(
                f"{param.opts[-1]} {value}: is no file, and would be replaced by one", hint="Name another."
            )
        _try(param, value, Path(os.path.realpath(value)).parent)
    return value


def folder(param: typer.CallbackParam, value: Path | None) -> Path | None:
    """A folder that may be new, in one that is there."""
    if value is not None:
        file(param, value)
        there = _is_folder(value)
        if os.access(value, os.F_OK) and not there:
            raise InputError(f"{param.opts[-1]} {value}: is no folder", hint="Name another.")
        _try(param, value, value if there else value.parent)
    return value


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:  # one that may not be looked into
        return False


def _try(param: typer.CallbackParam, value: Path, place: Path) -> None:
    import tempfile

    try:
        with tempfile.TemporaryFile(dir=place):
            pass
    except OSError as error:
        raise InputError(
            f"{param.opts[-1]} {value}: cannot be written: {error.strerror}", hint=f"Name another place than {place}."
        ) from None
