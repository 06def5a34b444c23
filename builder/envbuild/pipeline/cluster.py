"""Work on a cluster: what is submitted, how it is followed, and what it has seen when it comes home."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from envbuild import __version__, evidence, store
from envbuild.errors import EnvbuildError, InputError
from envbuild.events import Note
from envbuild.evidence.record import MAX_BYTES
from envbuild.executors import Attempt, Run, RunFolder, Submission, new_id, queue, slurm, values
from envbuild.executors.follow import Ending, Follower
from envbuild.model import Environment
from envbuild.pipeline.planned import Planned
from envbuild.pipeline.workbench import Workbench
from envbuild.pipeline.works import Work

# Of what a command said that left no document.
_TAIL = 15


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What came of a task.

    Attributes:
        document: What the command printed with ``--json``; empty where it printed none.
        told: What people read of its failure, line by line.
        evidence: Where its records lie now, in this host's store.
    """

    name: str
    ending: Ending
    document: dict[str, Any] = field(default_factory=dict)
    told: tuple[str, ...] = ()
    evidence: tuple[Path, ...] = ()

    @property
    def error(self) -> dict[str, Any]:
        """Its error as ``--json`` shows it; empty where it has none, or was cancelled."""
        if self.ending.interrupted:
            return {}
        if self.ending.message:
            return {"code": "engine", "message": self.ending.message, "hint": self.ending.hint}
        if self.document.get("schema") == "envbuild.error/1":
            return {name: value for name, value in self.document.items() if name != "schema"}
        if self.ending.code and not self.document:
            said = "\n".join(self.told) or "it said nothing"
            return {"code": "engine", "message": f"it ended with exit code {self.ending.code}: {said}", "hint": ""}
        return {}


def shared(bench: Workbench) -> Path:
    """The folder that this host and the nodes share.

    Raises:
        InputError: The site names none, or it is not there.
    """
    folder = bench.site.executor.folder
    if folder is None:
        raise InputError(
            "a cluster needs a folder that this host and its nodes share, and none is named",
            hint='Name one in envbuild.toml: [executor] folder = "/shared/envbuild", or ENVBUILD_EXECUTOR_FOLDER.',
        )
    return folder


def plan(
    bench: Workbench, command: str, works: Sequence[Work], *, program: tuple[str, ...], now: datetime.datetime,
    out: Path | None = None,
) -> Planned:  # fmt: skip
    """What would be submitted: tasks that ask for the same resources as one array. Writes nothing.

    Args:
        out: Where its result goes, when somebody has followed the run to its end.

    Raises:
        InputError: The site's settings are not enough for a row.
    """
    site, where = bench.site.slurm, bench.site.executor
    folder = RunFolder.of(shared(bench), new_id(now))
    called = (where.envbuild,) if where.envbuild else program
    groups: dict[slurm.Resources, list[int]] = {}
    for number, work in enumerate(works):
        groups.setdefault(slurm.resources(site, _row(bench, work.row), work.row), []).append(number)
    run = Run(
        schema="envbuild.run/1", id=folder.path.name, command=command, envbuild=__version__, begun=now, program=called,
        home=where.home, out=out, submissions=(),
        tasks=tuple(work.task(number, folder.path) for number, work in enumerate(works)),
    )  # fmt: skip
    submissions = tuple(
        Submission(
            tasks=tuple(tasks), script=f"job-{number}.sh", limit=wanted.time or "",
            argv=slurm.sbatch(
                run.name, tasks, wanted, site=site, most=where.at_once,
                log=folder.path / f"job-{number}-%a.log", script=folder.path / f"job-{number}.sh",
            ),
        )
        for number, (wanted, tasks) in enumerate(groups.items())
    )  # fmt: skip
    text = slurm.script(folder.path, called, where.setup)
    scripts = tuple((each.script, text) for each in submissions)
    files = tuple(file for number, work in enumerate(works) for file in work.files(number))
    wanted_values = {number: work.values for number, work in enumerate(works) if work.values}
    run = run.model_copy(update={"submissions": submissions})
    return Planned(folder=folder, run=run, scripts=scripts, files=files, values=wanted_values)


def begin(bench: Workbench, planned: Planned) -> Run:
    """Submit a run; every array's number is written down as soon as Slurm has said it.

    Where one is refused, those before it are taken back.

    Raises:
        EngineError: Slurm is not here, does not take it, or the folder cannot be written.
    """
    queue.need()
    folder, run = planned.folder, planned.run
    folder.create(run)
    for name, text in (*planned.files, *planned.scripts):
        store.write_atomic(folder.path / name, text)
    done: list[Submission] = []
    try:
        for number, each_values in planned.values.items():
            values.write(folder.path, number, each_values)
        for each in run.submissions:
            job = queue.submit(each.argv, lambda line: bench.sink(Note(message=f"sbatch: {line}", level="warning")))
            done.append(each.model_copy(update={"job": job}))
            run = run.model_copy(update={"submissions": (*done, *run.submissions[len(done) :])})
            folder.save(run)
    except BaseException:
        # A submission that was broken off may have been taken; its name is known.
        queue.cancel(tuple(dict.fromkeys((*run.jobs, *queue.named(run.name)))))
        folder.remove()
        raise
    return run


