"""Watches a training while it runs, and says what was wrong with it at the end."""

from __future__ import annotations

import contextlib
import itertools
import signal
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median

from envbuild import store
from envbuild.errors import EnvbuildError
from envbuild.pipeline import stacks
from envbuild.pipeline.sight import Sight
from envbuild.watching import proc
from envbuild.watching.deaths import Deaths
from envbuild.watching.hangs import HANGS, Hangs, Patience
from envbuild.watching.learning import Learning, Printed
from envbuild.watching.lines import Words
from envbuild.watching.metrics import figures, text
from envbuild.watching.trends import Disks, Memories
from envbuild.watching.types import Alert, RankSeen, Tick, as_dict

# Of ranks on this host: more stacks than anybody reads.
_MOST_STACKS, _MOST_AGAIN, _MOST_FAILURES = 64, 8, 8
_ANSWER = 5.0
_NOT_YET = "it is not ended before it is known how long a step takes, or --first-step is over"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What was asked for.

    Attributes:
        on_hang: ``tell``, ``dump`` or ``stop``.
        dumps: Where stacks and flight recorders go.
        swap: The folder that an offload swaps into.
        horizon: Seconds before a memory is full from which on that is told.
    """

    patience: Patience = field(default_factory=Patience)
    on_hang: str = "tell"
    dumps: Path | None = None
    openmetrics: Path | None = None
    swap: Path | None = None
    horizon: float = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """How it went.

    Attributes:
        lines: Of output that were heard.
        losses: In so many of them a loss was understood.
    """

    alerts: tuple[Alert, ...]
    seconds: float
    steps: int
    step_seconds: float | None
    last_loss: float | None
    ranks: int
    beacons: bool
    dump: Path | None
    lines: int
    losses: int


class Watch:
    """The watching of one process and its descendants.

    Args:
        folder: Where beacons write; None where the training was not started from here.
        tell: Hears every alert as it comes.
        stop: Ends the training.
    """

    def __init__(
        self, root: int, folder: Path | None, wish: Wish, tell: Callable[[Alert], None], stop: Callable[[], None]
    ) -> None:
        self._began = time.monotonic()
        self._root, self._folder, self._wish, self._tell, self._stop = root, folder, wish, tell, stop
        self._printed: deque[Printed] = deque(maxlen=100_000)
        self._words = (Words(self._printed.append, self.now), Words(self._printed.append, self.now))
        self._sight = Sight(root, folder, self._words)
        self._hangs, self._deaths, self._learning = Hangs(wish.patience), Deaths(), Learning()
        self._memories, self._disks = Memories(wish.horizon), Disks(wish.horizon)
        self._alerts: list[Alert] = []
        self._stacks: dict[int, stacks.Stack] = {}
        self._numbers: deque[tuple[float, int]] = deque(maxlen=400)
        self._tick: Tick | None = None
        self._moved, self._seen = (0.0, 0), 0
        self._dump: Path | None = None
        self._next = 0.0
        self._stopped = False
        self._count_dumps = 0
        self._failed: set[str] = set()

    def now(self) -> float:
        """Seconds since watching began."""
        return time.monotonic() - self._began

    def follow(self, root: int) -> None:
        """The training is another process than what it was started by."""
        self._sight.follow(root)

    def hear(self, number: int, data: bytes) -> None:
        """What the training has written to stdout (1) or stderr (2)."""
        self._words[number - 1].take(data)

    def say(self, alert: Alert) -> None:
        """Tell something that somebody else has noticed."""
        self._say([alert])

    def recall(self, data: bytes) -> None:
        """What the training has written before watching began: no step of now, and nothing that is told."""
        self._words[0].take(data)
        self._printed.clear()

    def beat(self) -> None:
        """Called several times in an interval; whatever is wrong with watching, the training goes on."""
        try:
            self._beat()
        except Exception as error:
            self.cannot("cannot-look", f"a look at the training failed: {type(error).__name__}: {error}")

    def _beat(self) -> None:
        at = self.now()
        for dead in self._sight.ended():
            kernel = self._sight.kernel(dead.pid) if dead.exit_code == -signal.SIGKILL else ""
            self._died(dead, at, kernel)
        self._listen()
        if self.now() < self._next:
            return
        # A look that took long moves the next one: two of them at once would tell nothing.
        self._next = self.now() + self._wish.patience.interval
        self._look()

    def close(self, code: int | None = None) -> Watched:
        """The training has ended, with this exit code; None where that cannot be seen."""
        at = self.now()
        for dead in self._sight.ended():
            if dead.pid == self._root and code is not None:
                dead = replace(dead, exit_code=code if code <= 128 else 128 - code)
            self._died(dead, at)
        self._listen()
        if not self._stopped:
            self._say(self._deaths.close(code, at))
        ranks = self._tick.ranks if self._tick else ()
        steps = max([self._count(), *(rank.step or 0 for rank in ranks)])
        last = self._learning.last
        if self._tick is not None:
            # What it told of behind the last look counts, too.
            if steps != self._moved[1]:
                self._moved = (self._tick.at, steps)
            self._export(self._tick, up=False)
        return Watched(
            alerts=tuple(self._alerts), seconds=self.now(), steps=steps, step_seconds=self._pace(),
            last_loss=last.loss if last else None, ranks=len(ranks), beacons=self._sight.told, dump=self._dump,
            lines=sum(words.lines for words in self._words), losses=sum(words.losses for words in self._words),
        )  # fmt: skip

    def _listen(self) -> None:
        while self._printed:
            self._say(self._learning.see(self._printed.popleft()))

    def _look(self) -> None:
        tick = self._sight.look(self.now())
        self._tick = tick
        most = max((rank.step or 0 for rank in tick.ranks), default=0)
        count = max(tick.number or tick.steps, most, self._moved[1])
        if count > self._moved[1]:
            self._numbers.append((tick.at, count))
        if count > self._moved[1] or tick.steps > self._seen:
            self._moved = (tick.at, count)
        self._seen = tick.steps
        found = [*self._deaths.see(tick), *self._memories.see(tick)]
        free = proc.disk(self._wish.swap) if self._wish.swap is not None else None
        found += self._disks.see(tick, free)
        if self._hangs.standing:
            self._ask(tick)
        elif self._stacks:
            self._stacks = {}
            if self._folder is not None:
                (self._folder / "ask").unlink(missing_ok=True)
        hung = self._hangs.see(tick)
        found += [self._explained(alert, tick) for alert in hung]
        self._say(found)
        self._export(tick, up=True)
        if self._wish.on_hang != "tell":
            self._act(tick, told=any(alert.kind in HANGS for alert in hung))

    def _ask(self, tick: Tick) -> None:
        """Nothing has happened for a while: where is everybody, and do they stay there?"""
        before = self._stacks
        if not before and self._folder is not None:
            with contextlib.suppress(OSError):
                (self._folder / "ask").touch()
        there = [rank for rank in tick.ranks if rank.state]
        if before:
            # Whoever waits for others is not waited for, and a beacon sees for itself whether its rank moves.
            there = [rank for rank in there if rank.went is None and self._hangs.where.get(rank.rank) != "waiting"]
            there = there[:_MOST_AGAIN]
        read = {rank.rank: stacks.read(rank.pid, rank.rank, self._folder) for rank in there[:_MOST_STACKS]}
        self._stacks = {**before, **read}
        self._hangs.stirred = frozenset(rank for rank in read if rank in before and read[rank].elsewhere(before[rank]))
        self._hangs.where = {rank: stack.where for rank, stack in self._stacks.items() if stack.where is not None}

    def _explained(self, alert: Alert, tick: Tick) -> Alert:
        rank = next((each for each in tick.ranks if each.rank == alert.rank and each.state), None)
        if self._wish.on_hang == "stop" and alert.kind in HANGS and not self._hangs.certain(tick):
            alert = replace(alert, evidence=(*alert.evidence, _NOT_YET))
        if alert.rank not in self._stacks or alert.kind == "goes-on":
            return alert
        if rank is not None:
            # It may have been somewhere else when it was last looked at.
            self._stacks[rank.rank] = stacks.read(rank.pid, rank.rank, self._folder)
        stack = self._stacks[alert.rank]
        if not stack.text:
            return replace(alert, evidence=(*alert.evidence, f"its Python stack cannot be read: {stack.problem}"))
        lines = (f"its Python stack ({stack.source}):", *(f"  {line}" for line in stack.lines()))
        return replace(alert, evidence=(*alert.evidence, *lines))

    def _act(self, tick: Tick, *, told: bool) -> None:
        if told and self._wish.dumps is not None:
            try:
                self._dumped(tick, self._wish.dumps)
            except (EnvbuildError, OSError) as error:
                self.cannot("cannot-write", f"no dump of the hang: {error}")
        if self._wish.on_hang == "stop" and not self._stopped and self._hangs.certain(tick):
            self._stopped = True
            self._stop()

    def _dumped(self, tick: Tick, dumps: Path) -> None:
        self._count_dumps += 1
        more = f"-{self._count_dumps}" if self._count_dumps > 1 else ""
        self._dump = dumps.with_name(dumps.name + more)
        self._await_answers(tick)
        for number, stack in self._stacks.items():
            store.write_atomic(self._dump / f"rank-{number}.stack.txt", stack.text or f"{stack.problem}\n")
        told = [as_dict(alert) for alert in self._alerts]
        store.write_json(self._dump / "alerts.json", {"alerts": told, "at": tick.at})
        for path in sorted(self._folder.glob("*-*.*")) if self._folder is not None else ():
            if path.suffix in (".json", ".txt"):
                store.write_atomic(self._dump / path.name, path.read_bytes())

    def _await_answers(self, tick: Tick) -> None:
        """Ranks that can answer do so within a second."""
        if self._folder is None or not self._sight.told:
            return
        until = time.monotonic() + _ANSWER
        able = [rank.rank for rank in tick.ranks if rank.state and rank.state not in "TtZ"]
        while time.monotonic() < until and not all((self._folder / f"stack-{rank}.txt").is_file() for rank in able):
            time.sleep(0.1)

    def _died(self, dead: RankSeen, at: float, kernel: str = "") -> None:
        if not self._stopped:
            ooms, sure = self._sight.ooms(), not self._sight.guessed
            self._say(self._deaths.died(dead, at, ooms=ooms, kernel=kernel, sure=sure))

    def cannot(self, kind: str, message: str) -> None:
        """Say once that watching itself is in want of something."""
        if message not in self._failed and len(self._failed) < _MOST_FAILURES:
            self._failed.add(message)
            with contextlib.suppress(Exception):
                self._say([Alert(kind=kind, severity="warning", message=message, at=self.now())])

    def _say(self, found: list[Alert]) -> None:
        for alert in found:
            self._alerts.append(alert)
            self._tell(alert)

    def _count(self) -> int:
        number = max((words.number or 0 for words in self._words), default=0)
        return number or sum(words.steps for words in self._words)

    def _export(self, tick: Tick, *, up: bool) -> None:
        if self._wish.openmetrics is not None:
            last = self._learning.last
            seen = figures(
                tick, up=up, moved=self._moved, pace=self._pace(), loss=last.loss if last else None,
                norm=self._learning.norm, alerts=self._alerts,
            )  # fmt: skip
            try:
                store.write_atomic(self._wish.openmetrics, text(seen))
            except (EnvbuildError, OSError) as error:
                self.cannot("cannot-write", f"{self._wish.openmetrics} is not kept up to date: {error}")

    def _pace(self) -> float | None:
        pairs = list(self._numbers)[1:]
        paces = [(b[0] - a[0]) / (b[1] - a[1]) for a, b in itertools.pairwise(pairs) if b[1] > a[1]]
        return median(paces) if paces else None
