"""What a configuration is looked at for: versions, launcher, machines, model. What nobody said is None."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

DEEPSPEED, HF_TRAINER, ACCELERATE = "deepspeed", "hf-trainer", "accelerate"
LAUNCHERS = (DEEPSPEED, HF_TRAINER, ACCELERATE)


class Gpu(NamedTuple):
    """One of the GPUs, which are all of a kind.

    Attributes:
        sm: Compute capability times ten, such as 80.
    """

    name: str
    sm: int
    memory_bytes: int | None = None


class Row(NamedTuple):
    """What a row's image brings along.

    Attributes:
        accelerator: ``cpu`` or ``cuda``.
        ops: What is compiled ahead of time, such as cpu_adam.
        memlock_bytes: RLIMIT_MEMLOCK it is run with; None is unlimited.
    """

    name: str
    accelerator: str
    ops: tuple[str, ...]
    shm_bytes: int
    memlock_bytes: int | None = None


class Model(NamedTuple):
    """The model that is trained.

    Attributes:
        parameters: How many.
        shape: What is known beyond that (sizing.Shape); None where only the number was given.
    """

    parameters: int
    shape: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What is known of the run that the configuration is for.

    Attributes:
        deepspeed: The release whose schema and behaviour count.
        launcher: Who reads the file first: DeepSpeed, or Hugging Face Trainer or Accelerate, which fill in "auto".
        gpus: GPUs of one node.
        ram_bytes: Memory of one node.
        assumed: What nobody said and was assumed, one sentence each.
    """

    deepspeed: str
    launcher: str = DEEPSPEED
    torch: str | None = None
    gpu: Gpu | None = None
    gpus: int | None = None
    nodes: int = 1
    ram_bytes: int | None = None
    model: Model | None = None
    row: Row | None = None
    assumed: Sequence[str] = ()

    @property
    def world(self) -> int | None:
        """How many processes train, one for each GPU; None where the number of GPUs is not known."""
        return None if self.gpus is None else self.gpus * self.nodes

    @property
    def fills_auto(self) -> bool:
        """Whether "auto" is replaced before DeepSpeed reads the configuration."""
        return self.launcher != DEEPSPEED
