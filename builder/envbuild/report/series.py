"""Long series and many ranks, made as small as a reader can take in; what was done to them is said."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest
from statistics import fmean, median

from envbuild.report.model import Chart, Column, Line, Table, Unit

# Rows of a table that is drawn: more points than a chart has room for.
MOST = 240
# Lines that can be told apart.
LINES = 8
_BANDS: tuple[tuple[str, Callable[[Sequence[float]], float]], ...] = (
    ("lowest", min), ("median", median), ("highest", max),
)  # fmt: skip

Numbers = Sequence[float | None]


def known(values: Numbers) -> list[float]:
    """Those that there are, and that are numbers."""
    return [each for each in values if each is not None and math.isfinite(each)]


def ranks(columns: Mapping[int, Numbers]) -> dict[str, list[float | None]]:
    """A column for each rank; of more than can be told apart the lowest, the middle and the highest."""
    if len(columns) <= LINES:
        return {f"rank {rank}": list(column) for rank, column in sorted(columns.items())}
    return {f"{name} of {len(columns)} ranks": column for name, column in bands(columns).items()}


def bands(columns: Mapping[int, Numbers]) -> dict[str, list[float | None]]:
    """The lowest, the middle and the highest of many columns, row by row."""
    rows = [known(row) for row in zip_longest(*columns.values())]
    return {name: [take(row) if row else None for row in rows] for name, take in _BANDS}


def thinned(axis: Sequence[float], columns: Mapping[str, Numbers]) -> tuple[list[float], dict[str, list[float | None]]]:
    """At most ``MOST`` rows: neighbours are put together, the first place with the mean of their values."""
    group = math.ceil(len(axis) / MOST) if axis else 1
    if group == 1:
        return list(axis), {name: list(column) for name, column in columns.items()}
    starts = range(0, len(axis), group)
    found = {
        name: [fmean(some) if (some := known(column[start : start + group])) else None for start in starts]
        for name, column in columns.items()
    }
    return [axis[start] for start in starts], found


def table(
    identity: str,
    caption: str,
    axis: tuple[Column, Sequence[float]],
    columns: Mapping[str, Numbers],
    *,
    unit: Unit,
    title: str,
    notes: Sequence[str] = (),
    bounds: tuple[float, float] | None = None,
    zero: bool = True,
) -> Table:
    """A folded table of series over one axis, drawn as lines."""
    column, places = axis
    at, values = thinned(places, columns)
    said = list(notes)
    if len(at) < len(places):
        said.append(f"{len(places):,} values were put together to {len(at)}: each is the mean of its neighbours.")
    odd = sum(each is not None and not math.isfinite(each) for column_ in values.values() for each in column_)
    if odd:
        said.append(f"{odd} value(s) are no numbers and are not drawn.")
    lines = tuple(Line(column=place, name=name, colour=str(place - 1)) for place, name in enumerate(values, 1))
    return Table(
        id=identity,
        caption=caption,
        columns=(column, *(Column(name=name, unit=unit) for name in values)),
        rows=tuple(zip(at, *values.values(), strict=True)),
        notes=tuple(said),
        charts=(
            Chart(
                kind="lines", title=title, across=column.name, bounds=bounds, zero=zero,
                lines=lines,
            ),
        ),
        folded=True,
    )  # fmt: skip
