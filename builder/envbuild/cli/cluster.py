"""Commands whose work runs on a cluster: submitted, listened to, shown as if it had run here.

A command that wants this hands over what each task is to run (``Work``); how the results of a command are shown is in
``shown``. ``attach`` shows the results of a run that somebody else began in the same way.
"""

from __future__ import annotations

import contextlib
import datetime
import shlex
import signal
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

import typer

from envbuild.cli import failure, lines, output, shown
from envbuild.cli.display import make_sinks
from envbuild.errors import INTERRUPTED, InputError
from envbuild.events import Note, WorkDone

if TYPE_CHECKING:
    from envbuild.executors import Run, RunFolder
    from envbuild.executors.follow import Ending
    from envbuild.pipeline.cluster import Result
    from envbuild.pipeline.planned import Planned
    from envbuild.pipeline.workbench import Workbench
    from envbuild.pipeline.works import Work


@dataclass(frozen=True, slots=True, kw_only=True)
class How:
    """How a run is wanted to be told of."""

    json: bool = False
    verbose: bool = False
    quiet: bool = False
    dry_run: bool = False
    detach: bool = False


class _Gone(KeyboardInterrupt):
    """The terminal has gone away; the run goes on."""


def on_cluster(bench: Workbench, *, detach: bool = False) -> bool:
    """Whether the site, or the command line, wants the work on a cluster.

    Raises:
        InputError: ``--detach``, and nothing that could go on by itself.
    """
    kind = bench.site.executor.kind
    if kind == "k8s":
        raise InputError(
            "for Kubernetes the manifest of a smoke is rendered, and nothing else is done",
            hint="envbuild smoke IMAGE --executor k8s --dry-run | kubectl apply -f - (with --nodes N a JobSet over N "
            "nodes). With --executor local it runs here.",
        )
    away = kind == "slurm"
    if detach and not away:
        raise InputError("--detach goes with --executor slurm: what runs here ends with this command")
    return away


def seen_from_nodes(bench: Workbench, key: str | None) -> dict[str, object]:
    """Options of a task whose values are paths, as they lead to the same from everywhere."""
    own = None if bench.project.packaged else bench.project.root.resolve()
    # A PEM text in place of a path stays what it is.
    path = key if key is None or "-----BEGIN" in key else str(Path(key).expanduser().resolve())
    return {"--project": own, "--key": path, "--executor": "local"}


def carry_out(
    bench: Workbench, command: str, works: Sequence[Work], how: How, *, out: Path | None = None
) -> None:  # fmt: skip
    """Run tasks on the cluster and show what came of them, as ``command`` shows it; ``out`` is where that goes."""
    from envbuild.pipeline import cluster

    now = datetime.datetime.now(datetime.timezone.utc)
    submit(bench, cluster.plan(bench, command, works, program=lines.program(), now=now, out=out), how)


def submit(bench: Workbench, planned: Planned, how: How) -> None:
    """Submit what was planned, or show it."""
    from envbuild.pipeline import cluster

    command = planned.run.command
    if how.dry_run:
        _print_plan(command, planned, json=how.json)
        return
    with make_sinks(quiet=how.quiet, verbose=how.verbose) as sink_of:
        bench.sink = sink_of("")
        run = cluster.begin(bench, planned)
    if not how.quiet:
        jobs = f"job{'' if len(run.jobs) == 1 else 's'} {', '.join(run.jobs)}"
        output.narrate(f"run {run.id}: {jobs}; it goes on without this terminal: envbuild attach {run.id}")
    if how.detach:
        if how.json:
            output.document(command, run=run.id, jobs=list(run.jobs), folder=str(planned.folder.path))
        else:
            output.text(run.id)
        return
    attend(planned.folder, run, how)


def attend(folder: RunFolder, run: Run, how: How) -> None:
    """Listen to a run to its end, and show what came of it."""
    from envbuild.pipeline import cluster

    asked = False
    try:
        results = _listen(folder, run, how)
    except _Gone:
        raise failure.Concluded(INTERRUPTED) from None
    except KeyboardInterrupt:
        if not _cancels(run):
            output.narrate(f"run {run.id} goes on; come back to it: envbuild attach {run.id}")
            raise failure.Concluded(INTERRUPTED) from None
        asked = True
        cluster.cancel(folder, run)
        results = _listen(folder, run, how)
    shown.show(run, results, how)
    code = INTERRUPTED if asked else max((result.ending.code for result in results), default=0)
    if code:
        raise failure.Concluded(code)


def _listen(folder: RunFolder, run: Run, how: How) -> list[Result]:
    from envbuild.pipeline import brought, cluster

    several = len(run.tasks) > 1
    with make_sinks(quiet=how.quiet, verbose=how.verbose) as sink_of, _hangup():

        def line(name: str, text: str) -> None:
            said = lines.read(text)
            if said is not None and not isinstance(said, lines.Ended):
                sink_of(name if several else "")(said)

        def note(name: str, said: Note) -> None:
            sink_of(name if several else "")(said)

        def end(name: str, ending: Ending) -> None:
            # A comparison that came to an answer has done its work, whatever the answer is.
            answer = brought.verdict(ending.attempt) if run.command == "compare" and ending.attempt else None
            ok = ending.code == 0 or (answer is not None and not ending.interrupted)
            detail = "interrupted" if ending.interrupted else (answer or "done") if ok else "failed"
            where = f"{detail} on {ending.node}" if ending.node else detail
            sink_of(name if several else "")(WorkDone(detail=where, seconds=ending.seconds, ok=ok))

        return cluster.follow(folder, run, on_line=line, on_note=note, on_end=end)


@contextlib.contextmanager
def _hangup() -> Iterator[None]:
    """A terminal that goes away takes no job with it."""

    def gone(number: int, frame: FrameType | None) -> NoReturn:
        raise _Gone

    before = signal.getsignal(signal.SIGHUP)
    if before is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, gone)
    try:
        yield
    finally:
        if before is not signal.SIG_IGN:
            signal.signal(signal.SIGHUP, before)


def _cancels(run: Run) -> bool:
    """Whether an interruption is meant for the jobs, too: people are asked, and scripts mean it."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        output.narrate(f"cancelling run {run.id}")
        return True
    sys.stderr.write(f"\ncancel run {run.id} on the cluster? [y/N; Ctrl-C again: yes] ")
    sys.stderr.flush()
    try:
        return sys.stdin.readline().strip().lower() in ("y", "yes")
    except KeyboardInterrupt:
        output.narrate("")
        return True


def _print_plan(command: str, planned: Planned, *, json: bool) -> None:
    if json:
        output.document(command, plan=planned.as_dict())
        return
    for submission, (name, text) in zip(planned.run.submissions, planned.scripts, strict=True):
        output.text(output.paint(shlex.join(submission.argv), "1"))
        for number in submission.tasks:
            task = planned.run.tasks[number]
            output.text(f"  task {number} ({task.name}): envbuild {shlex.join(task.argv)}")
        _print_file(name, text)
    for name, text in planned.files:
        if name.endswith(".sh"):
            _print_file(name, text)


def _print_file(name: str, text: str) -> None:
    output.text(f"  {name}:")
    for line in text.splitlines():
        output.text(f"    {line}")


def runs_of(ctx: typer.Context, incomplete: str) -> list[str]:
    """Runs for shell completion."""
    from envbuild.cli.options import completed
    from envbuild.executors import every
    from envbuild.pipeline.cluster import shared

    return completed(ctx, incomplete, lambda bench: (run.id for _, run in every(shared(bench))))
