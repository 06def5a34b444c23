"""Tables as static SVG, by matplotlib: the same bytes for the same table, and colours that the page decides.

Why matplotlib: it has a documented switch for equal bytes (``svg.hashsalt``), draws every colour that it is told, and
those who train mostly have it. pygal 3.1 by default loads a script from the network, and each of its drawings brings a
style sheet of its own; vl-convert 1.9 runs Vega in a JavaScript engine (a wheel of 33 MB) and wants a second language.
"""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from envbuild.errors import InputError
from envbuild.report import svg, words
from envbuild.report.model import Chart, Table, Unit, Value

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Points: as wide as a narrow window scaled a little, so that letters stay readable in both.
_WIDE = 7.2
# So many bars have room for names of the usual size, and so many lines for their usual width.
_THICK = 16
_FEW = 4
_DASHES = ("solid", "dashed", "dashdot", "dotted")
_SCALES: dict[Unit, tuple[tuple[str, float], ...]] = {
    "seconds": (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)),
    "bytes": (("TiB", 2.0**40), ("GiB", 2.0**30), ("MiB", 2.0**20), ("KiB", 2.0**10), ("B", 1.0)),
    "rate": (("GB/s", 1e9), ("MB/s", 1e6), ("kB/s", 1e3), ("B/s", 1.0)),
    "hertz": (("GHz", 1e9), ("MHz", 1e6), ("Hz", 1.0)),
    "percent": (("%", 1.0),), "share": (("%", 0.01),), "watts": (("W", 1.0),), "celsius": (("°C", 1.0),),
}  # fmt: skip


def draw(table: Table, chart: Chart, identity: str) -> str:
    """One chart as an SVG element.

    Args:
        identity: Of the element; the ids inside begin with it.

    Raises:
        InputError: matplotlib is not installed.
    """
    try:
        import matplotlib
        from matplotlib.backends.backend_svg import FigureCanvasSVG
        from matplotlib.figure import Figure
    except ImportError as error:
        raise InputError(
            "the charts of the page are drawn by matplotlib, which is not installed",
            hint="Install it beside envbuild: pipx inject envbuild matplotlib, or pip install matplotlib. "
            "--text and --json need no charts.",
        ) from error
    rows = table.drawn(chart)
    # Nothing of the user's own style: the same table is the same drawing everywhere.
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_style(identity))
        each = 0.26 if len(rows) <= _THICK else 0.14
        height = max(1.1, 0.7 + each * len(rows)) if chart.kind == "bars" else 2.2
        figure = Figure(figsize=(_WIDE, height), layout="constrained" if chart.kind == "bars" else None)
        FigureCanvasSVG(figure)
        if chart.kind == "lines":
            # Equal margins: drawings over the same seconds stand exactly under one another.
            figure.subplots_adjust(left=0.105, right=0.985, top=0.96, bottom=0.21)
        axes = figure.add_subplot()
        (_bars if chart.kind == "bars" else _lines)(axes, table, chart, rows)
        out = io.StringIO()
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None}, transparent=True)
    described = describe(table, chart)
    return svg.inline(out.getvalue(), identity, title=chart.title, description=described)


def _style(identity: str) -> dict[Any, Any]:
    soft, text = svg.sentinel("soft"), svg.sentinel("text")
    return {
        "svg.hashsalt": identity, "svg.fonttype": "none", "font.family": "DejaVu Sans", "font.size": 10,
        "axes.edgecolor": soft, "axes.labelcolor": text, "xtick.color": soft, "ytick.color": soft,
        "xtick.labelcolor": text, "ytick.labelcolor": text, "text.color": text, "grid.color": svg.sentinel("line"),
        "axes.grid": True, "axes.axisbelow": True, "axes.spines.top": False, "axes.spines.right": False,
        "lines.linewidth": 1.6, "text.parse_math": False, "axes.formatter.use_mathtext": False,
    }  # fmt: skip


