"""One document of the ZeRO-3 probe, and what it is held to, as the checks look at them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from envbuild.judge.number import count, show
from envbuild.judge.outcome import dig
from envbuild.judge.versions import cuda_of
from envbuild.model import Environment

SCHEMA = "envbuild.probe.zero3/2"
Dtype = Literal["fp32", "bf16"]
Problems = Iterator[str]
BACKENDS = {"cpu": "gloo", "cuda": "nccl"}
FIRST_PASS = "fp32"
MEASURED = "Measured with DeepSpeed 0.19.8 and torch 2.13.0 on the CPU accelerator, two ranks over gloo."


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpus:
    """The GPUs that a run may be on.

    Attributes:
        uuids: What the container was given; empty when it was given every one, or when that is not known.
        names: How the row's GPUs are called, such as ``H200``.
        capabilities: Their compute capabilities, such as ``9.0``; in the order of the names.
    """

    uuids: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    capabilities: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What a run is held to.

    Attributes:
        subject: Whose run it is, for the findings: a row, or a host.
        seed: What the probe was told; every number in its document depends on it.
        accelerator: The one that it was told to use.
        versions: What has to be imported; None as a value is "no CUDA". Empty on a host, which claims nothing.
        jit: Whether an op may be compiled at run time.
        nvme: Whether there is a pass with the optimizer states on disk.
        seconds: How long it was to train on after the steps; 0 is not at all.
    """

    subject: str
    seed: int
    accelerator: str
    versions: tuple[tuple[str, str | None], ...] = ()
    jit: bool = False
    nvme: bool = False
    seconds: float = 0.0
    gpus: Gpus | None = None

    @classmethod
    def of(
        cls,
        env: Environment,
        *,
        seed: int,
        accelerator: str,
        nvme: bool = False,
        seconds: float = 0.0,
        gpus: Gpus | None = None,
    ) -> Expected:
        """What a row's image is held to.

        DeepSpeed takes a prebuilt op only on the accelerator it was built for (op_builder/builder.py, load), so a cuda
        image that trains on the CPU compiles its CPUAdam. That its own ops load is seen by inspection.
        """
        return cls(
            subject=env.name,
            seed=seed,
            accelerator=accelerator,
            versions=(
                ("torch", env.torch_version),
                ("deepspeed", env.deepspeed.version),
                ("python", env.python),
                ("torch_cuda", cuda_of(env.torch.build)),
            ),
            jit=accelerator != env.accelerator,
            nvme=nvme,
            seconds=seconds,
            gpus=gpus,
        )

    @classmethod
    def host(cls, *, seed: int, accelerator: str, seconds: float = 0.0) -> Expected:
        """What a bare host is held to: that it trains right. It claims no version, and may compile its ops."""
        return cls(subject="host", seed=seed, accelerator=accelerator, jit=True, seconds=seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What the checks are given; everything in the report may be malformed.

    Attributes:
        accelerator: What the probe says it ran on; empty when it is no known one.
        ranks: One item per rank that the document names.
        name: The pass that is looked at; empty when it is the run as a whole.
    """

    expected: Expected
    report: Mapping[str, Any]
    accelerator: str
    ranks: tuple[Mapping[str, Any], ...]
    name: str = ""

    @classmethod
    def of(cls, expected: Expected, report: Mapping[str, Any]) -> Run:
        """The document taken apart."""
        ranks = report.get("ranks")
        items = tuple(rank if isinstance(rank, Mapping) else {} for rank in ranks) if isinstance(ranks, list) else ()
        accelerator = dig(report, "arguments", "accelerator")
        known = accelerator if isinstance(accelerator, str) and accelerator in BACKENDS else ""
        return cls(expected=expected, report=report, accelerator=known, ranks=items)

    def of_pass(self, name: str) -> Run:
        """The same run, with the figures of one pass."""
        return dataclasses.replace(self, name=name)

    def has(self, name: str) -> bool:
        """Whether a pass took place on some rank; without the first one there is nothing."""
        return name == FIRST_PASS or any(dig(rank, "report", "passes", name) is not None for rank in self.ranks)

    @property
    def figures(self) -> list[tuple[str, Any]]:
        """Name and figures of each rank: of the pass that is looked at, or of all."""
        keys = ("report", "passes", self.name) if self.name else ("report",)
        return [(f"rank {place}", dig(rank, *keys)) for place, rank in enumerate(self.ranks)]

    @property
    def dtype(self) -> Dtype:
        """The precision of the pass."""
        return "bf16" if self.name == "bf16" else "fp32"

    @property
    def steps(self) -> int | None:
        """How many steps were asked for, in the first pass by the caller and in the others by the probe."""
        if self.name in ("", FIRST_PASS):
            return count(dig(self.report, "arguments", "steps"))
        asked = {count(dig(figures, "steps")) for _, figures in self.figures}
        return asked.pop() if len(asked) == 1 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One pass condition.

    Attributes:
        what: What is wrong when it does not hold, as the head of the message.
        problems: The places where it does not hold; none when it holds on every rank.
        passes: The passes in which it is looked at; none: once, at the run as a whole.
    """

    rule: str
    what: str
    fix: str
    problems: Callable[[Run], Problems]
    source: str = MEASURED
    passes: tuple[str, ...] = ()


def told(figures: Any, *keys: str) -> str:
    """A figure as text; where it is missing, the reason the probe gave."""
    value = dig(figures, *keys)
    reason = None if value is not None else dig(figures, "errors", keys[0])
    return show(value) if reason is None else f"missing ({show(reason)})"
