"""Rules about what is offloaded: the optimizer on the CPU, and the disk that its states are swapped to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import get_args

from envbuild.profile import summary
from envbuild.profile.figures import Disk, Rank
from envbuild.profile.summary import Share, counted
from envbuild.profile.view import Abstained, Answer, Cleared, Found, View, percent, rate, seconds, size

OPTIMIZER = 0.20
SWAP = 0.20
# CPUs that an optimizer of one thread uses at most: what goes on beside it in its process is little.
ONE = 1.25
# CPUs that a rank may use at least, for one thread to be too few.
FREE = 2.0
BUSY = 90.0
# Of what DeepSpeed asked for, that the kernel has to have moved for the disk to be what was waited for.
_WITNESSED = 0.5
_DISKS: tuple[Disk, ...] = get_args(Disk)
_WHO_SETS_IT = (
    "DeepSpeed's launcher leaves OMP_NUM_THREADS as it is, unless --bind_cores_to_rank is given "
    "(deepspeed/launcher/launch.py, 0.19.8); torchrun sets it to 1 where it is not set and a node has several ranks "
    "(torch/distributed/run.py, 2.13)"
)


def optimizer(view: View) -> Answer:
    """The CPU's Adam is slow, or has one thread where it could have more."""
    part = next((each for each in summary.shares(view.measurement) if each.name == "optimizer"), None)
    own = summary.inside(view.measurement, "optimizer_kernel")
    kernel = own or _without_swapping(view, part)
    if kernel is None or kernel.share is None:
        return Abstained(rule="optimizer", missing="time of the optimizer's step")
    share, spent = kernel.share, kernel.seconds
    said = f"the optimizer takes {percent(share)} of the step"
    if own is not None and part is not None and part.share is not None:
        # Around the arithmetic are ZeRO's copies and gathers, which no faster CPU shortens.
        said = (
            f"the optimizer's own arithmetic takes {percent(share)} of the step, its whole part {percent(part.share)}"
        )
    if share < OPTIMIZER:
        return Cleared(rule="optimizer", evidence=said)
    devices = [launch.structure.devices for launch in view.measurement.launches]
    device = next((each["optimizer"] for each in devices if "optimizer" in each), None)
    offloaded = device == "cpu" or view.measurement.key.accelerator == "cpu" or _offloads(view)
    lone = _lone(view) if offloaded and own is not None else None
    if lone is not None:
        name = next((each["optimizer_class"] for each in devices if "optimizer_class" in each), "")
        return _one_thread(view, lone, said, share, "CPU-Adam" if "CPUAdam" in name else "the optimizer on the CPU")
    return Found(
        rule="optimizer", title="the optimizer's step on the CPU is slow" if offloaded else "the optimizer is slow",
        share=share, confidence="high" if own is not None else "medium",
        evidence=(f"{said} ({seconds(spent)})", *_used(view)),
        why="nothing else runs meanwhile, and a CPU that is shared or has one thread is many times slower",
        experiment=(
            "Give each rank its own cores, and see whether the step shortens. Gradient accumulation pays the optimizer "
            "once for more micro-batches."
        ),
        proposals=(
            view.propose("--env", f"OMP_NUM_THREADS={_cores(view)}"),
            view.propose("--set", _more(view, 8, "gradient_accumulation_steps")),
        ),
    )  # fmt: skip


