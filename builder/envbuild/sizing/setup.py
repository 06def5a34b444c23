"""What is asked of the formulae: how a model is trained, and on which machines."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from envbuild.sizing.cards import Card

GIB = 1 << 30


class Place(str, Enum):
    """Where a state lives: ``device`` of DeepSpeed's offload sections."""

    GPU = "none"
    CPU = "cpu"
    NVME = "nvme"


class Dtype(str, Enum):
    """What parameters, activations and gradients are computed in."""

    FP32 = "fp32"
    FP16 = "fp16"
    BF16 = "bf16"

    @property
    def bytes(self) -> int:
        """Bytes of one element."""
        return 4 if self is Dtype.FP32 else 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The machines of a job, all alike.

    Attributes:
        gpus: GPUs on one node.
        ram: Bytes of host memory of one node; None where nobody said.
        nvme: Bytes a second of one node's NVMe; None where there is none.
        network: Bytes a second that one node sends to others; None where nobody said.
    """

    card: Card
    gpus: int
    nodes: int = 1
    ram: int | None = None
    nvme: float | None = None
    network: float | None = None

    @property
    def world(self) -> int:
        """All ranks: one a GPU."""
        return self.gpus * self.nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """How a model is trained; buckets and thresholds are elements, as in ds_config.

    Attributes:
        optimizer, parameters: ``device`` of offload_optimizer and offload_param.
        micro_batch: Sequences that one GPU takes at a time.
        accumulation: gradient_accumulation_steps.
        accumulation_dtype: data_types.grad_accum_dtype; None is the dtype itself.
        recompute: Whether activations are checkpointed, one layer at a time.
        pinned: Whether offloaded states lie in page-locked memory.
        max_persistence: stage3_model_persistence_threshold; None is none.
        buffers: offload_optimizer.buffer_count and offload_param.buffer_count, with NVMe.
        buffer_size: offload_param.buffer_size, with NVMe; ``in_cpu`` its max_in_cpu.
        sub_group: sub_group_size.
        zero_init: Whether the model is made inside ``deepspeed.zero.Init``.
    """

    stage: int
    optimizer: Place = Place.GPU
    parameters: Place = Place.GPU
    dtype: Dtype = Dtype.BF16
    accumulation_dtype: Dtype | None = None
    micro_batch: int = 1
    accumulation: int = 1
    sequence: int = 4096
    recompute: bool = True
    pinned: bool = True
    reduce_bucket: int = 500_000_000
    allgather_bucket: int = 500_000_000
    prefetch_bucket: int = 50_000_000
    persistence: int = 100_000
    max_persistence: int | None = None
    max_live: int = 1_000_000_000
    sub_group: int = 1_000_000_000
    optimizer_buffers: int = 4
    parameter_buffers: int = 5
    buffer_size: int = 100_000_000
    in_cpu: int = 1_000_000_000
    overlap: bool = True
    zero_init: bool = True

    @property
    def gradient_bytes(self) -> int:
        """Bytes of one accumulated gradient."""
        return (self.accumulation_dtype or self.dtype).bytes

    @property
    def tokens(self) -> int:
        """Tokens of one micro-batch on one GPU."""
        return self.micro_batch * self.sequence

    @property
    def optimizer_place(self) -> Place:
        """Where optimizer states really live: stage 0 offloads nothing, and only stage 3 swaps to NVMe."""
        if self.stage == 0 or self.optimizer is Place.GPU:
            return Place.GPU
        return self.optimizer if self.stage == 3 else Place.CPU

    @property
    def parameter_place(self) -> Place:
        """Where parameters really live between uses: only stage 3 offloads them."""
        return self.parameters if self.stage == 3 else Place.GPU
