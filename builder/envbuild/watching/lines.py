"""The steps that a training tells of as it goes on: DeepSpeed's own lines, Megatron's, a Trainer's, progress bars."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace

from envbuild.profile.readers.log import MEGATRON, PIPE, STEP, rank_of
from envbuild.profile.readers.printed import NORM, NUMBER, losses_of, tells_loss
from envbuild.watching.learning import Printed

# "  12/1000 [00:34<47:07,  2.86s/it]", which a bar writes again and again behind carriage returns.
_BAR = re.compile(r"\| *(\d{1,9})/(\d{1,9}) \[[\d:]+<[\d:?]+, *[\d.?]+ ?(?:s/it|it/s)")
_LOADS = re.compile(r"loading|download|\bmap\b|tokeniz|fetching|generating|preprocess|filter|checkpoint shards", re.I)
# What takes longer than a step, by the words of DeepSpeed ("Saving model checkpoint", "[Torch] Saving"), Trainer and
# Megatron ("saving checkpoint", "***** Running Evaluation *****", "validation loss").
_PAUSE = re.compile(
    r"(?<![\w/.-])(?:saving|saved|evaluat\w*|validating|validation(?= loss| step| epoch| at|:)|uploading|"
    r"push(?:ing)? to|(?:running|starting) (?:evaluation|prediction|validation)|"
    r"(?:writing|creating) (?:[\w-]+ )?checkpoint)(?![\w/.-])|train_runtime", re.IGNORECASE
)  # fmt: skip
# Without one of these a line tells nothing, and most lines of most trainings have none.
_WORDS = (
    b"loss", b"norm", b"step", b"iter", b"it/s", b"s/it", b"sav", b"evaluat", b"validat", b"upload", b"push",
    b"predict", b"checkpoint", b"runtime",
)  # fmt: skip
_FIRST_BLOCK = re.compile(rb"[\r\n]+")
_LONGEST = 1 << 14
_MOST_COUNTS = 16


class Words:
    """Takes the bytes of one stream; calls ``tell`` with each step that they tell of.

    Attributes:
        steps: How many lines, or moves of a bar, have told of a step.
        number: Steps by their numbers: the highest, and where they begin again, as in each epoch, those before.
        quiet: The last line of meaning announced something that takes long.
        lines: That came.
        losses: In so many of them a loss was understood.
    """

    def __init__(self, tell: Callable[[Printed], None], clock: Callable[[], float]) -> None:
        self._tell, self._clock = tell, clock
        self._rest = b""
        self.steps = self.lines = self.losses = 0
        self.number: int | None = None
        self.quiet = False
        self._bar = -1
        self._before = ""
        self._counts: dict[int, _Count] = {}

    def take(self, data: bytes) -> None:
        """Read what came; a line that does not end is read when it is long."""
        *whole, self._rest = _FIRST_BLOCK.split(self._rest + data)
        if len(self._rest) > _LONGEST:
            whole.append(self._rest)
            self._rest = b""
        for line in whole:
            if line:
                self.lines += 1
                line = line[:_LONGEST]
                small = line.lower()
                if any(word in small for word in _WORDS):
                    self._line(line.decode(errors="replace"))

    def _line(self, line: str) -> None:
        found, bars = _step(line, self._clock()), 0
        bar = _BAR.search(line) if found is None or found.number is None else None
        if bar is not None and not _LOADS.search(line[: bar.start()]):
            moved, self._bar, bars = int(bar[1]) != self._bar, int(bar[1]), int(bar[2])
            if found is not None:
                found = replace(found, number=self._bar)
            elif moved:
                found = Printed(at=self._clock(), number=self._bar)
        if found is None:
            if _PAUSE.search(line):
                self.quiet = True
            return
        self.quiet = False
        self.losses += found.loss is not None
        # As text, because a NaN equals nothing.
        told = f"{found.number} {found.loss} {found.norm}"
        if found.number is None or told != self._before:
            # The same line again is a heartbeat's, or another rank's, and no step.
            self.steps += 1
        self._before = told
        if found.number is not None:
            # Of bars those of one length belong together: an evaluation has its own.
            key = bars if bars in self._counts or len(self._counts) < _MOST_COUNTS else 0
            self.number = max(self._counts.setdefault(key, _Count()).take(found.number), self.number or 0)
        self._tell(found)


class _Count:
    """The steps that numbers tell of."""

    def __init__(self) -> None:
        self._base = self._most = self._stride = 0
        self._first: int | None = None

    def take(self, number: int) -> int:
        if self._first is None:
            self._first = self._most = number
        elif number > self._most:
            self._stride = min(self._stride or number - self._most, number - self._most)
            self._most = number
        elif number <= self._first and self._most - number >= 2 * max(1, self._stride):
            # They begin again. Those of ranks that print one after the other lie a step apart, and no more.
            self._base += self._most + (self._first == 0)
            self._first = self._most = number
        return self._base + self._most


def _step(line: str, at: float) -> Printed | None:
    if found := PIPE.search(line):
        return Printed(at=at, number=int(found[1]), loss=float(found[2]))
    if found := STEP.search(line):
        return Printed(at=at, number=int(found[1]), rank=rank_of(line))
    iteration = MEGATRON.search(line)
    number = iteration or NUMBER.search(line)
    loss, name = _loss(line)
    norm = NORM.search(line)
    if loss is None and (norm is None or tells_loss(line)):
        return Printed(at=at, number=int(iteration[1])) if iteration else None
    return Printed(
        at=at, number=int(number[1]) if number else None, loss=loss, norm=float(norm[1]) if norm else None,
        rank=rank_of(line), name=name,
    )  # fmt: skip


def _loss(line: str) -> tuple[float | None, str]:
    """The loss that is trained on; with its name, or those of several, where none has a usual one."""
    told = losses_of(line)
    if not told:
        return None, ""
    for name, loss in told:
        if not name:
            return loss, ""
    odd = (loss for _, loss in told if not math.isfinite(loss))
    return next(odd, told[0][1]), " ".join(dict(told))


__all__ = ["Words"]
