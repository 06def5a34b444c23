"""build of several rows: a process for each, so that one that fails, or is ended, leaves the others alone."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envbuild import process
from envbuild.cli import failure, lines, output
from envbuild.cli import options as opt
from envbuild.cli.building import Asked, image_of, one, planned
from envbuild.cli.display import make_sinks, seconds_text
from envbuild.errors import ENGINE, INTERRUPTED, EngineError, EnvbuildError
from envbuild.events import Note, Sink, WorkDone, step_text
from envbuild.pipeline.many import (
    FAILED,
    INTERRUPTED_ROW,
    NOT_BEGUN,
    Outcome,
    changed_since,
    stopped,
    worst,
)
from envbuild.pipeline.room import builds_at_once, compilers, rows_at_once
from envbuild.pipeline.workbench import Workbench

if TYPE_CHECKING:
    from envbuild.cli.cluster import How

# Of what a process says that is no event: enough for the end of a traceback.
_TAIL = 15
# Of an error, in a line that has more to say; all of it is told elsewhere.
_ERROR_WIDTH = 100
_LEAST_ERROR_WIDTH = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which rows are to be built, and how, as the command line said it."""

    rows: list[str] | None
    every: bool
    since: str | None
    jobs: int
    project: Path | None
    host: str | None
    engine: str | None
    builder: str | None
    key: str | None
    asked: Asked

    def argv(self, row: str, compilers: int) -> tuple[str, ...]:
        """The command line of one of them."""
        return (*lines.program(), *self.arguments(row, {"--compilers": compilers}))

    def arguments(self, row: str, more: Mapping[str, object], *also: str) -> tuple[str, ...]:
        """What envbuild is told to build one of them."""
        asked = self.asked
        texts = {
            "--project": self.project, "--host": self.host, "--engine": self.engine, "--builder": self.builder,
            "--key": self.key, "--allow-level": asked.allow_level,
            "--gpus": asked.gpus, "--timeout": asked.timeout, "--smoke-timeout": asked.smoke_timeout, **more,
        }  # fmt: skip
        flags = {"--no-cache": asked.no_cache, "--record": asked.record, "--force": asked.force}
        return (
            "build",
            *(f"{name}={value}" for name, value in texts.items() if value is not None),
            *(name for name, given in flags.items() if given), *also, "--", row,
        )  # fmt: skip


def part(project: Path | None, host: str | None, settings: Mapping[str, object], row: str, asked: Asked) -> None:
    """One row of several, in a process of its own: everything is told in lines of JSON."""
    bench = Workbench(project_folder=project, host=host, sink=lines.tell, settings=settings)
    try:
        result, written = one(bench, row, asked)
    except EnvbuildError as error:
        lines.end(lines.Ended(image={}, error=failure.fields(error), told=failure.told(error)))
        raise failure.Concluded(error.exit_code) from error
    lines.end(lines.Ended(image=image_of(result, written), error={}))


def build(
    wanted: Wanted, settings: Mapping[str, object], *, json: bool, verbose: bool, quiet: bool, dry_run: bool
) -> None:
    """Build the rows, and say at the end what came of each."""
    bench = Workbench(project_folder=wanted.project, host=wanted.host, settings=settings)
    names = chosen(bench, wanted, quiet=quiet)
    if dry_run:
        _plans(bench, names, wanted.asked, json=json)
        return
    _ = opt.level(wanted.asked.allow_level), opt.gpus(wanted.asked.gpus)
    bench.need_signing_key()
    bench.need_engine()
    interrupted = False
    with make_sinks(quiet=quiet, verbose=verbose) as sink_of:
        work = _Work(names, sink_of)
        try:
            work.run(bench, wanted)
        except KeyboardInterrupt:
            interrupted = True
    outcomes = work.outcomes()
    show(outcomes, json=json)
    code = INTERRUPTED if interrupted else worst(outcomes)
    if code:
        raise failure.Concluded(code)


