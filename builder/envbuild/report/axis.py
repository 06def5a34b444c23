"""The time axis: CPU, memory, disk, network, GPU and PCIe under one another, over the same seconds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import get_args

from envbuild.profile.document import Launch, Measurement
from envbuild.profile.figures import Kind, Series
from envbuild.report import absent, series
from envbuild.report.model import Column, Section, Table, Unit


@dataclass(frozen=True, slots=True, kw_only=True)
class _Panel:
    """Quantities of one unit that are drawn together."""

    id: str
    title: str
    unit: Unit
    kinds: tuple[Kind, ...]


# In the order of the page: every kind of the document is in one of them.
PANELS = (
    _Panel(id="cpu", title="CPU of the node", unit="percent", kinds=("cpu_percent",)),
    _Panel(id="processes", title="CPU of each process", unit="percent", kinds=("process_cpu_percent",)),
    _Panel(id="memory", title="Host memory of the node", unit="bytes", kinds=("host_memory_bytes",)),
    _Panel(id="process-memory", title="Host memory of each process", unit="bytes", kinds=("process_memory_bytes",)),
    _Panel(id="disk", title="Disk", unit="rate", kinds=("disk_read", "disk_write")),
    _Panel(id="network", title="Network", unit="rate", kinds=("network_receive", "network_send")),
    _Panel(id="gpu", title="GPU utilisation", unit="percent", kinds=("gpu_percent",)),
    _Panel(id="gpu-memory", title="GPU memory", unit="bytes", kinds=("gpu_memory_bytes",)),
    _Panel(id="clocks", title="GPU clocks", unit="hertz", kinds=("gpu_clock_hz", "gpu_memory_clock_hz")),
    _Panel(id="power", title="GPU power", unit="watts", kinds=("gpu_power_watts",)),
    _Panel(id="temperature", title="GPU temperature", unit="celsius", kinds=("gpu_temperature_celsius",)),
    _Panel(id="pcie", title="PCIe", unit="rate", kinds=("pcie_receive", "pcie_send")),
)
KINDS: tuple[Kind, ...] = get_args(Kind)
_EXACT = {"percent": "%", "bytes": "bytes", "rate": "bytes/s", "hertz": "Hz", "watts": "W", "celsius": "°C"}
_NAMES = {"cpu": "CPU", "gpu": "GPU", "pcie": "PCIe", "disk": "disk", "host": "host", "network": "network"}
_UNITS = frozenset({"percent", "bytes", "hz", "watts", "celsius"})


def spoken(kind: Kind) -> str:
    """A kind in words, without its unit, which stands beside it."""
    use = ["use"] if kind.endswith("_percent") else []
    return " ".join([*(_NAMES.get(each, each) for each in kind.split("_") if each not in _UNITS), *use])


def section(measurement: Measurement, name: str) -> Section:
    """What was sampled beside the first launch that has samples; the timing pass goes first."""
    ordered = sorted(measurement.launches, key=lambda each: each.pass_ != "timing")
    launch = next((each for each in ordered if each.samples.series), None)
    title = "Time axis"
    if launch is None:
        names = [(spoken(each), each) for each in KINDS]
        return Section(id=f"{name}-axis", title=title, missing=absent.missing(measurement.launches, names))
    number = 1 + list(measurement.launches).index(launch)
    present = {each.kind for each in launch.samples.series if series.known(each.values)}
    lacking = [(spoken(each), each) for each in KINDS if each not in present]
    tables = [_summary(launch, name), *_steps(launch, name)]
    tables += [table for panel in PANELS if (table := _panel(launch, panel, name)) is not None]
    return Section(
        id=f"{name}-axis",
        title=title,
        lead=(f"Sampled beside launch {number} (pass {launch.pass_}); seconds count from its start.",),
        tables=tuple(tables),
        missing=(*absent.missing([launch], lacking), *absent.partly([launch], KINDS)),
    )


def _summary(launch: Launch, name: str) -> Table:
    """Every sampled quantity, by all its samples: in the drawn ones neighbours may have been put together."""
    units = {kind: panel.unit for panel in PANELS for kind in panel.kinds}
    present = [(each, values) for each in launch.samples.series if (values := series.known(each.values))]
    return Table(
        id=f"{name}-sampled",
        caption="Sampled quantities",
        columns=(
            Column(name="quantity"), *(Column(name=each, unit="number") for each in ("lowest", "mean", "highest")),
            Column(name="samples", unit="count"), Column(name="exact in"),
        ),
        rows=tuple(
            (_label(each, launch), min(values), fmean(values), max(values), len(values), _EXACT[units[each.kind]])
            for each, values in present
        ),
        units=tuple(units[each.kind] for each, _ in present),
        notes=("The CPU of the node is of all its CPUs together, that of a process is of one CPU.",),
        folded=len(present) > 24,
    )  # fmt: skip


def _steps(launch: Launch, name: str) -> list[Table]:
    """The steps on the same axis: what a device did can be seen beside what the training did."""
    placed = {rank.rank: rank.steps for rank in launch.ranks if rank.steps.at and rank.steps.seconds}
    if not placed:
        return []
    first = placed[min(placed)]
    rows = [place for place, at in enumerate(first.at) if at is not None]
    at = [each for each in first.at if each is not None]
    columns = {
        number: [steps.seconds[place] if place < len(steps.seconds) else None for place in rows]
        for number, steps in placed.items()
    }
    return [
        series.table(
            f"{name}-axis-steps", "Steps", (Column(name="seconds", unit="number"), at), series.ranks(columns),
            unit="seconds", title="Steps, where each began", bounds=_bounds(launch.samples.at),
        )
    ]  # fmt: skip


def _bounds(at: Sequence[float]) -> tuple[float, float] | None:
    """Every panel is as wide in seconds as the others: that is what makes it one axis."""
    return (min(at[0], 0.0), at[-1]) if at[-1] > 0 else None


def _panel(launch: Launch, panel: _Panel, name: str) -> Table | None:
    chosen = [each for each in launch.samples.series if each.kind in panel.kinds and series.known(each.values)]
    if not chosen:
        return None
    columns = _columns(chosen, launch)
    at = launch.samples.at
    return series.table(
        f"{name}-axis-{panel.id}", panel.title, (Column(name="seconds", unit="number"), at), columns, unit=panel.unit,
        title=panel.title, bounds=_bounds(at),
    )  # fmt: skip


def _columns(chosen: list[Series], launch: Launch) -> dict[str, list[float | None]]:
    if len(chosen) <= series.LINES:
        found: dict[str, list[float | None]] = {}
        for each in chosen:
            label = _label(each, launch)
            while label in found:
                label += " (again)"
            found[label] = list(each.values)
        return found
    bands: dict[str, list[float | None]] = {}
    for kind in dict.fromkeys(each.kind for each in chosen):
        own = [each for each in chosen if each.kind == kind]
        words = spoken(kind)
        if len(own) == 1:
            bands[_label(own[0], launch)] = list(own[0].values)
            continue
        for band, column in series.bands(dict(enumerate(each.values for each in own))).items():
            bands[f"{words}, {band} of {len(own)}"] = column
    return bands


def _label(each: Series, launch: Launch) -> str:
    several = len({other.node for other in launch.samples.series}) > 1
    of = [
        f"rank {each.rank}" if each.rank is not None else None,
        f"node {_node(each.node, launch)}" if each.node is not None and several else None,
        each.device,
    ]
    where = ", ".join(word for word in of if word)
    return spoken(each.kind) + (f" ({where})" if where else "")


def _node(place: int, launch: Launch) -> str:
    return launch.nodes[place].name if place < len(launch.nodes) else str(place)
