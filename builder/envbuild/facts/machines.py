"""What sizing asks for: GPUs as they are sold, their links, and public models."""

from __future__ import annotations

from envbuild.facts.fact import Fact


class Bus(Fact):
    """A link between host and GPU: gigabytes a second in one direction."""

    title: str
    gigabytes: float


class Card(Fact):
    """A GPU as it is sold: its memory (MiB), its bus, and its dense 16-bit arithmetic (10^12 operations a second)."""

    title: str
    gpu: str
    memory: int
    bus: str
    tflops: float
    aliases: tuple[str, ...] = ()


class Model(Fact):
    """A public model: its published count, and the fields of its config.json that its weights follow from."""

    parameters: int
    config: dict[str, bool | int | float | str | None]