def send(wanted: Wanted, settings: Mapping[str, object], how: How) -> None:
    """The same on a cluster, a job for each row: what is up to date there, the node finds."""
    from envbuild.cli import cluster
    from envbuild.pipeline.works import Work

    bench = Workbench(project_folder=wanted.project, host=wanted.host, settings=settings)
    names = chosen(bench, wanted, quiet=how.quiet)
    _ = opt.level(wanted.asked.allow_level), opt.gpus(wanted.asked.gpus)
    bench.need_signing_key()
    there = cluster.seen_from_nodes(bench, wanted.key)
    if names:
        works = [Work(name=name, row=name, argv=wanted.arguments(name, there, "--json")) for name in names]
        cluster.carry_out(bench, "build", works, how)
    else:
        show([], json=how.json)


def chosen(bench: Workbench, wanted: Wanted, *, quiet: bool) -> list[str]:
    """The rows that are meant."""
    names = opt.chosen(bench, wanted.rows, wanted.every or (wanted.since is not None and not wanted.rows), "build")
    if wanted.since is None:
        return names
    changed = changed_since(bench, wanted.since, names)
    if not quiet:
        output.narrate(f"changed since {wanted.since}: {', '.join(changed) or 'no row'} (of {len(names)})")
    return changed


class _Work:
    """The rows of one run, and what has come of them so far."""

    def __init__(self, names: Sequence[str], sink_of: Callable[[str], Sink]) -> None:
        self._names = names
        self._sink_of = sink_of
        self._outcomes: dict[str, Outcome] = {}
        self._began: dict[str, float] = {}
        self._ended: dict[str, lines.Ended] = {}
        self._other: dict[str, list[str]] = {}

    def run(self, bench: Workbench, wanted: Wanted) -> None:
        """Build what is not up to date."""
        from envbuild.pipeline.current import still_current

        for name in self._names if not wanted.asked.repeats else ():
            done = still_current(bench, name)
            if done is not None:
                self._outcomes[name] = Outcome(row=name, status=done.status, exit_code=0, image=image_of(done, ()))
                self._sink_of(name)(Note(message=done.status))
        left = [name for name in self._names if name not in self._outcomes]
        if not left:
            return
        info = bench.engine.info()
        at_once = rows_at_once(wanted.jobs, len(left), cpus=info.cpus, memory_bytes=info.memory_bytes)
        if at_once < min(wanted.jobs, len(left)):
            self._sink_of("")(Note(message=f"{info.cpus} CPUs and their memory are enough for {at_once} at a time"))
        _require_room(bench, left, at_once)
        each = compilers(
            cpus=info.cpus, memory_bytes=info.memory_bytes, at_once=min(at_once, builds_at_once(info.cpus))
        )
        process.crew(
            [process.Member(name=name, argv=wanted.argv(name, each)) for name in left],
            at_once=at_once, on_start=self._start, on_line=self._line, on_end=self._end,
        )  # fmt: skip

    def outcomes(self) -> list[Outcome]:
        """Every row, in the order asked for."""
        return [
            self._outcomes.get(name)
            or stopped(name, INTERRUPTED_ROW if name in self._began else NOT_BEGUN, self._seconds(name))
            for name in self._names
        ]

    def _start(self, name: str) -> None:
        self._began[name] = time.monotonic()
        self._other[name] = []

    def _line(self, name: str, line: str) -> None:
        said = lines.read(line)
        if isinstance(said, lines.Ended):
            self._ended[name] = said
        elif said is not None:
            self._sink_of(name)(said)
        elif line.strip():
            self._other[name] = [*self._other[name], line][-_TAIL:]

    def _end(self, name: str, code: int) -> None:
        outcome = self._outcome(name, code, self._ended.get(name))
        self._outcomes[name] = outcome
        text = outcome.status if not outcome.error else f"{outcome.status}: {_first_line(outcome)}"
        self._sink_of(name)(WorkDone(detail=text, seconds=outcome.seconds, ok=not outcome.exit_code))

    def _outcome(self, name: str, code: int, ended: lines.Ended | None) -> Outcome:
        seconds = self._seconds(name)
        if ended is None:
            if code == INTERRUPTED:
                return stopped(name, INTERRUPTED_ROW, seconds)
            how = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
            error = EngineError("\n".join((f"the build of {name} {how} without a result", *self._other[name])))
            ended = lines.Ended(image={}, error=failure.fields(error), told=failure.told(error))
            code = ENGINE
        if ended.error:
            return Outcome(
                row=name, status=FAILED, exit_code=code, seconds=seconds, error=dict(ended.error), told=ended.told
            )
        status = str(ended.image.get("status", ""))
        return Outcome(row=name, status=status, exit_code=code, seconds=seconds, image=dict(ended.image))

    def _seconds(self, name: str) -> float:
        return time.monotonic() - self._began[name] if name in self._began else 0.0


