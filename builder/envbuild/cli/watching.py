"""watch: a training is healthy, or what is wrong with it is said while it runs."""

from __future__ import annotations

import math
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from envbuild.cli import modes, output, places
from envbuild.cli import options as opt

if TYPE_CHECKING:
    from envbuild.pipeline.watched import Watched, Wish
    from envbuild.watching.types import Alert

_EXAMPLE = (
    "Example: envbuild watch -- deepspeed train.py --deepspeed_config ds_config.json · "
    "envbuild watch cpu -- torchrun --nproc_per_node 2 train.py · "
    "envbuild watch --pid 4711 --follow train.log"
)
_COLOURS = {"error": "31", "warning": "33", "info": "36"}
_ON_HANG = ("tell", "dump", "stop")
# Lines of output in which a training has told of a loss.
_MANY = 200


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("watch", epilog=_EXAMPLE)(watch)


def _on_hang(ctx: typer.Context, incomplete: str) -> list[str]:
    """What can be done about a hang, for completion."""
    return [name for name in _ON_HANG if name.startswith(incomplete)]


def _interval(value: float) -> float:
    if not 0.2 <= value <= 3600:
        raise typer.BadParameter("say a number of seconds from 0.2 to 3600")
    return value


def _factor(value: float) -> float:
    if not (math.isfinite(value) and value >= 2):
        raise typer.BadParameter("say a number from 2 on")
    return value


def watch(
    ctx: typer.Context,
    command: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[ENV|IMAGE] [-- CMD...]",
            help="The training; it runs as without envbuild, on this host or in a row's image, or any image.",
        ),
    ] = None,
    pid: Annotated[
        int | None, typer.Option("--pid", metavar="PID", min=1, help="In place of a command: one that runs already.")
    ] = None,
    follow: Annotated[
        Path | None, typer.Option("--follow", metavar="FILE", help="With --pid: the file that its output goes to.")
    ] = None,
    interval: Annotated[
        float, typer.Option("--interval", metavar="SECONDS", callback=_interval, help="Time between two looks.")
    ] = 5.0,
    factor: Annotated[
        float,
        typer.Option("--patience", metavar="FACTOR", callback=_factor, help="So many median steps are no hang."),
    ] = 10.0,
    first: Annotated[
        float, typer.Option("--first-step", metavar="SECONDS", callback=opt.seconds, help="Time for the first step.")
    ] = 1800.0,
    pause: Annotated[
        float,
        typer.Option(
            "--pause",
            metavar="SECONDS",
            callback=opt.seconds,
            help="Time for a checkpoint, an evaluation, or what else a rank is busy with while the others wait.",
        ),
    ] = 1800.0,
    on_hang: Annotated[
        str,
        typer.Option(
            "--on-hang",
            metavar="tell|dump|stop",
            autocompletion=_on_hang,
            help="tell: say it; dump: stacks and flight recorders of all ranks into a folder; stop: that, and end it.",
        ),
    ] = "tell",
    dump: Annotated[
        Path | None,
        typer.Option(
            "--dump", metavar="DIR", callback=places.folder, help="The folder; without it one in ENVBUILD_HOME."
        ),
    ] = None,
    swap: Annotated[
        Path | None, typer.Option("--swap", metavar="DIR", help="The NVMe folder of an offload: is it getting full?")
    ] = None,
    horizon: Annotated[
        float,
        typer.Option("--horizon", metavar="SECONDS", callback=opt.seconds, help="Warn when memory ends within this."),
    ] = 3600.0,
    log: Annotated[
        Path | None, typer.Option("--log", metavar="FILE", help="Append a copy of the command's output to it.")
    ] = None,
    openmetrics: Annotated[
        Path | None,
        typer.Option(
            "--openmetrics",
            metavar="FILE.prom",
            callback=places.kept,
            help="Keep figures for node-exporter's textfile collector.",
        ),
    ] = None,
    row: opt.RowOption = None,
    project: opt.ProjectOption = None,
    host: opt.HostOption = None,
    engine: opt.EngineOption = None,
    json: opt.JsonOption = False,
    quiet: opt.QuietOption = False,
) -> None:
    """Run a training and watch it: hangs, dead ranks, memory and disks that run out, losses that tell of no learning.

    Output, terminal, Ctrl-C and exit code are the command's own; alerts go to stderr. Nothing is ended unless --on-hang
    stop asks for it. When the command fails, diagnose reads its output. With --json the command's stdout goes to
    stderr, and one document to stdout at the end.

    Exit code: the command's own; with --pid 0, 1 with an alert of severity error, or 130 and 143 where Ctrl-C or
    SIGTERM ended the watching. 2 usage, 3 it cannot be started.
    """
    from envbuild import store
    from envbuild.cli.failure import Concluded
    from envbuild.errors import INTERRUPTED, InputError
    from envbuild.pipeline.watched import Wish
    from envbuild.watching.hangs import Patience

    image, words = _split(command or [])
    if bool(words) == (pid is not None) or (image is not None and pid is not None):
        raise InputError(
            "watch takes a command behind --, or --pid PID" + (", and not both" if words else ""),
            hint="envbuild watch -- deepspeed train.py",
        )
    modes.hold(ctx, "process" if pid is not None else "command" if image is None else "image")
    if on_hang not in _ON_HANG:
        raise InputError(f"--on-hang: '{on_hang}' is none", hint="Say tell, dump or stop.")
    if dump is not None and on_hang == "tell":
        raise InputError("--dump DIR needs --on-hang dump or stop")
    if swap is not None and not swap.is_dir():
        raise InputError(f"--swap {swap}: there is no such folder")
    if on_hang != "tell" and dump is None:
        dump = store.home() / "hangs" / time.strftime("%Y%m%d-%H%M%S")
    wish = Wish(
        patience=Patience(interval=interval, factor=factor, first=first, pause=pause), on_hang=on_hang, dumps=dump,
        openmetrics=openmetrics, swap=swap, horizon=horizon,
    )  # fmt: skip
    bench = opt.workbench(project)
    if pid is not None:
        told, done = _attached(pid, follow, wish, quiet)
        errors = any(alert.severity == "error" for alert in done.alerts)
        code, causes = told or int(errors), []
        if follow is not None and errors:
            causes = _diagnosed(follow, bench)
    else:
        from envbuild.pipeline.watched_image import watch_image
        from envbuild.pipeline.watched_run import Streams, watch_command

        with store.scratch(store.home() / "runs", "said-") as folder:
            copy = _copy(log) if log is not None else folder / "log"
            streams = Streams(
                log=copy, bounded=log is None, tell=lambda alert: _tell(alert, quiet), stdout=2 if json else 1
            )
            if image is None:
                code, done = watch_command(words, wish, streams)
            else:
                with opt.narrated(project, host, engine, verbose=False, quiet=quiet) as around:
                    code, done = watch_image(around, image, row, words, wish, streams)
            # Who pressed Ctrl-C knows why it ended.
            causes = _diagnosed(copy, bench) if code not in (0, INTERRUPTED) else []
    _summary(done, code if pid is None else None, causes)
    if json:
        _document(done, code if pid is None else None, causes)
    if code:
        raise Concluded(code)


