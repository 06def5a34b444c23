"""What follows from a measurement: what holds it back, how it stands to a baseline, and what exactly was measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from envbuild.profile import bottleneck as rules
from envbuild.profile import comparing, keys
from envbuild.profile.document import Measurement
from envbuild.profile.statistics import Spread
from envbuild.report import words
from envbuild.report.model import Column, Section, Table, Value

# Of many nodes the first; the file has all of them.
_MOST_NODES = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """What a measurement is compared with, and what that is called."""

    name: str
    measurement: Measurement


def bottleneck(measurement: Measurement, base: Base | None, name: str) -> Section:
    """The findings, worst first, each with its next experiment; and what it is not."""
    found = rules.diagnose(measurement, base.measurement if base else None)
    lead = () if found.found else ("No rule finds a bottleneck.",)
    return Section(
        id=f"{name}-bottleneck", title="What holds it back", lead=lead, found=found.found, cleared=found.cleared,
        abstained=found.abstained,
    )  # fmt: skip


def comparison(measurement: Measurement, base: Base | None, asked: comparing.Asked, name: str) -> Section:
    """The verdict of ``compare``, and what it stands on."""
    title = "Against the baseline"
    identity = f"{name}-comparison"
    if base is None:
        return Section(id=identity, title=title, empty="There is no baseline to compare it with.")
    found = comparing.compare(base.measurement, measurement, asked)
    lead = [
        found.reason,
        f"Compared with {base.name}; the change that matters is {words.figure(asked.delta, 'share')}.",
    ]
    if found.unknown:
        lead.append(f"Not known on both sides: {', '.join(found.unknown)}.")
    lead.append(f"Losses: {found.convergence.verdict}: {found.convergence.reason}.")
    differing = [(each, "may not") for each in found.undeclared] + [(each, "may") for each in found.declared]
    tables = [
        _text_table(
            f"{name}-differences", "What is not the same", ("what", "baseline", "this", "differ"),
            [(each.name, words.digest(each.base), words.digest(each.candidate), said) for each, said in differing],
        ),
        _text_table(
            f"{name}-changed", "Exact figures that differ", ("figure", "baseline", "this", "is", "because"),
            [(each.figure, each.base, each.candidate, each.change, each.why) for each in found.structural],
        ),
        *_times(found, name),
    ]  # fmt: skip
    return Section(
        id=identity, title=title, verdict=found.verdict, lead=tuple(lead),
        tables=tuple(each for each in tables if each.rows),
    )  # fmt: skip


def _times(found: comparing.Comparison, name: str) -> list[Table]:
    tables = []
    times = found.timing
    if times is not None:
        sides: tuple[tuple[str, Spread | None], ...] = (("baseline", times.base), ("this", times.candidate))
        tables.append(
            Table(
                id=f"{name}-medians",
                caption="Median step of the launches",
                columns=(
                    Column(name="side"), Column(name="median", unit="seconds"), Column(name="MAD", unit="seconds"),
                    Column(name="launches", unit="count"),
                ),
                rows=tuple((side, each.median, each.mad, each.count) for side, each in sides if each is not None),
                notes=("MAD: the median distance from the median.",),
            )
        )  # fmt: skip
    judged = times.judgement if times is not None else None
    if times is not None and judged is not None:
        tables.append(
            Table(
                id=f"{name}-ratio",
                caption="Ratio of this to the baseline, over rounds of launches in turns",
                columns=(
                    *(Column(name=each, unit="number") for each in ("ratio", "at least", "at most", "ratio of means")),
                    *(Column(name=each, unit="number") for each in ("p of no slower", "p of no faster")),
                    Column(name="minimum detectable effect", unit="share"), Column(name="rounds", unit="count"),
                ),
                rows=(
                    (
                        judged.ratio, judged.low, judged.high, times.means, judged.slower, judged.faster,
                        judged.detectable, judged.rounds,
                    ),
                ),
            )
        )  # fmt: skip
    tables.append(
        Table(
            id=f"{name}-part-changes",
            caption="Parts of the step on both sides",
            columns=(
                Column(name="part"), Column(name="baseline", unit="seconds"), Column(name="this", unit="seconds"),
            ),
            rows=tuple((each.name.replace("_", " "), each.base, each.candidate) for each in found.parts),
        )
    )  # fmt: skip
    return tables


def _nodes(measurement: Measurement) -> str | None:
    """How many there are, and what a cluster calls them."""
    names = dict.fromkeys(each.name for launch in measurement.launches for each in launch.nodes)
    count = _text(measurement.key.nodes)
    return f"{count or len(names)}: {', '.join(list(names)[:_MOST_NODES])}" if names else count


def key(measurement: Measurement, base: Base | None, name: str) -> Section:
    """What was measured: image, versions, hardware, and the resolved ds_config beside the baseline's."""
    about = measurement.key
    hardware = about.hardware
    origin = measurement.origin
    rows: list[tuple[str, Value]] = [
        ("row", about.row), ("image", about.image), ("ds_config (SHA-256)", about.config), ("model", about.model),
        ("accelerator", about.accelerator), ("ranks", _text(about.world_size)), ("nodes", _nodes(measurement)),
        ("DeepSpeed", about.deepspeed), ("torch", about.torch), ("NCCL", about.nccl), ("CPU", hardware.cpu),
        ("CPUs", _text(hardware.cpus)),
        ("host memory", words.figure(hardware.memory_bytes, "bytes") if hardware.memory_bytes is not None else None),
        ("GPUs", ", ".join(hardware.gpus) or None), ("driver", hardware.driver), ("called", hardware.label),
        ("measured by", origin.kind), ("files", ", ".join(origin.files) or None), ("command", origin.command),
        ("probe", about.probe), ("envbuild", origin.envbuild),
    ]  # fmt: skip
    tables = [_text_table(f"{name}-key-figures", "Key and origin", ("what", "value"), rows)]
    if base is not None:
        changes = keys.config_changes(base.measurement, measurement)
        columns = ("setting", "baseline", "this")
        tables.append(
            _text_table(
                f"{name}-config-changes", f"Settings of the ds_config that are not those of {base.name}", columns,
                [(each.name, each.base, each.candidate) for each in changes],
            )
        )  # fmt: skip
    if measurement.config is not None:
        settings: list[Sequence[Value]] = [(each, value) for each, value in keys.flat(measurement.config)]
        tables.append(
            _text_table(
                f"{name}-config", "The resolved ds_config", ("setting", "value"), sorted(settings, key=str), folded=True
            )
        )
    return Section(
        id=f"{name}-key", title="What was measured", lead=measurement.notes,
        tables=tuple(each for each in tables if each.rows),
    )  # fmt: skip


def _text(value: int | None) -> str | None:
    return None if value is None else str(value)


def _text_table(
    identity: str, caption: str, names: Sequence[str], rows: Sequence[Sequence[Value]], *, folded: bool = False
) -> Table:
    return Table(
        id=identity, caption=caption, columns=tuple(Column(name=each) for each in names),
        rows=tuple(tuple(row) for row in rows), folded=folded,
    )  # fmt: skip
