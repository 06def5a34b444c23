"""The command line: parse, call, print. The only place that prints or exits."""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from types import FrameType
from typing import Annotated, Any, NoReturn

import typer

from envbuild import EVENTS_VARIABLE, __version__
from envbuild.cli import failure, output
from envbuild.errors import ENGINE, INTERRUPTED, EngineError, EnvbuildError, Interrupted

# Every module with its commands, in the order of the help.
COMMANDS: dict[str, tuple[str, ...]] = {
    "rows": ("list", "show", "check"),
    "locking": ("lock",),
    "rendering": ("render",),
    "questions": ("why-not", "diff"),
    "building": ("build",),
    "images": ("smoke", "promote", "run"),
    "jobs": ("jobs", "attach", "cancel", "node", "collective", "spread"),
    "shipping": ("push", "pull", "images", "prune"),
    "sbom": ("sbom",),
    "provision": ("provision",),
    "engine": ("engine",),
    "bundles": ("export", "bundle"),
    "doctor": ("doctor",),
    "diagnose": ("diagnose",),
    "linting": ("lint",),
    "tuning": ("tune",),
    "profiling": ("profile",),
    "watching": ("watch",),
    "measures": ("compare", "baseline"),
    "bottleneck": ("bottleneck",),
    "reporting": ("report",),
    "trust": ("key", "verify"),
    "facts": ("facts",),
    "start": ("init",),
}
# What was left behind by Ctrl-C, by command.
_INTERRUPTED = {
    "": "nothing was tagged; the next run starts clean and reuses the cache",
    "export": "no bundle was written; run it again: it goes on with what was fetched",
    "profile": "no measurement was written",
    "compare": "run it again: it goes on behind the launches that were made",
    "bottleneck": "run it again: it goes on behind the launches that were made",
}


def _reflow(text: str) -> str:
    """One line for each paragraph: where a docstring's lines end is no business of the terminal's width."""
    return "\n\n".join(" ".join(part.split()) for part in text.split("\n\n"))


def _version(wanted: bool) -> None:
    if wanted:
        output.text(f"envbuild {__version__}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


def application(arguments: Sequence[str] = ()) -> typer.Typer:
    """The program that a command line needs: where it begins with a command, that one's module alone.

    The others cost more than a short command does itself. Help, completion, a slip and every option in front of the
    command see them all.
    """
    first = arguments[0] if arguments else ""
    completing = "_ENVBUILD_COMPLETE" in os.environ
    one = [] if completing else [module for module, names in COMMANDS.items() if first in names]
    app = typer.Typer(
        name="envbuild",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
        context_settings={"help_option_names": ["-h", "--help"]},
        help="Build DeepSpeed ZeRO-3 offload environments, prove them by a real training step, and only then name "
        "them.",
        epilog="Start with: envbuild list, then envbuild build cpu. A project of your own: envbuild init.",
    )
    app.callback()(_root)
    for module in one or COMMANDS:
        import_module(f"{__name__}.{module}").register(app)
    for command in app.registered_commands:
        command.help = command.help or _reflow((command.callback.__doc__ or "") if command.callback else "")
    return app


def _terminate(number: int, frame: FrameType | None) -> NoReturn:
    # A scheduler tells every process of a job, and so does the one that started this: once is enough, and twice would
    # break off what is being cleaned up.
    if EVENTS_VARIABLE in os.environ:
        signal.signal(signal.SIGTERM, lambda number, frame: None)
    # The same way out as Ctrl-C: containers, builds and temporary folders are cleaned up on the way.
    raise KeyboardInterrupt


def main() -> None:
    """Entry point: every failure becomes one message, one hint and one exit code."""
    signal.signal(signal.SIGTERM, _terminate)
    # A terminal that goes away ends what runs in it, unless it was told to stay (nohup).
    if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:
        signal.signal(signal.SIGHUP, _terminate)
    output.prepare()
    sys.exit(output.finish(_outcome(as_json=_wants_json(sys.argv[1:])), failed=ENGINE))


def _wants_json(arguments: list[str]) -> bool:
    # Behind `run`, and behind `--`, it is an option of somebody else's program.
    own = arguments[: arguments.index("--")] if "--" in arguments else arguments
    return "--json" in own and own[0] != "run"


def _outcome(*, as_json: bool) -> int:
    try:
        # Typer prints usage errors itself; with --json they are documents like any other error.
        code = application(sys.argv[1:])(prog_name="envbuild", standalone_mode=not as_json) or 0
    except EnvbuildError as error:
        return failure.report(error, as_json=as_json)
    except failure.Concluded as error:
        return error.exit_code
    except SystemExit as error:
        # Typer says 1 when the reader of the help has left (`envbuild --help | head`): nothing is wrong.
        code = 0 if isinstance(error.__context__, BrokenPipeError) else error.code
    except FileNotFoundError as error:
        if error.filename is not None:
            return failure.report(_in_words(error), as_json=as_json)
        gone = EngineError("the current folder does not exist any more", hint="change to one that does")
        return failure.report(gone, as_json=as_json)
    except OSError as error:
        return failure.report(_in_words(error), as_json=as_json)
    except Exception as error:
        if not (as_json and hasattr(error, "format_message")):
            raise
        return failure.report(_usage(error), as_json=True)
    if code == INTERRUPTED:
        message = _INTERRUPTED.get("".join(sys.argv[1:2]), _INTERRUPTED[""])
        if as_json:
            return failure.report(Interrupted(message), as_json=True)
        output.narrate(f"interrupted: {message}")
    return code if isinstance(code, int) else int(bool(code))


def _in_words(error: OSError) -> EngineError:
    """What no room has put into words, such as a log that cannot be written."""
    reason = error.strerror or str(error)
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    hint = "envbuild prune --dry-run says what of its own can go; it writes to ENVBUILD_HOME, [paths] cache and TMPDIR."
    message = f"{error.filename}: {reason}" if error.filename is not None else reason
    return EngineError(message, hint=hint if full else "")


def _usage(error: Any) -> EnvbuildError:
    context = getattr(error, "ctx", None)
    hint = f"See: {context.command_path} --help" if context is not None else ""
    return EnvbuildError(error.format_message(), hint=hint)
