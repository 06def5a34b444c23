"""What one process measured, and what was sampled beside it: the columns and rows of a measurement."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, PlainSerializer, WithJsonSchema, model_validator

from envbuild.model.words import Frozen, Line, Word
from envbuild.profile.numbers import read_number, write_number

# Bounds that no training reaches, so that sums and means of figures are numbers, whoever wrote the file.
_WHOLE, _LARGE, _LOSS = 2**63 - 1, 1e30, 1e300


def _finite(value: float) -> float:
    if math.isfinite(value) and abs(value) > _LOSS:
        raise ValueError(f"no loss or error is beyond {_LOSS:g}")
    return value


Seconds = Annotated[float, Field(ge=0, le=1e12, allow_inf_nan=False)]
Rate = Annotated[float, Field(ge=0, le=_LARGE, allow_inf_nan=False)]
Bytes = Annotated[int, Field(ge=0, le=_WHOLE)]
Count = Annotated[int, Field(ge=0, le=_WHOLE)]
Several = Annotated[int, Field(ge=1, le=_WHOLE)]
Seed = Annotated[int, Field(ge=-_WHOLE, le=2 * _WHOLE + 1)]
Finite = Annotated[float, Field(ge=-_LARGE, le=_LARGE, allow_inf_nan=False)]
# A loss may be NaN, which JSON cannot say: it is "nan" there.
Number = Annotated[
    float,
    Field(allow_inf_nan=True),
    AfterValidator(_finite),
    PlainSerializer(write_number, when_used="json"),
    WithJsonSchema({"anyOf": [{"type": "number"}, {"enum": ["nan", "inf", "-inf"]}]}),
]

# The pieces that a step is made of, one after another: they do not overlap, and their sum is at most the step.
Part = Literal["data_wait", "forward", "backward", "reduction", "optimizer", "checkpoint"]
# What happens inside those pieces, and may overlap: it is never added to them.
Inside = Literal["compute", "communication", "exposed_communication", "h2d", "d2h", "optimizer_kernel", "swap"]
Direction = Literal["h2d", "d2h"]
# Of the swapper: what DeepSpeed asked its disk for. Of the process: what the kernel accounts to it, of all disks.
Disk = Literal["swap_read", "swap_write", "process_read", "process_write"]


class Steps(Frozen):
    """Optimizer steps of one rank, a column for each figure; every column is as long as ``number``.

    Attributes:
        number: The step's number, counted from 0 or as the log counts.
        at: When it began, on the launch's time axis.
        seconds: Wall time of the whole step, waiting for data and everything else included.
        parts: The pieces that it is made of. They do not overlap: ``backward`` is without ``reduction``, unless that is
            listed as unavailable.
        inside: What happened inside the pieces; it may overlap, and is part of no sum. ``swap`` is the host's time in
            the calls of DeepSpeed's swapper: what it waits for the disk of an offload.
        cpu: Seconds of CPU that all threads of the process used within what ``inside`` has by the same name.
        moved: Bytes copied between host and device.
        disk: Bytes read from and written to disks.
        loss: Of this rank.
        gradient_norm: Of the whole model.
    """

    number: tuple[Count, ...] = ()
    at: tuple[Finite | None, ...] = ()
    seconds: tuple[Seconds | None, ...] = ()
    parts: dict[Part, tuple[Seconds | None, ...]] = Field(default_factory=dict)
    inside: dict[Inside, tuple[Seconds | None, ...]] = Field(default_factory=dict)
    cpu: dict[Inside, tuple[Seconds | None, ...]] = Field(default_factory=dict)
    moved: dict[Direction, tuple[Bytes | None, ...]] = Field(default_factory=dict)
    disk: dict[Disk, tuple[Bytes | None, ...]] = Field(default_factory=dict)
    loss: tuple[Number | None, ...] = ()
    gradient_norm: tuple[Number | None, ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _numbers(cls, value: Any) -> Any:
        if isinstance(value, dict):
            for name in ("loss", "gradient_norm"):
                column = value.get(name)
                if isinstance(column, (list, tuple)):
                    value = {**value, name: tuple(read_number(each) for each in column)}
        return value

    @model_validator(mode="after")
    def _columns(self) -> Steps:
        columns: dict[str, tuple[Any, ...]] = {
            "at": self.at, "seconds": self.seconds, "loss": self.loss, "gradient_norm": self.gradient_norm,
        }  # fmt: skip
        # A column of no figures at all may be left out.
        columns = {name: column for name, column in columns.items() if column}
        for group in ("parts", "inside", "cpu", "moved", "disk"):
            columns.update({f"{group}.{name}": column for name, column in getattr(self, group).items()})
        for name, column in columns.items():
            if len(column) != len(self.number):
                raise ValueError(f"{name} has {len(column)} values for {len(self.number)} steps")
        return self


class Memory(Frozen):
    """Peaks of one rank.

    Attributes:
        host_peak_bytes: Resident memory of the process.
        host_share_peak_bytes: The same, with what processes share divided among them; the highest sample.
        host_pinned_bytes: Page-locked, pinned blocks as they are rounded.
        gpu_peak_bytes: Allocated by torch at the peak.
        allocation_retries: How often torch had to empty its cache and try again.
    """

    host_peak_bytes: Bytes | None = None
    host_share_peak_bytes: Bytes | None = None
    host_pinned_bytes: Bytes | None = None
    gpu_peak_bytes: Bytes | None = None
    gpu_reserved_peak_bytes: Bytes | None = None
    gpu_total_bytes: Bytes | None = None
    allocation_retries: Count | None = None


class Cores(Frozen):
    """What of the CPU one rank may use.

    Attributes:
        threads: Of OpenMP, as torch counts them.
        asked: ``OMP_NUM_THREADS`` of the process; None where it is not set.
        cpus: By affinity and the cgroup's quota.
        sharers: Ranks that share these CPUs, itself among them.
    """

    threads: Several | None = None
    asked: Line | None = None
    cpus: Several | None = None
    sharers: Several | None = None


class Collective(Frozen):
    """One kind of collective of one rank, over all measured steps of the launch.

    Attributes:
        op: As torch calls it: ``all_gather_into_tensor``, ``reduce_scatter_tensor``, ``all_reduce``, ...
        bytes: The sum of the messages' sizes, as NCCL's own tests count them: of an all-gather all that was gathered,
            of a reduce-scatter or an all-to-all all that a rank puts in. None where it is not known.
        message_bytes: The size of each, where the row is of one size only.
        seconds: Time in it, the sum of all; None where it was not measured or is not to be trusted.
        time: ``measured``: as it was timed; ``corrected``: computed back from DeepSpeed's cumulative latencies.
        bus_bandwidth: Bytes per second, by the formula of NCCL's own tests.
        bandwidth: ``computed`` from bytes and seconds, ``reported`` by the log, or ``corrected`` from what it reported.
    """

    op: Word
    count: Count
    bytes: Bytes | None = None
    message_bytes: Bytes | None = None
    group_size: Several | None = None
    seconds: Seconds | None = None
    time: Literal["measured", "corrected"] | None = None
    bus_bandwidth: Rate | None = None
    bandwidth: Literal["computed", "reported", "corrected"] | None = None

    @model_validator(mode="after")
    def _said(self) -> Collective:
        if (self.seconds is None) != (self.time is None):
            raise ValueError("seconds and time belong together: one says how far the other can be trusted")
        if (self.bus_bandwidth is None) != (self.bandwidth is None):
            raise ValueError("bus_bandwidth and bandwidth belong together: one says where the other comes from")
        return self


class Operator(Frozen):
    """An operator of torch, over all traced steps.

    Attributes:
        seconds: Of the CPU, without what it calls.
        device_seconds: Of the GPU's kernels.
    """

    name: Line
    count: Count
    seconds: Seconds
    device_seconds: Seconds | None = None


class Rank(Frozen):
    """What one process measured."""

    rank: Count
    local_rank: Count | None = None
    node: Count | None = None
    device: Line | None = None
    cores: Cores = Cores()
    steps: Steps = Steps()
    memory: Memory = Memory()
    collectives: tuple[Collective, ...] = ()
    operators: tuple[Operator, ...] = ()


Kind = Literal[
    "cpu_percent", "process_cpu_percent", "host_memory_bytes", "process_memory_bytes", "disk_read", "disk_write",
    "network_receive", "network_send", "gpu_percent", "gpu_memory_bytes", "gpu_clock_hz", "gpu_memory_clock_hz",
    "gpu_power_watts", "gpu_temperature_celsius", "pcie_receive", "pcie_send",
]  # fmt: skip


class Series(Frozen):
    """One sampled quantity; rates are bytes per second, ``cpu_percent`` is of all CPUs, a process's of one.

    Attributes:
        rank: The process, or the rank whose GPU it is; None is the node.
        device: Such as ``nvme0n1``, or ``cuda:0`` as the rank counts.
    """

    kind: Kind
    values: tuple[Finite | None, ...]
    rank: Count | None = None
    node: Count | None = None
    device: Line | None = None


class Samples(Frozen):
    """Utilisation on one time axis.

    Attributes:
        at: Seconds since the launch's start; each series has one value for each of them.
    """

    at: tuple[Finite, ...] = ()
    series: tuple[Series, ...] = ()

    @model_validator(mode="after")
    def _aligned(self) -> Samples:
        for series in self.series:
            if len(series.values) != len(self.at):
                raise ValueError(f"series {series.kind} has {len(series.values)} values for {len(self.at)} times")
        return self
