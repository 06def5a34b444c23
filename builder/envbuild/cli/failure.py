"""A failure as people read it, and as one JSON document."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from typing import Any

from envbuild import EVENTS_VARIABLE
from envbuild.cli import output
from envbuild.errors import EnvbuildError


class Concluded(Exception):
    """The command has said all there is to say; the program ends with this exit code."""

    def __init__(self, exit_code: int) -> None:
        super().__init__(exit_code)
        self.exit_code = exit_code


def report(error: EnvbuildError, *, as_json: bool) -> int:
    """Print it, and return its exit code."""
    if as_json:
        output.document("error", **fields(error))
    # A run on a cluster keeps both: the document for programs, the words for people.
    if not as_json or EVENTS_VARIABLE in os.environ:
        _narrate(error)
    return error.exit_code


def fields(error: EnvbuildError) -> dict[str, Any]:
    """What ``--json`` says of it."""
    details: dict[str, Any] = {}
    if found := getattr(error, "findings", ()):
        details["findings"] = output.documents(found)
    if error.causes:
        from envbuild.diagnose import as_dict

        details["causes"] = [as_dict(cause) for cause in error.causes]
    return {"code": error.code, "message": error.message, "hint": error.hint, **details}


def told(error: EnvbuildError) -> tuple[str, ...]:
    """What people read of it, line by line, for whoever prints it elsewhere."""
    with contextlib.redirect_stderr(io.StringIO()) as text:
        _narrate(error)
    return tuple(text.getvalue().splitlines())


def _narrate(error: EnvbuildError) -> None:
    found = getattr(error, "findings", ())
    output.findings(found, narrated=True)
    # A matrix's message is its findings again, one a line.
    message = f"{len(found)} problem(s) in {found[0].file}" if error.code == "matrix" and found else error.message
    output.narrate(f"{output.paint('error', '31', stream=sys.stderr)}: {message}")
    if error.causes:
        from envbuild.cli import diagnose

        diagnose.narrate(error.causes, said="\n".join((message, *(finding.message for finding in found))))
    if error.hint:
        output.narrate(f"hint: {error.hint}")
