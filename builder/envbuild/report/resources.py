"""Memory of host and device, collectives, operators, and the figures without noise."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, get_args

from envbuild.profile import structural, summary
from envbuild.profile.document import Measurement
from envbuild.profile.figures import Collective, Direction, Memory, Operator, Steps
from envbuild.profile.summary import counted
from envbuild.report import absent
from envbuild.report.model import Chart, Column, Line, Section, Table, Unit, Value

_MEMORY = {
    "host_peak_bytes": "resident host memory", "host_share_peak_bytes": "its share of host memory",
    "host_pinned_bytes": "pinned host memory", "gpu_peak_bytes": "allocated GPU memory",
    "gpu_reserved_peak_bytes": "reserved GPU memory", "gpu_total_bytes": "memory of the GPU",
    "allocation_retries": "allocation retries",
}  # fmt: skip
_DRAWN = (
    ("Peak of host memory, rank by rank", ("host_share_peak_bytes", "host_peak_bytes")),
    ("Peak of GPU memory, rank by rank", ("gpu_peak_bytes", "gpu_reserved_peak_bytes")),
)
_OPERATORS = 25


def memory(measurement: Measurement, name: str) -> Section:
    """Peaks of every rank, the highest of all launches."""
    found: dict[int, dict[str, int]] = {}
    for launch in measurement.launches:
        for rank in launch.ranks:
            for figure, value in _peaks(rank.memory):
                mine = found.setdefault(rank.rank, {})
                mine[figure] = max(value, mine.get(figure, value))
    columns = [figure for figure in _MEMORY if any(figure in row for row in found.values())]
    lacking = [(words, f"memory.{figure}") for figure, words in _MEMORY.items() if figure not in columns]
    tables = [_memory_table(found, columns, name)] if columns else []
    return Section(
        id=f"{name}-memory", title="Memory", tables=tuple(tables),
        missing=absent.missing(measurement.launches, lacking),
    )  # fmt: skip


def _peaks(memory_: Memory) -> Iterable[tuple[str, int]]:
    for figure in _MEMORY:
        value = getattr(memory_, figure)
        if value is not None:
            yield figure, value


def _memory_table(found: dict[int, dict[str, int]], columns: list[str], name: str) -> Table:
    charts, drawn = [], []
    for title, choices in _DRAWN:
        figure = next((each for each in choices if each in columns), None)
        if figure is not None:
            drawn.append(figure)
            line = Line(column=1 + columns.index(figure), name=_MEMORY[figure], colour="0")
            charts.append(Chart(kind="bars", title=title, lines=(line,)))
    order = sorted(found)
    if len(order) > 48:
        # A device's memory is what runs out first.
        order.sort(key=lambda rank: [-found[rank].get(figure, 0) for figure in reversed(drawn)])
    return Table(
        id=f"{name}-peaks",
        caption="Peaks of every rank",
        columns=(
            Column(name="rank", unit="count"),
            *(
                Column(name=_MEMORY[each], unit="count" if each == "allocation_retries" else "bytes")
                for each in columns
            ),
        ),
        rows=tuple((rank, *(found[rank].get(each) for each in columns)) for rank in order),
        notes=(
            *((f"Of {len(found)} ranks the 48 with the highest peaks are drawn.",) if len(found) > 48 else ()),
            "The highest of all launches. Resident memory has what processes share in each of them.",
        ),
        charts=tuple(charts),
        folded=len(found) > 16,
    )


def collectives(measurement: Measurement, name: str) -> Section:
    """How often, how much, how long and how fast; and how far the times can be trusted."""
    tables = []
    by_pass = _grouped(measurement, lambda rank, each: (each.op,))
    if by_pass:
        columns: list[tuple[str, Unit]] = [("pass", ""), ("collective", "")]
        tables.append(_collectives(f"{name}-collectives", "Collectives of all ranks", columns, by_pass, drawn=True))
        words: list[tuple[str, Unit]] = [("pass", ""), ("rank", "count"), ("collective", ""), ("message", "bytes")]
        rows = _grouped(measurement, lambda rank, each: (rank, each.op, each.message_bytes))
        tables.append(_collectives(f"{name}-messages", "The same by rank and size", words, rows, drawn=False))
    moved = _moved(measurement, name)
    lacking = []
    if not by_pass:
        lacking.append(("collectives", "collectives"))
    elif all(row[-4] is None for row in by_pass):
        lacking.append(("times of collectives", "collectives.seconds"))
    if moved is not None:
        tables.append(moved)
    else:
        lacking.append(("bytes copied between host and device", "moved.h2d"))
    swapped = _on_disk(measurement, name)
    if swapped is not None:
        tables.append(swapped)
    return Section(
        id=f"{name}-communication", title="Communication and copies", tables=tuple(tables),
        missing=absent.missing(measurement.launches, lacking),
    )  # fmt: skip


def _grouped(measurement: Measurement, by: Callable[[int, Collective], tuple[Value, ...]]) -> list[tuple[Value, ...]]:
    groups = summary.grouped(measurement, lambda launch, rank, each: (launch.pass_, *by(rank.rank, each)))
    ordered = sorted(groups.items(), key=lambda each: tuple((value is not None, value) for value in each[0]))
    return [
        (*group, sums.count, sums.bytes, sums.seconds, sums.time, sums.bus_bandwidth, sums.bandwidth)
        for group, sums in ordered
    ]


def _collectives(
    identity: str, caption: str, first: list[tuple[str, Unit]], rows: list[tuple[Value, ...]], *, drawn: bool
) -> Table:
    more: list[tuple[str, Unit]] = [
        ("count", "count"), ("bytes", "bytes"), ("time", "seconds"), ("the time is", ""), ("bus bandwidth", "rate"),
        ("the bandwidth is", ""),
    ]  # fmt: skip
    charts = []
    if drawn and any(row[4] is not None for row in rows):
        line = Line(column=4, name="time", colour="0")
        charts.append(Chart(kind="bars", title="Time in collectives, all ranks together", first=1, lines=(line,)))
    elif drawn and any(row[3] is not None for row in rows):
        line = Line(column=3, name="bytes", colour="0")
        charts.append(Chart(kind="bars", title="Bytes of collectives, all ranks together", first=1, lines=(line,)))
    notes = [
        'Sums over ranks and the steps behind the warm-up. "corrected": computed back from DeepSpeed\'s cumulative '
        "times. Bus bandwidth is that of NCCL's own tests; a mean is weighted by time."
    ]
    return Table(
        id=identity, caption=caption, columns=tuple(Column(name=each, unit=unit) for each, unit in (*first, *more)),
        rows=tuple(rows), notes=tuple(notes) if drawn else (), charts=tuple(charts), folded=not drawn,
    )  # fmt: skip


def _moved(measurement: Measurement, name: str) -> Table | None:
    directions: tuple[Direction, ...] = get_args(Direction)
    names: dict[str, str] = {each: each for each in directions}
    return _by_rank(
        measurement, f"{name}-moved", "Bytes copied between host and device, a step", names, lambda steps: steps.moved
    )


def _on_disk(measurement: Measurement, name: str) -> Table | None:
    if summary.inside(measurement, "swap") is None:
        return None
    names = {
        "swap_read": "the swapper reads", "swap_write": "writes", "process_read": "the kernel saw read",
        "process_write": "and written",
    }  # fmt: skip
    caption = "Bytes of the offload's disk, a step: what DeepSpeed asked for, and what passed"
    return _by_rank(measurement, f"{name}-swapped", caption, names, lambda steps: steps.disk)


def _by_rank(
    measurement: Measurement, identity: str, caption: str, names: Mapping[str, str],
    group: Callable[[Steps], Mapping[Any, Sequence[int | None]]],
) -> Table | None:  # fmt: skip
    """Mean bytes a step of each rank, in the first launch that has them."""
    found: dict[int, list[Value]] = {}
    for launch in measurement.launches:
        for rank in launch.ranks:
            sums = [counted(launch, group(rank.steps).get(each, ())) for each in names]
            if any(sums) and rank.rank not in found:
                found[rank.rank] = [sum(each) / len(each) if each else None for each in sums]
    if not found:
        return None
    return Table(
        id=identity,
        caption=caption,
        columns=(Column(name="rank", unit="count"), *(Column(name=each, unit="bytes") for each in names.values())),
        rows=tuple((rank, *row) for rank, row in sorted(found.items())),
        folded=len(found) > 16,
    )


def operators(measurement: Measurement, name: str) -> Section | None:
    """Where a traced step spends its time; None without a trace."""
    found: dict[str, list[Operator]] = {}
    for launch in measurement.launches:
        for rank in launch.ranks:
            for each in rank.operators:
                found.setdefault(each.name, []).append(each)
    if not found:
        return None
    rows = [
        (
            operator, sum(each.count for each in rows), sum(each.seconds for each in rows),
            sum(each.device_seconds or 0 for each in rows)
            if all(each.device_seconds is not None for each in rows)
            else None,
        )
        for operator, rows in found.items()
    ]  # fmt: skip
    rows.sort(key=lambda row: (-row[2] - (row[3] or 0), row[0]))
    table = Table(
        id=f"{name}-operators",
        caption="Operators that take the most time, all ranks together",
        columns=(
            Column(name="operator"), Column(name="count", unit="count"), Column(name="on the CPU", unit="seconds"),
            Column(name="on the GPU", unit="seconds"),
        ),
        rows=tuple(rows[:_OPERATORS]),
        notes=(f"{len(rows) - _OPERATORS} more take less.",) if len(rows) > _OPERATORS else (),
    )  # fmt: skip
    return Section(id=f"{name}-trace", title="Operators", tables=(table,))


def exact(measurement: Measurement, name: str) -> Section | None:
    """Figures that the same inputs give on every machine; None where there are none."""
    found = structural.structure(measurement)
    rows: list[tuple[str, Unit, Value]] = [
        ("parameters", "count", found.parameters), ("host memory of tensors", "bytes", found.host_tensor_bytes),
        ("a checkpoint's tensors", "bytes", found.checkpoint_bytes), ("steps counted", "count", found.steps),
    ]  # fmt: skip
    there = [each for each in rows if each[2] is not None]
    tables = []
    if there:
        tables.append(
            Table(
                id=f"{name}-exact", caption="The same on every machine",
                columns=tuple(Column(name=words, unit=unit) for words, unit, _ in there),
                rows=(tuple(value for _, _, value in there),),
            )
        )  # fmt: skip
    if found.devices:
        tables.append(
            Table(
                id=f"{name}-devices", caption="Where what lives", columns=(Column(name="what"), Column(name="where")),
                rows=tuple((what.replace("_", " "), where) for what, where in sorted(found.devices.items())),
            )
        )  # fmt: skip
    if found.parity:
        names = ("gradient_error", "gradient_ratio", "parameter_error", "loss_error")
        tables.append(
            Table(
                id=f"{name}-parity", caption="The step beside plain torch",
                columns=(
                    Column(name="precision"), Column(name="passed"),
                    *(Column(name=each.replace("_", " "), unit="number") for each in names),
                ),
                rows=tuple(
                    (each.precision, "yes" if each.passed else "no", *(getattr(each, name) for name in names))
                    for each in found.parity
                ),
            )
        )  # fmt: skip
    return Section(id=f"{name}-structure", title="Exact figures", tables=tuple(tables)) if tables else None
