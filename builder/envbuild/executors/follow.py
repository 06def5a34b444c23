"""Listening to a run on a cluster until every task of it has ended.

It only reads: any number of sessions may follow a run, and one that goes away changes nothing. What a task tells is in
its files; what Slurm says matters where they say nothing: before a task begins, and when it has ended without a word.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from envbuild.errors import INTERRUPTED
from envbuild.events import Note
from envbuild.executors import slurm, words
from envbuild.executors.runs import Attempt, Run, RunFolder
from envbuild.executors.words import State

# Seconds. Files are cheap to look at; Slurm's controller is everybody's.
LOOK, ASK = 0.5, 5.0
# How often Slurm has to say that a task has ended, or is unknown, before a missing result is believed: on a network
# file system files appear later than they are written.
_PATIENCE = 3
_LOG_BYTES, _LOG_WIDTH = 2000, 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How a task ended.

    Attributes:
        code: Its exit code, as envbuild's commands have them.
        attempt: The one that counts; None where none was begun.
        job: Slurm's number of it, with the task's.
        node: Where it ran.
        message: Why there is no result, where there is none; with what to do in ``hint``.
        interrupted: Somebody ended it.
    """

    code: int
    job: str
    attempt: Attempt | None = None
    node: str = ""
    seconds: float = 0.0
    message: str = ""
    hint: str = ""
    interrupted: bool = False


@dataclass(slots=True)
class _Followed:
    """One task, and what has been heard of it."""

    number: int = 0
    offset: int = 0
    rest: bytes = b""
    said: str = ""
    missing: int = 0
    ending: Ending | None = None


