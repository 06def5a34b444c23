"""The steps that a training tells of as it goes on: DeepSpeed's own lines, Megatron's, a Trainer's, progress bars."""

from __future__ import annotations

import re
from collections.abc import Callable

from envbuild.profile.readers.log import MEGATRON, PIPE, STEP, rank_of
from envbuild.profile.readers.printed import NORM, NUMBER, loss_of, tells_loss
from envbuild.watching.learning import Printed

# "  12/1000 [00:34<47:07,  2.86s/it]", which a bar writes again and again behind carriage returns.
_BAR = re.compile(r"\| *(\d{1,9})/\d{1,9} \[[\d:]+<[\d:?]+, *[\d.?]+ ?(?:s/it|it/s)")
_LOADS = re.compile(r"loading|download|\bmap\b|tokeniz|fetching|generating|preprocess|filter|checkpoint shards", re.I)
# What takes longer than a step, by the words of DeepSpeed ("Saving model checkpoint", "[Torch] Saving"), Trainer and
# Megatron ("saving checkpoint", "***** Running Evaluation *****", "validation loss").
_PAUSE = re.compile(
    r"(?<![\w/.-])(?:saving|saved|evaluat\w*|validating|validation(?= loss| step| epoch| at|:)|uploading|"
    r"push(?:ing)? to|(?:running|starting) (?:evaluation|prediction|validation)|"
    r"(?:writing|creating) (?:[\w-]+ )?checkpoint)(?![\w/.-])|train_runtime", re.IGNORECASE
)  # fmt: skip
_FIRST_BLOCK = re.compile(rb"[\r\n]+")
_LONGEST = 1 << 14


class Words:
    """Takes the bytes of one stream; calls ``tell`` with each step that they tell of.

    Attributes:
        steps: How many lines, or moves of a bar, have told of a step.
        number: The highest number of a step.
        quiet: The last line of meaning announced something that takes long.
    """

    def __init__(self, tell: Callable[[Printed], None], clock: Callable[[], float]) -> None:
        self._tell, self._clock = tell, clock
        self._rest = b""
        self.steps = 0
        self.number: int | None = None
        self.quiet = False
        self._bar = -1
        self._before = ""

    def take(self, data: bytes) -> None:
        """Read what came; a line that does not end is read when it is long."""
        *whole, self._rest = _FIRST_BLOCK.split(self._rest + data)
        if len(self._rest) > _LONGEST:
            whole.append(self._rest)
            self._rest = b""
        for line in whole:
            if line:
                self._line(line[:_LONGEST].decode(errors="replace"))

    def _line(self, line: str) -> None:
        found = _step(line, self._clock())
        bar = _BAR.search(line) if found is None else None
        if bar is not None and not _LOADS.search(line[: bar.start()]) and int(bar[1]) != self._bar:
            self._bar = int(bar[1])
            found = Printed(at=self._clock(), number=self._bar)
        if found is None:
            if _PAUSE.search(line):
                self.quiet = True
            return
        self.quiet = False
        # As text, because a NaN equals nothing.
        told = f"{found.number} {found.loss} {found.norm}"
        if found.number is None or told != self._before:
            # The same line again is a heartbeat's, or another rank's, and no step.
            self.steps += 1
        self._before = told
        if found.number is not None:
            self.number = max(found.number, self.number or 0)
        self._tell(found)


def _step(line: str, at: float) -> Printed | None:
    if found := PIPE.search(line):
        return Printed(at=at, number=int(found[1]), loss=float(found[2]))
    if found := STEP.search(line):
        return Printed(at=at, number=int(found[1]), rank=rank_of(line))
    loss, norm = loss_of(line), NORM.search(line)
    number = MEGATRON.search(line) or NUMBER.search(line)
    if loss is None and (norm is None or tells_loss(line)):
        return Printed(at=at, number=int(number[1])) if number and MEGATRON.search(line) else None
    return Printed(
        at=at, number=int(number[1]) if number else None, loss=loss,
        norm=float(norm[1]) if norm else None, rank=rank_of(line),
    )  # fmt: skip


__all__ = ["Words"]
