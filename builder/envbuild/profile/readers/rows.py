"""One rank in a log, while it is being read: its rows of steps, whatever order their figures come in."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, get_args

from envbuild.profile.figures import Inside, Part, Steps

# Far more steps than a comparison needs; a log of more is cut, and that is said.
MOST_STEPS = 200_000
# By how many printed steps another rank's line may come late. More is a step that was trained again.
_LATE = 2
# Losses of micro-batches in front of a step's timers; so many that have no number may be of one step.
_MICRO = 64
_LEARNING = {"loss", "gradient_norm"}


@dataclass(slots=True)
class Row:
    """One step."""

    number: int = -1
    figures: dict[str, float] = field(default_factory=dict)
    told: dict[str, int] = field(default_factory=dict)
    turn: int = 0

    def tell(self, figures: Mapping[str, float]) -> None:
        """What several lines tell of one step, such as those of its ranks or micro-batches, is their mean."""
        for name, value in figures.items():
            count = self.told.get(name, 0)
            before = self.figures.get(name, value)
            self.figures[name] = value if before == value else (before * count + value) / (count + 1)
            self.told[name] = count + 1


@dataclass(slots=True)
class Process:
    """What one rank's lines tell.

    Attributes:
        pending: What was told of the step that has not ended yet.
        number: The last step's.
        timed: It has timers.
        ahead: Its program prints a step's loss in front of the step's timers, not behind them.
        again: The printed numbers began again, as in each epoch: they are counted on.
        called: The name of the loss that counts; empty where that is a usual one.
    """

    rows: list[Row] = field(default_factory=list)
    pending: Row = field(default_factory=Row)
    peak: int | None = None
    number: int = -1
    cut: bool = False
    timed: bool = False
    ahead: bool = False
    again: bool = False
    called: str | None = None
    _begun: int | None = None
    _printed: int = -1
    _stride: int = 0
    _offset: int = 0
    _turn: int = 0

    def end_step(self, figures: Mapping[str, float]) -> None:
        """A step is over: its figures, and those that were told before its end."""
        self.number += 1
        row, self.pending = self.pending, Row()
        if len(self.rows) >= MOST_STEPS:
            self.cut = True
            return
        row.number = self.number
        row.figures.update(figures)
        self.rows.append(row)

    def begin_timers(self) -> None:
        """The first timers: whatever was told of losses before them is of the same step, or of steps without timers."""
        self.timed = True
        one = len({row.number for row in self.rows}) == 1 or (self._begun is None and len(self.rows) <= _MICRO)
        if one and all(row.figures.keys() <= _LEARNING for row in self.rows):
            self.ahead = bool(self.rows)
            for row in self.rows:
                self.pending.tell(row.figures)
            self.rows, self.number = [], -1

    def lose(self, name: str, figures: Mapping[str, float], number: int | None) -> None:
        """A loss, of the step with this number where it has one.

        Of losses with names of their own ("kl loss", "D loss") the first one's counts, and only where none has a
        usual name: they are no losses of one kind.
        """
        if name != self.called:
            if self.called is not None and name:
                return
            if self.called:
                self._forget()
            self.called = name
        if self.timed:
            if self.ahead:
                self.pending.tell(figures)
            elif self.rows:
                self.rows[-1].tell(figures)
        elif number is None:
            self.pending.tell(figures)
            self.end_step({})
        elif (row := self.named(number)) is not None:
            row.tell(figures)

    def _forget(self) -> None:
        """What was told of another loss."""
        for row in (*self.rows, self.pending):
            for name in _LEARNING:
                row.figures.pop(name, None)
                row.told.pop(name, None)
        self.rows = [row for row in self.rows if row.figures]
        if not self.rows:
            self.number, self._begun, self._printed, self._offset = -1, None, -1, 0

    def named(self, number: int) -> Row | None:
        """The row of the step that a line names, made where there is none; None beyond the limit."""
        back = self._printed - number > _LATE * max(1, self._stride)
        if self._begun is None or (back and number <= self._begun):
            if self._begun is not None:
                self.again = True
                self._offset = self.number + 1 - number
            self._begun = number
        elif back:
            # Back to a checkpoint: what is trained again replaces what was lost.
            self._turn += 1
        if 0 <= self._printed < number:
            self._stride = min(self._stride or number, number - self._printed)
        self._printed = number
        wanted = number + self._offset
        if self.rows and self.rows[-1].number >= wanted:
            return self._earlier(wanted)
        if len(self.rows) >= MOST_STEPS:
            self.cut = True
            return None
        self.number = wanted
        self.rows.append(Row(number=wanted, turn=self._turn))
        return self.rows[-1]

    def _earlier(self, number: int) -> Row | None:
        place = bisect_left(self.rows, number, key=lambda row: row.number)
        row = self.rows[place]
        if row.number != number:
            return None
        if row.turn != self._turn:
            row.figures, row.told, row.turn = {}, {}, self._turn
        return row

    def steps(self, start: float) -> Steps:
        """The columns; ``start`` is the run's, by the clock that ``at`` is of."""
        groups: dict[str, Any] = {"parts": {}, "inside": {}}
        for group, names in (("parts", get_args(Part)), ("inside", get_args(Inside))):
            for name in names:
                column = self._column(name)
                if column:
                    groups[group][name] = column
        return Steps(
            number=tuple(row.number for row in self.rows),
            at=tuple(None if at is None else round(at - start, 6) for at in self._column("at")),
            seconds=self._column("seconds"), loss=self._column("loss"), gradient_norm=self._column("gradient_norm"),
            **groups,
        )  # fmt: skip

    def _column(self, name: str) -> tuple[float | None, ...]:
        values = tuple(_known(name, row.figures.get(name)) for row in self.rows)
        return values if any(value is not None for value in values) else ()


def _known(name: str, value: float | None) -> float | None:
    """A loss may be infinite; a time that is, was no time."""
    return value if value is None or name in _LEARNING or math.isfinite(value) else None