def recover(folder: RunFolder, run: Run) -> Run:
    """A run whose session was killed before it could write down a number: asked for by name.

    Raises:
        InputError: Slurm has no such jobs: the run was never submitted.
    """
    if len(run.jobs) == len(run.submissions):
        return run
    known = set(run.jobs)
    found = iter(sorted((job for job in queue.named(run.name) if job not in known), key=int))
    # They were submitted in this order.
    submissions = tuple(
        each if each.job else each.model_copy(update={"job": next(found, None)}) for each in run.submissions
    )
    run = run.model_copy(update={"submissions": submissions})
    if not run.jobs:
        raise InputError(f"run {run.id} was never submitted", hint="Start it again.")
    folder.save(run)
    return run


def follow(
    folder: RunFolder,
    run: Run,
    *,
    on_line: Callable[[str, str], None],
    on_note: Callable[[str, Note], None],
    on_end: Callable[[str, Ending], None],
) -> list[Result]:
    """Listen to a run until every task has ended, and bring home what it has seen; tasks that Slurm never got are
    over."""
    follower = Follower(
        folder=folder, run=run, ask=lambda: queue.states(run.jobs), on_line=on_line, on_note=on_note, on_end=on_end
    )
    follower.listen()
    return [home(folder, run, number, ending) for number, ending in sorted(follower.endings.items())]


def home(folder: RunFolder, run: Run, number: int, ending: Ending) -> Result:
    """What came of a task, its evidence in this host's store."""
    values.remove(folder.path, number)
    attempt = ending.attempt
    if attempt is None:
        return Result(name=run.tasks[number].name, ending=ending)
    adopted = _adopt(folder, attempt)
    document = _document(attempt.result)
    _relocate(document, adopted)
    try:
        said = attempt.said.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        said = []
    told = (
        tuple(said if document else said[-_TAIL:]) if ending.code and not (ending.message or ending.interrupted) else ()
    )
    return Result(
        name=run.tasks[number].name, ending=ending, document=document, told=told, evidence=tuple(adopted.values())
    )


def cancel(folder: RunFolder, run: Run) -> None:
    """End what has not ended; whoever follows the run hears how."""
    queue.cancel(recover(folder, run).jobs)
    for number in range(len(run.tasks)):
        values.remove(folder.path, number)


def _adopt(folder: RunFolder, attempt: Attempt) -> dict[str, Path]:
    """Take the evidence of an attempt into this host's store; by its file's name, where it lies now.

    It counts because the run's folder is this user's alone, from its making on: nobody else can have put it there.
    """
    ended = attempt.ended
    if ended is None or not folder.own:
        return {}
    adopted = {}
    for each in ended.evidence:
        path = attempt.path / each.file
        try:
            if not path.resolve().is_relative_to(attempt.path.resolve()):
                continue
            data = evidence.read_bounded(path, MAX_BYTES)
            envelope = evidence.envelope_of(path)
            sealed = evidence.read_bounded(envelope, MAX_BYTES) if envelope.is_file() else None
            if evidence.is_compared(path):
                evidence.adopt_compared(evidence.read_compared(path), data, sealed)
                continue
            record = evidence.read(path)
            adopted[path.name] = evidence.adopt(record, data, sealed, each.image)
            if record.target_id and not evidence.any_built(record.target_id):
                evidence.remember_built(record.target_id, each.image)
        except EnvbuildError:
            continue
    return adopted


def _relocate(document: dict[str, Any], adopted: dict[str, Path]) -> None:
    """Paths of evidence on the node, as they are here."""
    images = document.get("images")
    for body in (document, *(images if isinstance(images, list) else ())):
        if isinstance(body, dict) and isinstance(path := body.get("evidence"), str):
            body["evidence"] = str(adopted.get(Path(path).name, path))


def _document(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}


def row_of(bench: Workbench, image: str, row: str | None) -> str | None:
    """The row that decides which nodes will do for an image: the one that is named, or that its name speaks of.

    This host's engine need not have the image, so that its labels are not asked.
    """
    last = image.rpartition("/")[2].partition("@")[0].partition(":")[0]
    return next((name for name in (row, image, last) if name in bench.matrix.environments), None)


def _row(bench: Workbench, name: str | None) -> Environment | None:
    return bench.matrix.get(name) if name is not None and name in bench.matrix.environments else None


def one_row(bench: Workbench, images: Sequence[str]) -> str | None:
    """The row that decides which nodes will do for all of these images: they are to run on one.

    Raises:
        InputError: They ask for nodes of two kinds.
    """
    rows = list(dict.fromkeys(row for image in images if (row := row_of(bench, image, None)) is not None))
    if len({slurm.resources(bench.site.slurm, _row(bench, row), row) for row in rows}) > 1:
        raise InputError(
            f"{' and '.join(rows)} ask for nodes of two kinds, and both sides have to be launched on one node",
            hint="Let [slurm.rows] say the same of both, or measure each by itself: envbuild profile.",
        )
    return rows[0] if rows else None
