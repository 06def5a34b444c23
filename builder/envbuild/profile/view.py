"""What the rules of the bottleneck look at, and what they may answer."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import Literal

from envbuild.profile import summary
from envbuild.profile.document import Measurement
from envbuild.profile.summary import Traffic

# Options of profile that go with one node.
ONE_NODE = frozenset({"--checkpoint-every", "--disk"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Something that costs time.

    Attributes:
        share: Of the step, that it explains; None where only its presence is known.
        commands: The next experiment, to be run as it is.
    """

    rule: str
    title: str
    confidence: Literal["high", "medium", "low"]
    evidence: tuple[str, ...]
    why: str
    experiment: str
    commands: tuple[str, ...]
    share: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleared:
    """Looked at, and not it."""

    rule: str
    evidence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Abstained:
    """Not looked at: the figures are not there."""

    rule: str
    missing: str


Answer = Found | Cleared | Abstained


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """A measurement, what it is compared with, and figures that several rules need.

    Attributes:
        step: Seconds of the mean step.
    """

    measurement: Measurement
    baseline: Measurement | None
    target: str
    step: float | None
    traffic: dict[str, Traffic]

    @classmethod
    def of(cls, measurement: Measurement, baseline: Measurement | None, *, target: str) -> View:
        """Of a measurement."""
        return cls(
            measurement=measurement, baseline=baseline, target=target,
            step=summary.step_mean(summary.timed(measurement)),
            traffic=summary.busiest(measurement),
        )  # fmt: skip

    @property
    def before(self) -> View | None:
        """The baseline, looked at in the same way."""
        return View.of(self.baseline, None, target=self.target) if self.baseline is not None else None

    def share(self, part: str) -> float | None:
        """Of the step, a part has; None where it was not measured."""
        return next((each.share for each in summary.shares(self.measurement) if each.name == part), None)

    def part(self, name: str) -> float | None:
        """Seconds of a part."""
        return next((each.seconds for each in summary.shares(self.measurement) if each.name == name), None)

    def command(self, *options: str) -> str:
        """A run of the same training with something changed, over as many nodes, where profile does that."""
        key = self.measurement.key
        spread: tuple[str, ...] = ()
        if (key.nodes or 1) > 1 and not ONE_NODE.intersection(options):
            own = (key.world_size or 0) // (key.nodes or 1)
            # On GPUs a node has one for each, which the cluster is asked for.
            each = ("--ranks-per-node", str(own)) if key.accelerator == "cpu" and own > 1 else ()
            spread = ("--executor", "slurm", "--nodes", str(key.nodes), *each)
        return shlex.join(("envbuild", "profile", self.target, *spread, *options, "--json"))


def percent(value: float) -> str:
    """A share for people."""
    return f"{value:.0%}" if value >= 0.0995 else f"{value:.1%}"


def seconds(value: float) -> str:
    """A time for people, three digits and no exponent."""
    if value >= 100:
        return f"{value:.0f} s"
    if value >= 1:
        return f"{value:.2f} s"
    if value >= 0.0995:
        return f"{value * 1e3:.0f} ms"
    if value >= 1e-3:
        return f"{value * 1e3:.1f} ms"
    return f"{value * 1e6:.0f} us"


def rate(value: float) -> str:
    """Bytes per second for people."""
    for unit, factor in (("GB/s", 1e9), ("MB/s", 1e6)):
        if value >= factor / 10:
            return f"{value / factor:.1f} {unit}"
    return f"{value / 1e3:.1f} kB/s"


def size(value: float) -> str:
    """Bytes for people."""
    for unit, factor in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if value >= factor:
            return f"{value / factor:.1f} {unit}"
    return f"{value:.0f} B"
