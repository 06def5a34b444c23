"""Commands about runs on a cluster: jobs, attach, cancel; and what a node runs."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from envbuild.cli import cluster, output
from envbuild.cli import options as opt
from envbuild.cli.cluster import How
from envbuild.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from envbuild.executors import Attempt, Ended, Run, RunFolder
    from envbuild.executors.words import State

RunArgument = Annotated[
    str,
    typer.Argument(metavar="RUN", help="A run's name, or the end of it.", autocompletion=cluster.runs_of),
]


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    app.command("jobs", epilog="Example: envbuild jobs --all")(jobs)
    app.command("attach", epilog="Example: envbuild attach 20261130-101502-3f9a")(attach)
    app.command("cancel", epilog="Example: envbuild cancel 3f9a")(cancel)
    app.command("node", hidden=True)(node)
    app.command("collective", hidden=True)(collective)
    app.command("spread", hidden=True)(spread)


def jobs(
    every: Annotated[bool, typer.Option("--all", help="Those that have ended, too.")] = False,
    project: opt.ProjectOption = None,
    json: opt.JsonOption = False,
) -> None:
    """List the runs on the cluster, newest first: what each task does, on which node, or what it waits for.

    They are read from the folder that this host and the nodes share ([executor] folder), so that every login host and
    every later session sees the same.
    """
    from envbuild.executors import every as every_run
    from envbuild.pipeline.cluster import shared

    bench = opt.workbench(project)
    found: list[dict[str, Any]] = []
    for folder, run in every_run(shared(bench)):
        tasks = _tasks(folder, run)
        if every or not all(task["ended"] for task in tasks):
            found.append({"run": run.id, "command": run.command, "begun": run.begun.isoformat(), "tasks": tasks})
    if json:
        output.document("jobs", jobs=found)
        return
    if not found:
        output.narrate("no run" if every else "no run is going on; --all shows those that have ended")
        return
    output.table(
        ("RUN", "COMMAND", "TASK", "JOB", "NODE", "STATE"),
        [
            (
                str(each["run"]),
                str(each["command"]),
                task["name"],
                task["job"] or "-",
                task["node"] or "-",
                task["state"],
            )
            for each in found
            for task in each["tasks"]
        ],
        spare=("COMMAND", "JOB"),
    )


def attach(
    run: RunArgument,
    project: opt.ProjectOption = None,
    json: opt.JsonOption = False,
    verbose: opt.VerboseOption = False,
    quiet: opt.QuietOption = False,
) -> None:
    """Come back to a run: hear what it tells from its beginning, wait for its end, and show what came of it.

    A run may be attached to by any number of sessions, and as often as you like, also when it has ended: then the
    result is shown, and its evidence is brought into this host's store again. Exit codes are those of the command that
    began it.
    """
    from envbuild.executors import find, queue
    from envbuild.pipeline.cluster import recover, shared

    bench = opt.workbench(project)
    folder, found = find(shared(bench), run)
    if any(not task["ended"] for task in _tasks(folder, found, ask=False)):
        queue.need()
        found = recover(folder, found)
    cluster.attend(folder, found, How(json=json, verbose=verbose, quiet=quiet))


def cancel(
    run: RunArgument,
    project: opt.ProjectOption = None,
    json: opt.JsonOption = False,
    quiet: opt.QuietOption = False,
) -> None:
    """End a run on the cluster: what waits leaves the queue, what runs ends its containers and tags nothing."""
    from envbuild.executors import find, queue
    from envbuild.pipeline import cluster as work

    bench = opt.workbench(project)
    folder, found = find(work.shared(bench), run)
    queue.need()
    before = _tasks(folder, found)
    work.cancel(folder, found)
    ended = [task["name"] for task in before if not task["ended"]]
    if json:
        output.document("cancel", run=found.id, tasks=ended)
    elif ended:
        output.text(f"{found.id}: cancelled {', '.join(ended)}")
    elif not quiet:
        output.narrate(f"run {found.id} has ended already")


def _tasks(folder: RunFolder, run: Run, *, ask: bool = True) -> list[dict[str, Any]]:
    """Every task of a run, and what is known of it."""
    from envbuild.executors import queue

    lasts = [folder.last(number) for number in range(len(run.tasks))]
    ends = [last.ended if last is not None else None for last in lasts]
    states: Mapping[str, State] | None = None
    if ask and not all(ended is not None and ended.how != "told" for ended in ends):
        with contextlib.suppress(EngineError):  # no Slurm here: the files speak
            states = queue.states(run.jobs)
    told = []
    for number, task in enumerate(run.tasks):
        submission, last, ended = run.submission_of(number), lasts[number], ends[number]
        job = f"{submission.job}_{number}" if submission.job else None
        node = last.node if last is not None else None
        state = (states or {}).get(job or "")
        alive = state is not None and not state.ended
        final = ended is not None and ended.how != "told"
        where = node.node if node is not None else state.node if state is not None else ""
        told.append(
            {
                "name": task.name, "job": job, "node": where or None, "attempt": last.number if last else 0,
                "ended": final or (states is not None and not alive),
                "exit_code": ended.code if ended is not None and not alive else None,
                "state": _verdict(run, last, ended, alive=alive) or _state(ended, state),
            }
        )  # fmt: skip
    return told


def _verdict(run: Run, last: Attempt | None, ended: Ended | None, *, alive: bool) -> str | None:
    """The answer of a comparison that has come to one: its exit code is no failure."""
    from envbuild.pipeline import brought

    if run.command != "compare" or last is None or ended is None or ended.how != "ended" or alive:
        return None
    return brought.verdict(last)


def _state(ended: Any, state: State | None) -> str:
    from envbuild.executors import words

    if state is not None and state.waiting:
        return f"waits: {words.waits(state.reason)[0]}"
    if state is not None and not state.ended:
        return state.name.lower()
    if ended is not None:
        how = {"told": "cancelled", "late": "its time was up", "refused": "its nodes failed"}
        return how.get(ended.how) or ("done" if ended.code == 0 else f"failed ({ended.code})")
    return state.name.lower().replace("_", " ") if state is not None else "unknown to Slurm"


def node(folder: Annotated[Path, typer.Argument(metavar="FOLDER")]) -> None:
    """Do one task of a run: what the script of a job calls on a node."""
    from envbuild.executors import RunFolder
    from envbuild.pipeline.node import TimeUp, carry_out

    def told(number: int, frame: FrameType | None) -> NoReturn:
        # Once is enough: what a second one would break off is the cleaning up.
        for each in (signal.SIGTERM, signal.SIGUSR1):
            signal.signal(each, lambda number, frame: None)
        raise TimeUp if number == signal.SIGUSR1 else KeyboardInterrupt

    signal.signal(signal.SIGTERM, told)
    signal.signal(signal.SIGUSR1, told)
    code = carry_out(RunFolder(path=folder), os.environ)
    if code:
        raise typer.Exit(code)


def collective(
    argv: Annotated[list[str], typer.Argument(metavar="-- CMD...")],
    world: Annotated[int, typer.Option()],
    nodes: Annotated[int, typer.Option()],
    seed: Annotated[int, typer.Option()],
    timeout: Annotated[float, typer.Option()],
    json: opt.JsonOption = False,
) -> None:
    """Start ranks on the nodes of this job's allocation, and hold their sums to the known answer."""
    import time

    from envbuild import EVENTS_VARIABLE
    from envbuild.cli.display import make_sink
    from envbuild.errors import GATE
    from envbuild.events import PhaseDone, PhaseStarted
    from envbuild.pipeline.collective import Expected, carry_out

    expected = Expected(world=world, nodes=nodes, seed=seed)
    folder = Path(os.environ.get(EVENTS_VARIABLE, "x")).absolute().parent
    with make_sink() as sink:
        sink(PhaseStarted(phase="all-reduce", detail=f"{world} ranks on {nodes} nodes"))
        began = time.monotonic()
        found, documents = carry_out(folder, argv, expected, timeout=timeout)
        if not found:
            sink(PhaseDone(phase="all-reduce", seconds=time.monotonic() - began))
    output.document("smoke", findings=output.documents(found), ranks=documents)
    output.findings(found, narrated=True)
    if found:
        raise typer.Exit(GATE)


def spread(
    file: Annotated[Path, typer.Argument(metavar="FILE")],
    project: opt.ProjectOption = None,
    json: opt.JsonOption = False,
) -> None:
    """Start ranks on the nodes of this job's allocation: an all-reduce, and then a training that is measured."""
    from envbuild.cli import lines
    from envbuild.pipeline.spread import read
    from envbuild.pipeline.spread_run import carry_out
    from envbuild.profile.files import as_dict

    with opt.narrated(project, None, verbose=False, quiet=False) as bench:
        measured = carry_out(bench, read(file), lines.own_folder() or Path.cwd())
    output.document("profile", measurement=as_dict(measured))
