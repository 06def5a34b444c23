"""Figures for node-exporter's textfile collector, in Prometheus' text format."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from envbuild.watching.types import Alert, Tick, counted

# Name, type, help.
_METRICS = (
    ("up", "gauge", "1 while the training runs and is watched."),
    ("steps_total", "counter", "Steps that the training has told of, or its engine has counted."),
    ("progress_age_seconds", "gauge", "Time since a rank was last seen to make progress."),
    ("step_seconds", "gauge", "Median time of a step of the last minutes."),
    ("loss", "gauge", "The last loss that was printed."),
    ("gradient_norm", "gauge", "The last gradient norm that was printed."),
    ("rank_step", "gauge", "The step of each rank."),
    ("rank_cpu_seconds_total", "counter", "CPU time of each rank's process."),
    ("memory_used_bytes", "gauge", "What the training has of a memory or a disk."),
    ("memory_left_bytes", "gauge", "What is left of a memory or a disk for it."),
    ("gpu_utilization_ratio", "gauge", "Utilisation of each GPU, by NVML."),
    ("alerts_total", "counter", "Alerts by kind since watching began; notices are none."),
    ("last_seen_timestamp_seconds", "gauge", "When these figures were taken."),
)
Sample = tuple[Mapping[str, str], float]


def text(samples: Mapping[str, Sequence[Sample]]) -> str:
    """Metrics by name, each with labels and value; a name that is not known is a mistake.

    The format is "Exposition formats" of Prometheus' documentation; node-exporter's textfile collector wants no
    timestamps in it.
    """
    unknown = set(samples) - {name for name, _, _ in _METRICS}
    if unknown:
        raise ValueError(f"unknown metrics: {', '.join(sorted(unknown))}")
    lines = []
    for name, kind, told in _METRICS:
        if not samples.get(name):
            continue
        full = f"envbuild_watch_{name}"
        lines += [f"# HELP {full} {told}", f"# TYPE {full} {kind}"]
        lines += [f"{full}{_labels(labels)} {_value(value)}" for labels, value in samples[name]]
    return "\n".join(lines) + "\n"


def figures(
    tick: Tick,
    *,
    up: bool,
    moved: tuple[float, int],
    pace: float | None,
    loss: float | None,
    norm: float | None,
    alerts: Sequence[Alert],
) -> dict[str, Sequence[Sample]]:
    """The metrics of one moment.

    Args:
        moved: When the last step was seen, and its number.
        pace: Seconds of a step.
    """
    single = {
        "up": float(up), "steps_total": float(moved[1]), "progress_age_seconds": tick.at - moved[0],
        "step_seconds": pace, "loss": loss, "gradient_norm": norm, "last_seen_timestamp_seconds": time.time(),
    }  # fmt: skip
    found: dict[str, Sequence[Sample]] = {name: [({}, value)] for name, value in single.items() if value is not None}
    found["rank_step"] = [({"rank": str(each.rank)}, float(each.step)) for each in tick.ranks if each.step is not None]
    found["rank_cpu_seconds_total"] = [({"rank": str(each.rank)}, each.cpu) for each in tick.ranks]
    found["memory_used_bytes"] = [({"memory": each.name}, float(each.used)) for each in tick.memories]
    found["memory_left_bytes"] = [({"memory": each.name}, float(each.left)) for each in tick.memories]
    found["gpu_utilization_ratio"] = [
        ({"gpu": str(number)}, each / 100) for number, each in enumerate(tick.gpu_percent)
    ]
    found["alerts_total"] = [({"kind": kind}, float(count)) for kind, count in counted(alerts).items()]
    return found


def _labels(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    pairs = []
    for name, value in labels.items():
        escaped = value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
        pairs.append(f'{name}="{escaped}"')
    return "{" + ",".join(pairs) + "}"


def _value(value: float) -> str:
    if value != value:
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "+Inf" if value > 0 else "-Inf"
    return repr(float(value)) if not float(value).is_integer() else str(int(value))
