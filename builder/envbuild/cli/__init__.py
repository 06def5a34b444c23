"""The command line: parse, call, print. The only place that prints or exits."""

from __future__ import annotations

import signal
import sys
from types import FrameType
from typing import Annotated, NoReturn

import typer

from envbuild import __version__
from envbuild.cli import images, rows, start
from envbuild.errors import INTERRUPTED, EnvbuildError

app = typer.Typer(
    name="envbuild",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Build DeepSpeed ZeRO-3 offload environments, prove them by a real training step, and only then name them.",
    epilog="Start with: envbuild list, then envbuild build cpu. A project of your own: envbuild init.",
)
rows.register(app)
images.register(app)
start.register(app)


def _version(wanted: bool) -> None:
    if wanted:
        sys.stdout.write(f"envbuild {__version__}\n")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


def _terminate(number: int, frame: FrameType | None) -> NoReturn:
    # The same way out as Ctrl-C: containers, builds and temporary folders are cleaned up on the way.
    raise KeyboardInterrupt


def main() -> None:
    """Entry point: every failure becomes one message, one hint and one exit code."""
    signal.signal(signal.SIGTERM, _terminate)
    as_json = "--json" in sys.argv[1:]
    try:
        app(prog_name="envbuild")
    except EnvbuildError as error:
        _report(error, as_json=as_json)
        sys.exit(error.exit_code)
    except BrokenPipeError:
        # The reader of stdout left (`envbuild list | head`): nothing is wrong.
        sys.stderr.close()
        sys.exit(0)
    except SystemExit as error:
        if error.code == INTERRUPTED:
            sys.stderr.write("interrupted: nothing was tagged; the next run starts clean and reuses the cache\n")
        raise


def _report(error: EnvbuildError, *, as_json: bool) -> None:
    from envbuild.cli import output

    found = getattr(error, "findings", ())
    if as_json:
        from envbuild.pipeline.prove import as_dict

        details = {"findings": [as_dict(finding) for finding in found]} if found else {}
        output.document("error", code=error.code, message=error.message, hint=error.hint, **details)
        return
    output.findings(found, stream=sys.stderr)
    sys.stderr.write(f"{output.paint('error', '31', stream=sys.stderr)}: {error.message}\n")
    if error.hint:
        sys.stderr.write(f"hint: {error.hint}\n")
