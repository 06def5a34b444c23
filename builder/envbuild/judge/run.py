"""One document of the ZeRO-3 probe, as the checks look at it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from envbuild.judge.number import count, show
from envbuild.judge.outcome import dig
from envbuild.model import Environment

SCHEMA = "envbuild.probe.zero3/1"
Dtype = Literal["fp32", "bf16"]
Problems = Iterator[str]
BACKENDS = {"cpu": "gloo", "cuda": "nccl"}
MEASURED = "Measured with DeepSpeed 0.19.8 and torch 2.13.0 on the CPU accelerator, two ranks over gloo."


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What the checks are given; everything in it but the row may be malformed.

    Attributes:
        dtype: What was asked for.
        accelerator: What the probe says it ran on; empty when it is no known one.
        ranks: One item per rank that the document names.
    """

    env: Environment
    report: Mapping[str, Any]
    dtype: Dtype
    accelerator: str
    ranks: tuple[Mapping[str, Any], ...]

    @classmethod
    def of(cls, env: Environment, report: Mapping[str, Any], dtype: Dtype) -> Run:
        """The document taken apart."""
        ranks = report.get("ranks")
        items = tuple(rank if isinstance(rank, Mapping) else {} for rank in ranks) if isinstance(ranks, list) else ()
        accelerator = dig(report, "arguments", "accelerator")
        known = accelerator if isinstance(accelerator, str) and accelerator in BACKENDS else ""
        return cls(env=env, report=report, dtype=dtype, accelerator=known, ranks=items)

    @property
    def figures(self) -> list[tuple[str, Any]]:
        """Name and figures of each rank."""
        return [(f"rank {place}", rank.get("report")) for place, rank in enumerate(self.ranks)]

    @property
    def steps(self) -> int | None:
        """How many steps were asked for."""
        return count(dig(self.report, "arguments", "steps"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One pass condition.

    Attributes:
        what: What is wrong when it does not hold, as the head of the message.
        problems: The places where it does not hold; none when it holds on every rank.
    """

    rule: str
    what: str
    fix: str
    problems: Callable[[Run], Problems]
    source: str = MEASURED


def told(figures: Any, *keys: str) -> str:
    """A figure as text; where it is missing, the reason the probe gave."""
    value = dig(figures, *keys)
    reason = None if value is not None else dig(figures, "errors", keys[0])
    return show(value) if reason is None else f"missing ({show(reason)})"