def _bars(axes: Axes, table: Table, chart: Chart, rows: Sequence[Sequence[Value]]) -> None:
    unit = table.columns[chart.lines[0].column].unit
    totals = [sum(_number(row[line.column]) or 0 for line in chart.lines) for row in rows]
    name, factor = scale(unit, totals)
    places = list(range(len(rows)))
    left = [0.0] * len(rows)
    for line in chart.lines:
        widths = [(_number(row[line.column]) or 0.0) / factor for row in rows]
        # What was not measured is no bar at all, not one of no width.
        there = [place for place in places if _number(rows[place][line.column]) is not None]
        axes.barh(
            there, [widths[each] for each in there], left=[left[each] for each in there], height=0.7,
            color=svg.sentinel(f"c-{line.colour}"),
        )  # fmt: skip
        left = [before + width for before, width in zip(left, widths, strict=True)]
    axes.set_yticks(places, [_tick(table, chart, row) for row in rows])
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xlim(left=0)
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0, labelsize=10 if len(rows) <= _THICK else 7.5)
    axes.set_xlabel(name)


def _tick(table: Table, chart: Chart, row: Sequence[Value]) -> str:
    value = row[chart.first]
    return f"{table.columns[chart.first].name} {value}" if isinstance(value, int) else words.line(value, 40)


def _lines(axes: Axes, table: Table, chart: Chart, rows: Sequence[Sequence[Value]]) -> None:
    unit = table.columns[chart.lines[0].column].unit
    columns = [[_number(row[line.column]) for row in rows] for line in chart.lines]
    known = [each for column in columns for each in column if each is not None]
    name, factor = scale(unit, known)
    across = [_number(row[0]) for row in rows]
    for number, (line, column) in enumerate(zip(chart.lines, columns, strict=True)):
        values = [math.nan if each is None else each / factor for each in column]
        single = sum(each is not None for each in column) < 3 or _lonely(column)
        axes.plot(
            [math.nan if each is None else each for each in across], values,
            color=svg.sentinel(f"c-{line.colour}"), linestyle=_DASHES[number % len(_DASHES)],
            linewidth=1.6 if len(columns) <= _FEW else 1.0,
            marker="o" if single or len(rows) <= 30 else None, markersize=3.5,
        )  # fmt: skip
    if chart.bounds is not None:
        axes.set_xlim(*chart.bounds)
    if chart.zero and all(each >= 0 for each in known):
        axes.set_ylim(0, 1.08 * max(known, default=0) / factor or 1)
    if table.columns[0].unit == "count":
        from matplotlib.ticker import MaxNLocator

        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel(chart.across)
    axes.set_ylabel(name)


def _lonely(column: Sequence[float | None]) -> bool:
    """Whether a value stands between two gaps: without a mark it would not be seen."""
    padded = [None, *column, None]
    return any(
        each is not None and before is None and after is None
        for before, each, after in zip(padded, padded[1:], padded[2:], strict=False)
    )


def scale(unit: Unit, values: Sequence[float]) -> tuple[str, float]:
    """The unit that makes the largest value a number that can be read, and what it is worth."""
    choices = _SCALES.get(unit, (("", 1.0),))
    largest = max((abs(each) for each in values), default=0.0)
    return next((each for each in choices if largest >= each[1]), choices[-1] if largest else choices[0])


def describe(table: Table, chart: Chart) -> str:
    """What is drawn, for those who do not see it: the range of every line; the table has the figures."""
    said = []
    for line in chart.lines:
        values = [each for row in table.drawn(chart) if (each := _number(row[line.column])) is not None]
        unit = table.columns[line.column].unit
        if values:
            low, high = words.figure(min(values), unit), words.figure(max(values), unit)
            said.append(f"{words.line(line.name)}: {low}" + (f" to {high}" if low != high else ""))
        else:
            said.append(f"{words.line(line.name)}: not measured")
    return f'{"; ".join(said)}. The table "{words.line(table.caption)}" has every value.'


def _number(value: Value) -> float | None:
    return float(value) if isinstance(value, (int, float)) and math.isfinite(value) else None


def dash(number: int) -> str:
    """The pattern of a legend's line, as the drawn one has it."""
    return ("none", "4 2", "6 2 1 2", "1 2")[number % len(_DASHES)]
