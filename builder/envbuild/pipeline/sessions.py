"""Two sides launched in turns (A B, B A, A B, ...), so that what the host does meanwhile falls on both of them.

A session is a folder: each launch is written when it has ended, so that one that was killed goes on behind its last
whole round: the two launches of a round stand side by side, or what the host did between them would be one side's.
Which session is meant follows from what is compared. One that is finished is left alone, and the next one is new; it is
finished when what came of it is written down or told, so that a kill before that costs no launch.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from envbuild import store
from envbuild.errors import GateError
from envbuild.events import Note
from envbuild.pipeline.host import host_name
from envbuild.pipeline.profile_wish import Wish, profiler_hash
from envbuild.pipeline.profiling import Subject, profile_image
from envbuild.pipeline.workbench import Workbench
from envbuild.profile import files, keys
from envbuild.profile.document import Launch, Measurement, Turn

SIDES = ("base", "candidate")
_DONE = "done"


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One of the two: an image, and what it trains."""

    subject: Subject
    wish: Wish


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """A comparison by launches.

    Attributes:
        name: The same for the same question.
        folder: Where its launches are kept.
    """

    name: str
    folder: Path
    sides: tuple[Side, Side]
    rounds: int

    def place(self, position: int) -> Path:
        """The file of a launch."""
        return self.folder / f"{position:03d}-{SIDES[side_of(position)]}.json"

    def left(self) -> list[int]:
        """Positions of the launches to be made: both of each round that is not whole."""
        rounds = [(2 * number, 2 * number + 1) for number in range(self.rounds)]
        return [each for pair in rounds if not all(self.place(one).is_file() for one in pair) for each in pair]


def side_of(position: int) -> int:
    """Which side is launched at a position: 0 1, 1 0, 0 1, ..."""
    number, second = divmod(position, 2)
    return second if number % 2 == 0 else 1 - second


def session_of(base: Side, candidate: Side, rounds: int, *, fresh: bool = False) -> Session:
    """The session of a question: the one that was not finished, else a new one.

    Args:
        fresh: Leave an unfinished one alone, too.
    """
    # Launches on two machines do not make a round: hosts that share a store have sessions of their own.
    asked = json.dumps([_asked(base), _asked(candidate), rounds, profiler_hash(), host_name()], sort_keys=True)
    stem = hashlib.sha256(asked.encode()).hexdigest()[:16]
    home = store.home() / "sessions"
    number = 0
    while True:
        folder = home / f"{stem}-{number}"
        begun = folder.is_dir() and (fresh or (folder / _DONE).exists())
        if not begun:
            return Session(name=folder.name, folder=folder, sides=(base, candidate), rounds=rounds)
        number += 1


def _asked(side: Side) -> list[object]:
    wish = dataclasses.asdict(dataclasses.replace(side.wish, timeout=0.0, disk=None))
    return [side.subject.info.id, side.subject.config.values, wish, [str(gpu) for gpu in side.subject.decision.gpus]]


def launch(
    bench: Workbench, session: Session, measure: Callable[[Workbench, Subject, Wish], Measurement] = profile_image
) -> tuple[Measurement, Measurement]:
    """Make the launches that are left, in turns; both sides' measurements.

    Whoever has written down what they come to says so: ``finish``.

    Raises:
        GateError: A training failed (exit 5); what was launched before is kept. Or the machine is no longer the one
            that the session was begun on.
        EngineError: The engine or the disk failed.
    """
    store.make_folder(session.folder)
    with store.FileLock(session.folder / "lock"):
        left = session.left()
        total = 2 * session.rounds
        if left and len(left) < total:
            bench.sink(Note(message=f"going on with session {session.name}: {total - len(left)} of {total} launches"))
        if not left:
            bench.sink(Note(message=f"session {session.name} has all its {total} launches already"))
        for position in left:
            store.remove(session.place(position))
        began = time.monotonic()
        for number, position in enumerate(left):
            side = session.sides[side_of(position)]
            measured = measure(bench, side.subject, passes(side.wish, position))
            _believed(session, position, measured)
            store.write_json(session.place(position), files.document(_turned(measured, session.name, position)))
            if number + 1 < len(left):
                rest = (time.monotonic() - began) / (number + 1) * (len(left) - number - 1)
                done = total - len(left) + number + 1
                bench.sink(Note(message=f"{done} of {total} launches; about {_minutes(rest)} left"))
        base, candidate = (_joined(session, side) for side in (0, 1))
    return base, candidate


def finish(name: str) -> None:
    """What a session came to is on the disk, or was told: the same question begins a new one.

    Raises:
        EngineError: The disk failed.
    """
    store.write_atomic(store.home() / "sessions" / name / _DONE, "")


def passes(wish: Wish, position: int) -> Wish:
    """Whether it trains right is asked once on each side, behind the steps that are timed."""
    return dataclasses.replace(wish, passes=("timing", "parity") if position < 2 else ("timing",))


def _believed(session: Session, position: int, measured: Measurement) -> None:
    """Raise GateError where a side is no longer what it was in its first launch, such as behind a new driver."""
    first = next(each for each in range(position + 1) if side_of(each) == side_of(position))
    if first == position:
        return
    moved = keys.differences(files.read(session.place(first)).key, measured.key)
    if moved:
        what = "; ".join(f"{each.name}: {each.base} -> {each.candidate}" for each in moved)
        finish(session.name)
        which = SIDES[side_of(position)]
        raise GateError(
            f"session {session.name} cannot go on: the {which} was launched on something else: {what}",
            hint="Say the same again: it begins anew.",
        )


def _turned(measured: Measurement, session: str, position: int) -> Measurement:
    turn = Turn(session=session, position=position)
    launches = tuple(each.model_copy(update={"turn": turn}) for each in measured.launches)
    return measured.model_copy(update={"launches": launches})


def _joined(session: Session, side: int) -> Measurement:
    parts = [files.read(session.place(position)) for position in range(2 * session.rounds) if side_of(position) == side]
    return parts[0].model_copy(update={"launches": tuple(_launches(parts))})


def _launches(parts: list[Measurement]) -> Iterator[Launch]:
    for part in parts:
        yield from part.launches


def _minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} minutes"