def _require_room(bench: Workbench, names: Sequence[str], at_once: int) -> None:
    """Free disk for the rows that can be prepared; what is wrong with the others they say themselves."""
    from envbuild.pipeline.prepare import Target, prepare
    from envbuild.pipeline.room import require

    def prepared(name: str) -> Target | None:
        try:
            return prepare(bench, name)
        except EnvbuildError:
            return None

    targets = [target for name in names if (target := prepared(name)) is not None]
    require(bench, targets, at_once=at_once)


def _plans(bench: Workbench, names: Sequence[str], asked: Asked, *, json: bool) -> None:
    codes: dict[str, int] = {}

    def plan(name: str) -> dict[str, Any]:
        try:
            return {**planned(bench, name, asked), "error": None}
        except EnvbuildError as error:
            codes[name] = error.exit_code
            return {"environment": name, "target_id": None, "steps": [], "error": failure.fields(error)}

    plans = [plan(name) for name in names]
    if json:
        output.document("build", plans=plans)
    else:
        for each in plans:
            output.text(output.paint(str(each["environment"]), "1"))
            for step in each["steps"] or [f"cannot be built: {each['error']['message'].splitlines()[0]}"]:
                output.text(f"  {step}")
    if codes:
        raise failure.Concluded(max(codes.values()))


def show(outcomes: Sequence[Outcome], *, json: bool, **more: object) -> None:
    """What came of each row; ``more`` is for the document."""
    # With --json too: who reads the log of a CI sees no document.
    for outcome in outcomes:
        if outcome.told:
            output.narrate(output.paint(f"{outcome.row}:", "1", stream=sys.stderr))
            for line in outcome.told:
                output.narrate(f"  {line}")
    if json:
        output.document("build", images=[outcome.as_dict() for outcome in outcomes], **more)
        return
    elsewhere = any(each.node for each in outcomes)
    heads = ("ROW", "STATUS", "LEVEL", *(("NODE",) if elsewhere else ()), "TIME")
    before = [heads, *(_cells(each, elsewhere=elsewhere) for each in outcomes)]
    taken = sum(max(map(len, column)) + 2 for column in zip(*before, strict=True))
    room = max(_LEAST_ERROR_WIDTH, output.width() - taken)
    last = [next(iter(each.image.get("tags", ())), "") or _first_line(each, room) or "-" for each in outcomes]
    header, *rows = ((*cells, tag) for cells, tag in zip(before, ["TAG", *last], strict=True))
    output.table(header, rows)


def _cells(outcome: Outcome, *, elsewhere: bool) -> tuple[str, ...]:
    took = seconds_text(outcome.seconds) if outcome.seconds >= 1 else "-"
    level = str(outcome.image.get("level") or "-")
    return outcome.row, outcome.status, level, *((outcome.node or "-",) if elsewhere else ()), took


def _first_line(outcome: Outcome, room: int = _ERROR_WIDTH) -> str:
    text = step_text(str(outcome.error.get("message", "")).partition("\n")[0]).rstrip(":")
    return text if len(text) <= room else f"{text[: room - 3]}..."