def _without_swapping(view: View, part: Share | None) -> Share | None:
    """The optimizer's part of a step, without the waiting for a disk, which is another rule's."""
    swapping = summary.inside(view.measurement, "swap")
    if part is None or swapping is None or part.share is None:
        return part
    left = max(0.0, part.seconds - swapping.seconds)
    return Share(name=part.name, seconds=left, share=left / part.seconds * part.share if part.seconds else 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Lone:
    """A rank whose optimizer uses one CPU, and may use more."""

    rank: Rank
    used: float
    allowed: float


def _lone(view: View) -> _Lone | None:
    """The rank whose arithmetic takes longest, where its one thread is alone on several CPUs; None where it is not so.

    Where OpenMP has more threads and one CPU is used all the same, more of them would change nothing.
    """
    worst: tuple[float, float, Rank] | None = None
    for launch in summary.holding(view.measurement, "optimizer_kernel"):
        for rank in launch.ranks:
            wall = sum(counted(launch, rank.steps.inside.get("optimizer_kernel", ())))
            cpu = sum(counted(launch, rank.steps.cpu.get("optimizer_kernel", ())))
            if wall > 0 and cpu > 0 and (worst is None or wall > worst[0]):
                worst = wall, cpu, rank
    if worst is None:
        return None
    wall, cpu, rank = worst
    allowed = (rank.cores.cpus or 0) / (rank.cores.sharers or 1)
    lone = rank.cores.threads == 1 and cpu / wall < ONE and allowed >= FREE
    return _Lone(rank=rank, used=cpu / wall, allowed=allowed) if lone else None


def _one_thread(view: View, lone: _Lone, said: str, share: float, name: str) -> Found:
    cores = lone.rank.cores
    asked = f"OMP_NUM_THREADS is {cores.asked}" if cores.asked is not None else "OMP_NUM_THREADS is not set"
    busy = summary.series_means(view.measurement, "cpu_percent")
    crowded = bool(busy) and max(busy) >= BUSY
    count = int(lone.allowed)
    return Found(
        rule="optimizer", title=f"{name} runs on one thread",
        # At best: what more threads than one can give back.
        share=share * (1 - 1 / count), confidence="medium" if crowded else "high",
        evidence=(
            f"{said}",
            f"rank {lone.rank.rank} uses {lone.used:.1f} CPUs meanwhile, and may use {lone.allowed:g}",
            f"OpenMP has one thread in it; {asked}",
            *([f"but the CPUs are busy {max(busy):.0f} % of the time: others use them, too"] if crowded else []),
        ),
        why=f"its loop is spread over OpenMP's threads, and nothing else runs meanwhile. {_WHO_SETS_IT}",
        experiment=(
            "Give each rank as many threads as it has CPUs, and see whether the step shortens; at best the arithmetic "
            f"takes 1/{count} of the time, and less is gained where the memory is the limit. With DeepSpeed's launcher "
            "--bind_cores_to_rank does it, and gives each rank its own CPUs."
        ),
        proposals=(view.propose("--env", f"OMP_NUM_THREADS={count}"),),
    )  # fmt: skip


def _more(view: View, least: int, *path: str) -> str:
    """A setting that is four times what it is, or as much as makes a difference."""
    now = view.setting(*path)
    return f"{'.'.join(path)}={max(least, 4 * now) if isinstance(now, int) else least}"


def _cores(view: View) -> int:
    key = view.measurement.key
    per_node = max(1, (key.world_size or 1) // (key.nodes or 1))
    return max(1, (key.hardware.cpus or 8) // per_node)


def _used(view: View) -> list[str]:
    used = summary.series_means(view.measurement, "process_cpu_percent")
    return [f"a rank's process uses {max(used) / 100:.1f} CPUs on average"] if used else []


def _offloads(view: View) -> bool:
    zero = (view.measurement.config or {}).get("zero_optimization")
    offload = zero.get("offload_optimizer") if isinstance(zero, dict) else None
    return isinstance(offload, dict) and offload.get("device") in ("cpu", "nvme")


def swap(view: View) -> Answer:
    """The disk under an offload to NVMe is slow."""
    swapping = summary.inside(view.measurement, "swap")
    if swapping is None or swapping.share is None:
        return Abstained(rule="swap", missing="time of swapping to a disk (only an offload to NVMe has one)")
    share, spent = swapping.share, swapping.seconds
    moved = _moved(view)
    if share < SWAP:
        text = f"waiting for the offload's disk takes {percent(share)} of the step"
        return Cleared(rule="swap", evidence="; ".join((text, *_speed(moved, spent))))
    asked, seen = (sum(moved.get(f"{who}_{what}", 0.0) for what in ("read", "write")) for who in ("swap", "process"))
    cached = "process_read" in moved and asked > 0 and seen < _WITNESSED * asked
    disk = [*summary.series_means(view.measurement, "disk_read"), *summary.series_means(view.measurement, "disk_write")]
    return Found(
        rule="swap", title="the disk of the offload is too slow", share=share,
        confidence="medium" if cached else "high",
        evidence=(
            f"the training waits {percent(share)} of the step for the swapper ({seconds(spent)})",
            *_speed(moved, spent),
            *_account(moved, cached=cached),
            *([f"the busiest disk moves {rate(max(disk))} on average"] if disk else []),
        ),
        why="each step reads and writes the whole optimizer state",
        experiment=(
            "Hold the optimizer state in host memory, if it fits (envbuild tune), or swap to a folder on a faster disk "
            "(--disk). What a disk gives without a training tells envbuild doctor --nvme DIR --bench; where that is "
            "more than the rate above, deeper queues may help (ds_nvme_tune of DeepSpeed tries them)."
        ),
        proposals=(
            view.propose("--set", "zero_optimization.offload_optimizer.device=cpu"),
            view.propose("--set", _more(view, 32, "aio", "queue_depth")),
        ),
    )  # fmt: skip


def _moved(view: View) -> dict[str, float]:
    """Mean bytes a step and rank, by their kind, in the pass whose times of swapping count."""
    columns: dict[str, list[float]] = {}
    for launch in summary.holding(view.measurement, "swap"):
        for rank in launch.ranks:
            for name in _DISKS:
                columns.setdefault(name, []).extend(counted(launch, rank.steps.disk.get(name, ())))
    return {name: fmean(values) for name, values in columns.items() if values}


def _speed(moved: dict[str, float], spent: float) -> Sequence[str]:
    read, written = moved.get("swap_read"), moved.get("swap_write")
    if read is None or written is None or not read + written or not spent:
        return ()
    speed = rate((read + written) / spent)
    return (f"a rank reads {size(read)} and writes {size(written)} a step: {speed} of the time that it waits",)


def _account(moved: dict[str, float], *, cached: bool) -> Sequence[str]:
    read, written = moved.get("process_read"), moved.get("process_write")
    if read is None or written is None:
        return ()
    text = f"the kernel accounts {size(read)} read and {size(written)} written a step to a rank's process"
    return (text + (": less than half of that, so it was no disk that was waited for" if cached else ""),)
