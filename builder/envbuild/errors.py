"""The one exception type that users meet, with its exit code and its hint."""

from __future__ import annotations

from typing import Any

# Exit codes. 0 is done; every other number says which kind of thing went wrong.
FINDINGS = 1
USAGE = 2
ENGINE = 3
BUILD = 4
GATE = 5
BUNDLE = 6
INTERRUPTED = 130


class EnvbuildError(Exception):
    """A failure that is the user's to act on: one message, one hint, one exit code.

    Attributes:
        message: What is wrong, in one or a few lines, with the place where it is wrong.
        hint: What to do about it; empty when there is nothing useful to say.
        exit_code: The process exit code (see the constants of this module).
        code: A short stable word for programs that read ``--json``.
        causes: What ``diagnose`` finds in the log of the failure, best first (diagnose.Cause); empty where nothing is.
    """

    exit_code: int = USAGE
    code: str = "usage"
    causes: tuple[Any, ...] = ()

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class InputError(EnvbuildError):
    """A file or an argument that cannot be used (exit 2)."""

    exit_code = USAGE
    code = "input"


class EngineError(EnvbuildError):
    """The container engine, the network, the disk or the local store failed (exit 3)."""

    exit_code = ENGINE
    code = "engine"


class BuildError(EnvbuildError):
    """A build step failed (exit 4)."""

    exit_code = BUILD
    code = "build"


class GateError(EnvbuildError):
    """The image does not deserve the name it was meant to get (exit 5)."""

    exit_code = GATE
    code = "gate"


class BundleError(EnvbuildError):
    """A bundle that cannot be made, or is not what it says it is (exit 6)."""

    exit_code = BUNDLE
    code = "bundle"


class Interrupted(EnvbuildError):
    """Ctrl-C or SIGTERM (exit 130)."""

    exit_code = INTERRUPTED
    code = "interrupted"
