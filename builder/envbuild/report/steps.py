"""What a step takes and is made of: the whole, rank by rank, and over time; and what it learns."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, median
from typing import get_args

from envbuild.profile import summary
from envbuild.profile.document import Launch, Measurement
from envbuild.profile.figures import Inside, Rank
from envbuild.report import absent, series
from envbuild.report.model import Chart, Column, Line, Section, Table, Value

INSIDE: tuple[Inside, ...] = get_args(Inside)
_OWN = "other"


def figures(measurement: Measurement, name: str) -> Section:
    """The few figures that people ask for first."""
    timed = summary.timed(measurement)
    starts = [each.communication for each in measurement.launches]
    rows: list[tuple[Column, Value]] = [
        (Column(name="median step", unit="seconds"), summary.step_median(measurement)),
        (Column(name="mean step", unit="seconds"), summary.step_mean(timed)),
        (Column(name="tokens a second", unit="number"), summary.tokens_per_second(measurement)),
        (Column(name="steps that count", unit="count"), sum(len(summary.step_seconds(each)) for each in timed) or None),
        (Column(name="start of the communication", unit="seconds"), summary.startup_seconds(measurement)),
        (Column(name="imports", unit="seconds"), _most([each.import_seconds for each in starts])),
    ]
    table = Table(
        id=f"{name}-figures",
        caption="The whole",
        columns=tuple(column for column, _ in rows),
        rows=(tuple(value for _, value in rows),),
        notes=("The median of the launches' medians; a step is as long as that of its slowest rank.",),
    )
    return Section(id=f"{name}-whole", title="In short", tables=(table, _launches(measurement, name)))


def _most(values: Sequence[float | None]) -> float | None:
    return max((each for each in values if each is not None), default=None)


def _launches(measurement: Measurement, name: str) -> Table:
    words = ("launch", "count"), ("pass", ""), ("started", ""), ("ranks", "count"), ("steps", "count")
    more = ("warm-up", "count"), ("median step", "seconds"), ("backend", ""), ("talks over", "")
    return Table(
        id=f"{name}-launches",
        caption="Launches",
        columns=tuple(Column(name=each, unit=unit) for each, unit in (*words, *more)),  # type: ignore[arg-type]
        rows=tuple(
            (
                number, launch.pass_, f"{launch.started:%Y-%m-%d %H:%M:%S %Z}" if launch.started else None,
                len(launch.ranks), max((len(rank.steps.number) for rank in launch.ranks), default=0), launch.warmup,
                summary.launch_seconds(launch), launch.communication.backend,
                ", ".join(launch.communication.transports) or None,
            )
            for number, launch in enumerate(measurement.launches, 1)
        ),
        folded=len(measurement.launches) > 4,
    )  # fmt: skip


def breakdown(measurement: Measurement, name: str) -> Section:
    """What a step is made of, as a whole and rank by rank; and the steps one after another."""
    shares = summary.shares(measurement)
    tables = []
    if shares:
        tables.append(
            Table(
                id=f"{name}-parts",
                caption="What a step is made of: means over ranks and steps",
                columns=(Column(name="part"), Column(name="time", unit="seconds"), Column(name="share", unit="share")),
                rows=tuple((each.name.replace("_", " "), each.seconds, each.share) for each in shares),
                notes=('The parts follow one another; "other" is what none of them covers.',),
            )
        )
    tables += _by_rank(measurement, name) + _inside(measurement, name) + _over_time(measurement, name)
    parts = {each.name for each in shares}
    lacking = [(part.replace("_", " "), f"parts.{part}") for part in summary.PARTS if part not in parts]
    lacking += [
        (each.replace("_", " "), f"inside.{each}") for each in INSIDE if summary.inside(measurement, each) is None
    ]
    missing = absent.missing(measurement.launches, lacking)
    return Section(id=f"{name}-steps", title="Steps", tables=tuple(tables), missing=missing)


def _by_rank(measurement: Measurement, name: str) -> list[Table]:
    launches = summary.timed(measurement) or list(measurement.launches)
    numbers = sorted({rank.rank for launch in launches for rank in launch.ranks})
    found: dict[int, dict[str, float | None]] = {}
    for number in numbers:
        own = [(launch, rank) for launch in launches for rank in launch.ranks if rank.rank == number]
        steps = [each for launch, rank in own for each in summary.counted(launch, rank.steps.seconds)]
        row: dict[str, float | None] = {
            "step": fmean(steps) if steps else None,
            "median step": median(steps) if steps else None,
        }
        for part in summary.PARTS:
            values = [each for launch, rank in own for each in summary.counted(launch, rank.steps.parts.get(part, ()))]
            row[part] = fmean(values) if values else None
        found[number] = row
    parts = [part for part in summary.PARTS if any(row[part] is not None for row in found.values())]
    if not parts and all(row["step"] is None for row in found.values()):
        return []
    for row in found.values():
        whole, measured = row["step"], [value for part in parts if (value := row[part]) is not None]
        row[_OWN] = max(0.0, whole - sum(measured)) if whole is not None and measured else None
    columns = ["step", "median step", *parts, *([_OWN] if parts else [])]
    nodes = summary.nodes(measurement)
    # The slowest first: of a thousand ranks those are drawn.
    order = numbers if len(numbers) <= 48 else sorted(numbers, key=lambda each: -(found[each]["step"] or 0))
    drawn = columns[2:] or ["step"]
    lines = [
        Line(column=1 + columns.index(each), name=each.replace("_", " "), colour=each if each != "step" else _OWN)
        for each in drawn
    ]
    return [
        Table(
            id=f"{name}-ranks",
            caption="The mean step of every rank",
            columns=(
                Column(name="rank", unit="count"),
                *(Column(name=each.replace("_", " "), unit="seconds") for each in columns),
                *((Column(name="node"),) if nodes else ()),
            ),
            rows=tuple(
                (number, *(found[number][each] for each in columns), *((nodes.get(number),) if nodes else ()))
                for number in order
            ),
            notes=(f"Of {len(numbers)} ranks the 48 slowest are drawn.",) if len(numbers) > 48 else (),
            charts=(Chart(kind="bars", title="The mean step of every rank, and its parts", lines=tuple(lines)),),
            folded=len(numbers) > 16,
        )
    ]


def _inside(measurement: Measurement, name: str) -> list[Table]:
    found = [(each, share) for each in INSIDE if (share := summary.inside(measurement, each)) is not None]
    if not found:
        return []
    return [
        Table(
            id=f"{name}-inside",
            caption="What happens inside the parts",
            columns=(Column(name="of"), Column(name="time a step", unit="seconds"), Column(name="share", unit="share")),
            rows=tuple((each.replace("_", " "), share.seconds, share.share) for each, share in found),
            notes=("It overlaps with the parts and with itself, so it is added to nothing. A share is of the step of "
                   "the pass that measured it. Communication is that of the rank that waits least.",),
        )
    ]  # fmt: skip


def _over_time(measurement: Measurement, name: str) -> list[Table]:
    launch = next(iter(summary.timed(measurement)), None)
    if launch is None:
        return []
    columns = {rank.rank: rank.steps.seconds for rank in launch.ranks if rank.steps.seconds}
    place = 1 + list(measurement.launches).index(launch)
    notes = [f"Launch {place}, pass {launch.pass_}."]
    if launch.warmup:
        notes.append(f"The first {launch.warmup} steps are the warm-up, and count nowhere else.")
    return [
        series.table(
            f"{name}-over-time", "Step by step", (Column(name="step", unit="count"), _numbers(launch, "seconds")),
            series.ranks(columns), unit="seconds", title="The steps of a launch, one after another", notes=notes,
        )
    ]  # fmt: skip


def _numbers(launch: Launch, column: str) -> tuple[int, ...]:
    """Step numbers of the rank that has most of them."""
    return max((rank.steps.number for rank in launch.ranks if getattr(rank.steps, column)), key=len, default=())


def learning(measurement: Measurement, base: Measurement | None, name: str) -> Section:
    """Losses and gradient norms, beside the baseline's losses of the same seed."""
    launch = next((each for each in measurement.launches if _losses(each)), None)
    if launch is None:
        return Section(id=f"{name}-losses", title="Losses", empty="No loss is in the measurement.")
    places = _numbers(launch, "loss")
    by_rank = {rank.rank: rank.steps.loss for rank in launch.ranks if rank.steps.loss}
    columns = series.ranks({rank: _longest(column, len(places)) for rank, column in by_rank.items()})
    means = _losses(launch)
    if len(by_rank) > 1:
        columns["mean"] = [means.get(each) for each in places]
    notes = []
    before = (
        next((each for each in base.launches if _losses(each) and each.seed == launch.seed), None) if base else None
    )
    if before is not None:
        theirs = _losses(before)
        columns["baseline, mean"] = [theirs.get(each) for each in places]
    elif base is not None:
        notes.append("The baseline has no losses of the same seed.")
    axis = (Column(name="step", unit="count"), places)
    tables = [
        series.table(
            f"{name}-loss",
            "Loss",
            axis,
            columns,
            unit="number",
            title="The loss, step by step",
            notes=notes,
            zero=False,
        )
    ]
    norm: Rank | None = next((rank for rank in launch.ranks if rank.steps.gradient_norm), None)
    if norm is not None:
        tables.append(
            series.table(
                f"{name}-norm", "Gradient norm of the whole model",
                (Column(name="step", unit="count"), norm.steps.number), {"norm": norm.steps.gradient_norm},
                unit="number", title="The gradient's norm, step by step",
            )
        )  # fmt: skip
    return Section(id=f"{name}-losses", title="Losses", tables=tuple(tables))


def _longest(column: Sequence[float | None], length: int) -> list[float | None]:
    return [*column, *([None] * (length - len(column)))]


def _losses(launch: Launch) -> dict[int, float]:
    found: dict[int, list[float]] = {}
    for rank in launch.ranks:
        for number, loss in zip(rank.steps.number, rank.steps.loss, strict=False):
            if loss is not None:
                found.setdefault(number, []).append(loss)
    return {number: fmean(each) if all(map(math.isfinite, each)) else math.nan for number, each in found.items()}
