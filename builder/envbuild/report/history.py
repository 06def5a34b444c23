"""How a row came to where it is: its baselines with every promotion, and the measurements beside them; the matrix."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from envbuild.profile import baselines, summary
from envbuild.profile.baselines import Baseline
from envbuild.profile.document import Measurement
from envbuild.report import words
from envbuild.report.model import Chart, Column, Line, Section, Table, Value


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """A measurement, and what it is called here."""

    name: str
    measurement: Measurement


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A row of the matrix and how far it has come, as ``list`` shows it."""

    name: str
    accelerator: str
    gpus: str
    cuda: str | None
    torch: str
    deepspeed: str
    requires: str
    level: str
    standing: str
    recorded: str | None
    image: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """The rows; or why they cannot be told."""

    rows: tuple[Row, ...] = ()
    problem: str | None = None


def history(given: Sequence[Given], known: Sequence[Baseline]) -> Section:
    """One table and one line for each key: other keys cannot be compared, so they are not on one line."""
    called = [_name(each, known) for each in given]
    names = dict.fromkeys([*called, *(each.name for each in known)])
    by_name = {each.name: each for each in known}
    tables = []
    for number, name in enumerate(names, 1):
        own = [each for each, its in zip(given, called, strict=True) if its == name]
        rows = _rows(by_name.get(name), own)
        if rows:
            tables.append(_table(f"history-{number}", name, rows))
    return Section(
        id="history", title="History",
        lead=("The step over images and measurements of one key: row, ds_config, model, hardware and ranks.",)
        if tables
        else (),
        tables=tuple(tables), empty="There are no baselines, and no measurement has step times.",
    )  # fmt: skip


def _name(given: Given, known: Sequence[Baseline]) -> str:
    found = baselines.of_key(known, given.measurement.key)
    return found.name if found is not None else baselines.name_of(given.measurement.key)


_Entry = tuple[str, str | None, str | None, float | None, str]


def _rows(baseline: Baseline | None, given: Sequence[Given]) -> list[_Entry]:
    entries: list[_Entry] = []
    promoted = set()
    for each in baseline.history if baseline else ():
        promoted.add(each.measurement)
        entries.append(("promoted", f"{each.at:%Y-%m-%d}", each.image, each.step_seconds, each.reason))
    for one in given:
        if baselines.digest_of(one.measurement) in promoted:
            continue
        started = next((launch.started for launch in one.measurement.launches if launch.started), None)
        when = f"{started:%Y-%m-%d}" if started else None
        entries.append(("measured", when, one.measurement.key.image, summary.step_median(one.measurement), one.name))
    return entries


def _table(identity: str, name: str, entries: Sequence[_Entry]) -> Table:
    rows: list[tuple[Value, ...]] = []
    before: float | None = None
    for number, (what, when, image, step, reason) in enumerate(entries, 1):
        change = step / before - 1 if step is not None and before else None
        rows.append((number, what, when, words.digest(image) if image else None, step, change, reason))
        before = step if step is not None else before
    chart = Chart(
        kind="lines", title=f"The median step of {words.line(name)}", across="number",
        lines=(Line(column=4, name="median step", colour="0"),),
    )  # fmt: skip
    return Table(
        id=identity,
        caption=name,
        columns=(
            Column(name="number", unit="count"), Column(name="is"), Column(name="on"), Column(name="image"),
            Column(name="median step", unit="seconds"), Column(name="change", unit="share"),
            Column(name="reason, or name"),
        ),
        rows=tuple(rows),
        notes=("Measured at different times: whether a change is real, compare says, by launches in turns.",),
        charts=(chart,) if sum(step is not None for _, _, _, step, _ in entries) > 1 else (),
    )  # fmt: skip


def matrix(found: Matrix) -> Section:
    """Every row with its level of evidence."""
    names = ("row", "GPUs", "CUDA", "torch", "DeepSpeed", "requires", "level", "standing", "recorded", "image")
    table = Table(
        id="matrix-rows",
        caption="Rows and the level that each has reached",
        columns=tuple(Column(name=each) for each in names),
        rows=tuple(
            (
                each.name, each.gpus or None, each.cuda, each.torch, each.deepspeed, each.requires, each.level,
                each.standing, each.recorded, each.image,
            )
            for each in found.rows
        ),
        notes=(
            "declared: somebody says so; derived: upstream's metadata agrees; built: the image is what the row says; "
            "cpu, gpu: a ZeRO-3 offload step ran in it.",
        ),
    )  # fmt: skip
    lead = (f"Not known: {found.problem}",) if found.problem else ()
    return Section(
        id="matrix", title="The matrix", lead=lead, tables=(table,) if found.rows else (), empty="There are no rows."
    )