@dataclass(slots=True)
class Follower:
    """A session that listens to a run.

    Attributes:
        ask: What Slurm says of the run's arrays; None where it does not answer.
        on_line: Gets a task's name and a line of its events.
        on_note: Gets a task's name and something that only this side knows.
        on_end: Gets a task's name and how it ended.
    """

    folder: RunFolder
    run: Run
    ask: Callable[[], Mapping[str, State] | None]
    on_line: Callable[[str, str], None]
    on_note: Callable[[str, Note], None]
    on_end: Callable[[str, Ending], None]
    _tasks: dict[int, _Followed] = field(default_factory=dict, init=False)
    _silent: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self._tasks = {number: _Followed() for number in range(len(self.run.tasks))}

    def listen(self, clock: Callable[[], float] = time.monotonic, wait: Callable[[float], None] = time.sleep) -> None:
        """Listen until every task has ended. Of a run that is over Slurm is not asked: it may be far away by now."""
        self.look(None)
        asked = -ASK
        while not self.over:
            states = None
            if clock() - asked >= ASK:
                states, asked = self._asked(), clock()
            self.look(states)
            if not self.over:
                wait(LOOK)

    @property
    def over(self) -> bool:
        """Whether every task has ended."""
        return all(each.ending is not None for each in self._tasks.values())

    @property
    def endings(self) -> dict[int, Ending]:
        """How those that have ended did."""
        return {number: each.ending for number, each in self._tasks.items() if each.ending is not None}

    def look(self, states: Mapping[str, State] | None) -> None:
        """Hear what is new; ``states`` is None where Slurm was not asked, or did not answer."""
        for number, each in self._tasks.items():
            if each.ending is None:
                self._look(number, each, states)

    def _asked(self) -> Mapping[str, State] | None:
        states = self.ask()
        if states is None and not self._silent:
            self.on_note(
                "", Note(message="Slurm does not answer; the jobs go on, and it is asked again", level="warning")
            )
        self._silent = states is None
        return states

    def _look(self, number: int, each: _Followed, states: Mapping[str, State] | None) -> None:
        name, job = self.run.tasks[number].name, self._job(number)
        if job is None:  # the session was killed before it submitted this one
            self._end(number, each, Ending(code=INTERRUPTED, job="", interrupted=True))
            return
        attempt = self.folder.last(number)
        if attempt is not None and attempt.number != each.number:
            self._began(name, each, attempt)
        if attempt is not None:
            # Before the events: what is told behind this has been told.
            ended = attempt.ended
            self._hear(name, each, attempt)
            if ended is not None and (ended.how != "told" or self._final(job, states)):
                self._end(number, each, self._ending(number, attempt))
                return
        if states is None:
            return
        state = states.get(job)
        if state is not None and state.waiting:
            each.missing = 0
            self._waits(name, each, state, attempt)
        elif state is None or state.ended:
            each.missing += 1
            if each.missing >= _PATIENCE:
                self._end(number, each, self._without(number, attempt, state))

    def _began(self, name: str, each: _Followed, attempt: Attempt) -> None:
        node = attempt.node
        where = f"{node.node} runs it (job {node.job})" if node is not None else "it has begun"
        if attempt.number > 1:
            before = attempt.before.node
            lost = f"{before.node} failed, or was taken away" if before is not None else "its node failed"
            self.on_note(name, Note(message=f"{lost}; attempt {attempt.number} of {slurm.ATTEMPTS}", level="warning"))
        self.on_note(name, Note(message=where))
        each.number, each.offset, each.rest, each.missing = attempt.number, 0, b"", 0

    def _hear(self, name: str, each: _Followed, attempt: Attempt) -> None:
        try:
            with attempt.events.open("rb") as file:
                file.seek(each.offset)
                data = file.read()
        except OSError:
            return
        each.offset += len(data)
        *lines, each.rest = (each.rest + data).split(b"\n")
        for line in lines:
            self.on_line(name, line.decode(errors="replace"))

    def _waits(self, name: str, each: _Followed, state: State, attempt: Attempt | None) -> None:
        why, hopeful = words.waits(state.reason)
        if state.reason and why != each.said:
            each.said = why
            what = "it is back in the queue" if attempt is not None else "it waits"
            self.on_note(name, Note(message=f"{what}: {why}", level="info" if hopeful else "warning"))

    @staticmethod
    def _final(job: str, states: Mapping[str, State] | None) -> bool:
        """Whether a task that was told to end will not be run again: a node that fails tells it, too."""
        if states is None:
            return False
        state = states.get(job)
        return state is None or state.ended

    def _job(self, number: int) -> str | None:
        job = self.run.submission_of(number).job
        return f"{job}_{number}" if job else None

    def _ending(self, number: int, attempt: Attempt) -> Ending:
        ended, node, job = attempt.ended, attempt.node, self._job(number) or "?"
        assert ended is not None
        seconds = (ended.ended - node.began).total_seconds() if node is not None else 0.0
        message = hint = ""
        if ended.how == "late":
            limit = self.run.submission_of(number).limit
            message, hint = words.told_of(
                State(name="TIMEOUT", node=node.node if node else ""), job=job, limit=limit
            )  # fmt: skip
        elif ended.how == "refused":
            message = f"job {job} was taken away {slurm.ATTEMPTS} times: its nodes failed, or had to make room"
            hint = "Look at the nodes: sinfo -R; then run again."
        return Ending(
            code=ended.code, attempt=attempt, job=job, node=node.node if node else "", seconds=seconds,
            message=message, hint=hint, interrupted=ended.how == "told",
        )  # fmt: skip

    def _without(self, number: int, attempt: Attempt | None, state: State | None) -> Ending:
        """A task that is over, as Slurm says, and has left nothing."""
        node, job = attempt.node if attempt is not None else None, self._job(number) or "?"
        seconds = 0.0
        if node is not None:
            seconds = (datetime.datetime.now(datetime.timezone.utc) - node.began).total_seconds()
        where = node.node if node is not None else state.node if state is not None else ""
        if state is not None and state.name == "CANCELLED":
            return Ending(code=INTERRUPTED, attempt=attempt, job=job, node=where, seconds=seconds, interrupted=True)
        submission = self.run.submissions.index(self.run.submission_of(number))
        message, hint = words.told_of(
            state, job=job, limit=self.run.submission_of(number).limit, log=self._log(submission, number)
        )  # fmt: skip
        return Ending(code=3, attempt=attempt, job=job, node=where, seconds=seconds, message=message, hint=hint)

    def _log(self, submission: int, number: int) -> str:
        try:
            text = self.folder.log(submission, number).read_bytes()[-_LOG_BYTES:].decode(errors="replace")
        except OSError:
            return ""
        return " ".join(text.split())[-_LOG_WIDTH:]

    def _end(self, number: int, each: _Followed, ending: Ending) -> None:
        each.ending = ending
        self.on_end(self.run.tasks[number].name, ending)
