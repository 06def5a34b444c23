"""A training that runs and does not learn: from the losses and gradient norms that it prints.

Every rule needs a number of printed values in a row, and says how many. A loss that is noisy, or has come as far as it
will, is none of this, and neither is one of several that a training has besides its own ("D loss", "aux loss").
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from dataclasses import dataclass
from statistics import median

from envbuild.watching.types import Alert, Severity

ZEROS, ODD, SAME, TURNS, FLAT, RISEN = 5, 5, 20, 40, 200, 40
# Before the first norm: with fp16 DeepSpeed begins at a scale of 2^16 and halves it with each step that overflows, and
# in 0.14.4 such a step leaves the norm at the 0.0 that it begins with (runtime/zero/stage_1_and_2.py, step).
_FIRST_ZEROS = 20
# In 0.19.8 its norm is infinite (stage3.py, _loss_scale_update_and_overflow_cleanup; stage_1_and_2.py, step), and the
# Trainer prints that. From 2^32 (the largest that DynamicLossScaler says it begins with) to 1 it is halved 32 times,
# and one overflow is forgiven (hysteresis 2; runtime/fp16/loss_scaler.py, update_scale). Later the scale is doubled
# after 1000 steps that went well: then two in a row overflow. torch's GradScaler begins at 2^16, and forgives none.
_FIRST_ODD = 40
# Of independent noise two values in three are turning points (25 of 38, standard deviation 2.6): 37 are no chance,
# however long somebody looks.
_TURNING = 0.97
_SWING = 0.2
_FALLEN = 1e-3
# Seconds: what ranks print of one step, or of its micro-steps, comes within this; without anything from the rank that
# told of steps so far another one's words count after that.
_MOMENT, _LONG = 0.5, 60.0
_MOST_NAMES = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Printed:
    """What one line of the training tells of a step.

    Attributes:
        name: Of the loss, where it is none of the usual names for the one that is trained on.
    """

    at: float
    number: int | None = None
    loss: float | None = None
    norm: float | None = None
    rank: int = 0
    name: str = ""


class Learning:
    """Hears every printed step; says each thing once.

    Attributes:
        last: What told of the last loss.
        norm: The last gradient norm.
    """

    def __init__(self) -> None:
        self.last: Printed | None = None
        self.norm: float | None = None
        self._told: set[str] = set()
        self._names: set[str] = set()
        self._zeros = self._odd = 0
        self._usual = False
        self._normed: Printed | None = None
        self._begin()

    def _begin(self) -> None:
        """No loss is known yet."""
        self._losses: deque[float] = deque(maxlen=FLAT)
        self._first: list[float] = []
        self._same = self._count = 0
        self._best = math.inf
        self._counted: Printed | None = None

    def see(self, line: Printed) -> list[Alert]:
        """One printed step later."""
        found: list[Alert | None] = []
        if line.norm is not None and not _again(line, self._normed):
            self._normed = line
            found += self._gradients(line, line.norm)
        if line.loss is not None:
            found += self._loss(line, line.loss)
        return [alert for alert in found if alert is not None]

    def _gradients(self, line: Printed, norm: float) -> list[Alert | None]:
        self.norm = norm
        finite = math.isfinite(norm)
        self._zeros = self._zeros + 1 if norm == 0 else 0
        self._odd = 0 if finite else self._odd + 1
        self._usual = self._usual or (finite and norm != 0)
        found = []
        if self._zeros >= (ZEROS if self._usual else _FIRST_ZEROS):
            found.append(self._say(line, "zero-gradients", "error", "all gradients are zero: nothing is learnt",
                                   f"the gradient norm is 0 in {self._zeros} lines in a row"))  # fmt: skip
        if self._odd >= (ODD if self._usual else _FIRST_ODD):
            word = "not a number" if math.isnan(norm) else "infinite"
            found.append(self._say(line, "gradients-nan", "error", f"the gradients are {word}: nothing is learnt",
                                   f"so is their norm in {self._odd} lines in a row, more than fp16's loss scale "
                                   "skips"))  # fmt: skip
        return found

    def _loss(self, line: Printed, loss: float) -> list[Alert | None]:
        if not math.isfinite(loss):
            word = "not a number" if math.isnan(loss) else "infinite"
            last = f"the last finite one was {self._losses[-1]:.6g}" if self._losses else "no loss before was finite"
            self.last = line
            return [self._say(line, "loss-nan", "error", f"the loss is {word}", last)]
        if not self._is_own(line):
            return []
        if self._counted is not None and self._counted.name != line.name:
            self._begin()
        if _again(line, self._counted):
            return []
        self.last = self._counted = line
        self._same = self._same + 1 if self._losses and self._losses[-1] == loss else 1
        self._losses.append(loss)
        self._count += 1
        if len(self._first) < SAME:
            self._first.append(loss)
        recent = list(self._losses)[-RISEN:]
        if len(recent) >= SAME:
            self._best = min(self._best, median(recent[-SAME:]))
        return [self._stuck(line, loss), self._swings(line), self._rises(line, recent)]

    def _is_own(self, line: Printed) -> bool:
        """Whether it is the loss that is trained on: the one without a name of its own, or the only one."""
        if len(self._names) < _MOST_NAMES:
            self._names.add(line.name)
        own = not line.name or (self._names == {line.name} and " " not in line.name)
        if not own and (self.last is None or self.last.name):
            self.last = line
        return own

    def _stuck(self, line: Printed, loss: float) -> Alert | None:
        if self._same >= SAME:
            return self._say(line, "loss-stuck", "warning", "the loss does not move at all",
                             f"{loss:.6g} in {SAME} lines in a row, to every printed digit")  # fmt: skip
        if self._count != FLAT:
            return None
        begun, now = median(self._first), median(list(self._losses)[-SAME:])
        if now < begun - _FALLEN * abs(begun):
            return None
        return self._say(line, "loss-flat", "warning", f"the loss has not fallen in its first {FLAT} printed values",
                         f"median of the first {SAME}: {begun:.6g}, of the last {SAME}: {now:.6g}")  # fmt: skip

    def _swings(self, line: Printed) -> Alert | None:
        last = list(self._losses)[-TURNS:]
        if len(last) < TURNS:
            return None
        turns = sum((b - a) * (c - b) < 0 for a, b, c in zip(last, last[1:], last[2:], strict=False))
        swing = median(abs(b - a) for a, b in itertools.pairwise(last)) / max(1e-12, abs(median(last)))
        if turns < _TURNING * (TURNS - 2) or swing < _SWING:
            return None
        return self._say(line, "loss-oscillates", "warning", "the loss jumps up and down",
                         f"{turns} turns in {TURNS} lines, by {swing:.0%} of its value each")  # fmt: skip

    def _rises(self, line: Printed, recent: list[float]) -> Alert | None:
        if len(recent) < RISEN:
            return None
        early, late = median(recent[:SAME]), median(recent[-SAME:])
        # Twice the best, and still on the way up; a loss at or below zero has no such scale.
        if self._best <= 0 or late < 2 * self._best or late <= early:
            return None
        return self._say(line, "loss-rises", "warning", "the loss has doubled and goes on rising",
                         f"median of the last {SAME} lines: {late:.6g}, at its best {self._best:.6g}")  # fmt: skip

    def _say(self, line: Printed, kind: str, severity: Severity, message: str, evidence: str) -> Alert | None:
        if kind in self._told:
            return None
        self._told.add(kind)
        place = f" (step {line.number})" if line.number is not None else ""
        return Alert(kind=kind, severity=severity, message=message + place, at=line.at, evidence=(evidence,))


def _again(line: Printed, last: Printed | None) -> bool:
    """Whether a line tells of the same step as another one before it: another rank's, or the same words again."""
    if last is None:
        return False
    if line.rank != last.rank:
        return line.at - last.at < _LONG
    if line.number is not None:
        if line.number != last.number:
            return False
        if (line.loss, line.norm) == (last.loss, last.norm):
            return True
    return line.at - last.at < _MOMENT
