"""What the rules of the bottleneck look at, and what they may answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from envbuild.profile import summary
from envbuild.profile.again import Pairs, Start
from envbuild.profile.document import Measurement
from envbuild.profile.summary import Traffic


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """An experiment.

    Attributes:
        options: What is different in it, or how it is looked at, as options of ``profile``.
        command: The same training with that, to be run as it is; None where envbuild cannot start that training.
        words: What is different, for who starts it.
    """

    options: Pairs
    command: str | None
    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Something that costs time.

    Attributes:
        share: Of the step, that it explains; None where only its presence is known.
        proposals: The next experiments.
    """

    rule: str
    title: str
    confidence: Literal["high", "medium", "low"]
    evidence: tuple[str, ...]
    why: str
    experiment: str
    proposals: tuple[Proposal, ...]
    share: float | None = None

    @property
    def commands(self) -> tuple[str, ...]:
        """The experiments that can be run as they are."""
        return tuple(each.command for each in self.proposals if each.command is not None)

    @property
    def changes(self) -> tuple[str, ...]:
        """The others, in words."""
        return tuple(each.words for each in self.proposals if each.command is None)


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
        start: How that training is started again.
        step: Seconds of the mean step.
    """

    measurement: Measurement
    baseline: Measurement | None
    start: Start
    step: float | None
    traffic: dict[str, Traffic]

    @classmethod
    def of(cls, measurement: Measurement, baseline: Measurement | None, *, start: Start) -> View:
        """Of a measurement."""
        return cls(
            measurement=measurement, baseline=baseline, start=start,
            step=summary.step_mean(summary.timed(measurement)),
            traffic=summary.busiest(measurement),
        )  # fmt: skip

    @property
    def before(self) -> View | None:
        """The baseline, looked at in the same way."""
        return View.of(self.baseline, None, start=self.start) if self.baseline is not None else None

    def share(self, part: str) -> float | None:
        """Of the step, a part has; None where it was not measured."""
        return next((each.share for each in summary.shares(self.measurement) if each.name == part), None)

    def part(self, name: str) -> float | None:
        """Seconds of a part."""
        return next((each.seconds for each in summary.shares(self.measurement) if each.name == name), None)

    def setting(self, *path: str) -> Any:
        """What the ds_config says: what DeepSpeed was given, or what it made of that; None where it does not."""
        made = self.measurement.origin.made
        value: Any = made.ds_config if made is not None and made.ds_config is not None else self.measurement.config
        for name in path:
            value = value.get(name) if isinstance(value, Mapping) else None
        return value

    def propose(self, *options: str) -> Proposal:
        """The same training with these options of ``profile``: what is different in it, or how it is looked at."""
        pairs = tuple(zip(options[::2], options[1::2], strict=True))
        return Proposal(options=pairs, command=self.start.command(pairs), words=_words(pairs))


_LOOKED_AT = {
    "comms": "the times of its collectives (comms_logger in the ds_config, and its log read by profile --from)",
    "trace": "a trace of torch.profiler, read by profile --from",
}


def _words(pairs: Pairs) -> str:
    """What is different, for who starts a training by other means than ``profile``."""
    said = []
    for name, value in pairs:
        if name == "--set":
            said.append(f"{value} in the ds_config")
        elif name == "--env":
            said.append(f"{value} in the environment of the ranks")
        elif name == "--data":
            said.append("batches that are in memory already")
        elif name == "--checkpoint-every":
            said.append(f"a checkpoint every {value} steps")
        elif not said:
            said.append(_LOOKED_AT.get(value, f"{name} {value}"))
    return ", ".join(said)


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