def _split(words: list[str]) -> tuple[str | None, tuple[str, ...]]:
    """The image, and the command: what stands behind -- is the command, whatever it looks like."""
    from envbuild.errors import InputError

    behind = sys.argv[sys.argv.index("--") + 1 :] if "--" in sys.argv else words
    before = words[: len(words) - len(behind)]
    if len(before) > 1:
        raise InputError(f"'{before[1]}' is one image too many", hint=f"envbuild watch {before[0]} -- ...")
    return (before[0] if before else None), tuple(behind)


def _copy(log: Path) -> Path:
    from envbuild.errors import InputError

    try:
        log.open("ab").close()
    except OSError as error:
        raise InputError(f"--log {log}: {error.strerror}") from error
    return log


def _attached(pid: int, follow: Path | None, wish: Wish, quiet: bool) -> tuple[int, Watched]:
    from envbuild.errors import InputError
    from envbuild.pipeline.watched_run import watch_pid
    from envbuild.watching import proc

    if proc.stat(pid) is None:
        raise InputError(f"--pid {pid}: there is no such process")
    if follow is not None and not follow.is_file():
        raise InputError(f"--follow {follow}: there is no such file")
    if not quiet:
        output.narrate(
            f"envbuild watch: process {pid} was not started from here, so collectives and engines' steps cannot be "
            "seen" + ("" if follow else ", and neither can losses without --follow FILE")
        )
    return watch_pid(pid, wish, follow, lambda alert: _tell(alert, quiet))


def _tell(alert: Alert, quiet: bool) -> None:
    if quiet and alert.severity == "info":
        return
    # A progress bar may stand on this line.
    start = "\n" if sys.stderr.isatty() else ""
    word = output.paint(alert.severity, _COLOURS[alert.severity], stream=sys.stderr)
    output.narrate(f"{start}envbuild watch: {word}: {alert.kind}: {alert.message}")
    for line in alert.evidence:
        output.narrate(f"envbuild watch:     {line}")


def _diagnosed(log: Path, bench: Any) -> list[Any]:
    from envbuild.diagnose import diagnose
    from envbuild.errors import InputError

    try:
        return list(diagnose([str(log)], bench.project).causes)
    except InputError:
        return []


def _summary(done: Watched, code: int | None, causes: list[Any]) -> None:
    from envbuild.watching.trends import span_of
    from envbuild.watching.types import counted

    pace = f", {done.step_seconds:.3g} s each" if done.step_seconds is not None else ""
    counts = counted(done.alerts)
    alerts = ", ".join(f"{kind} {number}" for kind, number in counts.items())
    ended = f"; exit code {code}" if code else ""
    output.narrate(
        f"envbuild watch: {span_of(done.seconds)}, {done.steps} steps{pace}; "
        f"alerts: {f'{sum(counts.values())} ({alerts})' if counts else 'none'}{ended}"
    )
    if done.lines >= _MANY and not done.losses:
        output.narrate(
            f"envbuild watch: no loss was understood in {done.lines} lines of output, so none was watched; "
            "a line such as 'step 12 loss: 2.31' is one"
        )
    if done.dump is not None:
        output.narrate(f"envbuild watch: stacks and flight recorders: {done.dump}")
    if causes:
        from envbuild.cli import diagnose

        diagnose.narrate(causes, said="")


def _document(done: Watched, code: int | None, causes: list[Any]) -> None:
    from envbuild.diagnose import as_dict
    from envbuild.watching.types import as_dict as alert_dict
    from envbuild.watching.types import counted

    output.document(
        "watch", alerts=[alert_dict(alert) for alert in done.alerts], counts=counted(done.alerts),
        seconds=round(done.seconds, 3), steps=done.steps, step_seconds=done.step_seconds,
        last_loss=done.last_loss if done.last_loss is None or math.isfinite(done.last_loss) else str(done.last_loss),
        lines=done.lines, losses=done.losses, ranks=done.ranks, collectives_seen=done.beacons,
        dump=str(done.dump) if done.dump else None, exit_code=code,
        causes=[as_dict(cause) for cause in causes],
    )  # fmt: skip
