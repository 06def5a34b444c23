"""Rules about one machine: data, copies, memory, checkpoints, computing."""

from __future__ import annotations

from typing import get_args

from envbuild.profile import summary
from envbuild.profile.figures import Direction
from envbuild.profile.summary import counted, ranks_part
from envbuild.profile.view import Abstained, Answer, Cleared, Found, Proposal, View, percent, rate, seconds, size

DIRECTIONS: tuple[Direction, ...] = get_args(Direction)
DATA = (0.10, 0.20)
COPIES = 0.20
CHECKPOINT = 0.05
FULL = 0.90
COMPUTE = 0.90
_SEGMENTS = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments"
# Unchanged: within this of the baseline.
_SAME = 0.10


def data(view: View) -> Answer:
    """The step waits for its batch."""
    wait = _wait(view)
    if wait is None or not view.step:
        return Abstained(rule="data", missing="time waiting for data (a log of DeepSpeed has none)")
    share = wait / view.step
    before = view.before
    earlier = _wait(before) if before else None
    if share < DATA[0]:
        text = f"waiting for data is {percent(share)} of the step"
        if earlier is not None:
            change = "unchanged" if abs(wait - earlier) <= _SAME * max(earlier, 1e-9) else f"was {seconds(earlier)}"
            text += f" ({seconds(wait)}, {change})"
        return Cleared(rule="data", evidence=text)
    return Found(
        rule="data", title="the data loader is too slow", share=share,
        confidence="high" if share >= DATA[1] else "medium",
        evidence=(f"waiting for data is {percent(share)} of the step ({seconds(wait)})",),
        why="the accelerator stands still until the batch is there",
        experiment="Train on data that is already in memory: if the step shortens by the wait, it is the loader.",
        proposals=(view.propose("--data", "synthetic"),),
    )  # fmt: skip


def _wait(view: View) -> float | None:
    """Seconds a step that the rank waits which waits longest: the others wait for it in turn."""
    launches = summary.timed(view.measurement)
    waits = [max(found.values()) for launch in launches if (found := ranks_part(launch, "data_wait"))]
    return sum(waits) / len(waits) if waits else None


def copies(view: View) -> Answer:
    """Time is spent between host and device."""
    times = {name: summary.inside(view.measurement, name) for name in DIRECTIONS}
    known: dict[Direction, float] = {name: value.seconds for name, value in times.items() if value is not None}
    shares = [value.share for value in times.values() if value is not None and value.share is not None]
    if not shares:
        return Abstained(rule="copies", missing="time of copies between host and device")
    share = sum(shares)
    evidence = [f"{name} takes {seconds(value)} a step" for name, value in known.items()]
    evidence += _speeds(view, known)
    if share < COPIES:
        return Cleared(rule="copies", evidence=f"copies take {percent(share)} of the step")
    return Found(
        rule="copies", title="offloading is bound by the link to the host", share=share, confidence="medium",
        evidence=(f"copies take {percent(share)} of the step, overlapping or not", *evidence),
        why="parameters and gradients cross the link in every micro-batch",
        experiment=(
            "Keep the parameters on the device and offload the optimizer alone, if they fit; or pin the memory. "
            "Compare the speed above with the link's own (nvidia-smi topo, a plain copy)."
        ),
        proposals=(
            view.propose("--set", "zero_optimization.offload_param.device=none"),
            view.propose("--set", "zero_optimization.offload_optimizer.pin_memory=true"),
        ),
    )  # fmt: skip


def _speeds(view: View, times: dict[Direction, float]) -> list[str]:
    found = []
    for name, spent in times.items():
        moved = [
            value
            for launch in view.measurement.launches
            for rank in launch.ranks
            for value in counted(launch, rank.steps.moved.get(name, ()))
        ]
        if moved and spent > 0:
            found.append(f"{name} moves {rate(sum(moved) / len(moved) / spent)}")
    return found


def memory(view: View) -> Answer:
    """The device's memory is full, so that torch empties its cache within a step."""
    ranks = [rank for launch in view.measurement.launches for rank in launch.ranks]
    retries = [rank.memory.allocation_retries for rank in ranks if rank.memory.allocation_retries is not None]
    full = [
        (peak / total, peak, total)
        for rank in ranks
        if (peak := rank.memory.gpu_reserved_peak_bytes or rank.memory.gpu_peak_bytes)
        and (total := rank.memory.gpu_total_bytes)
    ]
    if not retries and not full:
        return Abstained(rule="memory", missing="memory of the device, and allocation retries")
    worst = max(full, default=(0.0, 0, 0))
    if not any(retries) and worst[0] < FULL:
        return Cleared(rule="memory", evidence=f"at most {percent(worst[0])} of a device's memory is taken, no retries")
    evidence = [f"{sum(retries)} allocation retries"] if any(retries) else []
    if worst[0] >= FULL:
        evidence.append(f"{size(worst[1])} of {size(worst[2])} are taken at the peak ({percent(worst[0])})")
    return Found(
        rule="memory", title="the device's memory is full", confidence="high" if any(retries) else "low",
        evidence=tuple(evidence),
        why="a retry frees torch's whole cache and stops every stream",
        experiment=_less(view), proposals=(*_smaller(view), view.propose("--env", f"{_SEGMENTS}:True")),
    )  # fmt: skip


def _smaller(view: View) -> tuple[Proposal, ...]:
    """Less on the device: half of the micro-batch, and of one sample parameters that wait in host memory."""
    samples = view.setting("train_micro_batch_size_per_gpu")
    if isinstance(samples, int) and samples > 1:
        return (view.propose("--set", f"train_micro_batch_size_per_gpu={samples // 2}"),)
    offload = view.setting("zero_optimization", "offload_param", "device")
    if samples == 1 and view.setting("zero_optimization", "stage") == 3 and offload in (None, "none"):
        return (view.propose("--set", "zero_optimization.offload_param.device=cpu"),)
    return ()


def _less(view: View) -> str:
    if view.setting("train_micro_batch_size_per_gpu") != 1:
        return "Halve the micro-batch: if the time per sample falls, memory was it."
    return (
        "The micro-batch is one sample already: keep the parameters in host memory, if they are not; beyond that, "
        "shorter sequences and recomputed activations take less (envbuild tune)."
    )


def checkpoint(view: View) -> Answer:
    """Saving blocks the training."""
    share, spent = view.share("checkpoint"), view.part("checkpoint")
    if share is None or spent is None:
        return Abstained(rule="checkpoint", missing="time of saving checkpoints")
    if share < CHECKPOINT:
        return Cleared(rule="checkpoint", evidence=f"saving takes {percent(share)} of the time")
    every = next((launch.interval for launch in view.measurement.launches if launch.interval), 1)
    return Found(
        rule="checkpoint", title="checkpoints block the training", share=share, confidence="high",
        evidence=(f"saving takes {percent(share)} of the time, spread over all steps ({seconds(spent)} a step)",),
        why="every rank waits until the slowest has written its shard",
        experiment="Save less often, and look whether the rest of the step changes.",
        proposals=(view.propose("--checkpoint-every", str(max(10, every * 10))),),
    )  # fmt: skip


def compute(view: View) -> Answer:
    """Nothing else: it computes."""
    busy = summary.series_means(view.measurement, "gpu_percent")
    inner = summary.inside(view.measurement, "compute")
    if busy:
        level, text = min(busy) / 100, f"every GPU is busy {percent(min(busy) / 100)} of the time or more"
    elif inner is not None and inner.share is not None:
        level, text = inner.share, f"kernels run {percent(inner.share)} of the step"
    else:
        return Abstained(rule="compute", missing="utilisation of the GPU, or the time of kernels (a trace has both)")
    if level < COMPUTE:
        return Abstained(rule="compute", missing=f"a cause: {text}, and no rule explains the rest")
    return Found(
        rule="compute", title="it computes: nothing else is in the way", share=level, confidence="medium",
        evidence=(text,), why="a faster step needs less work or faster kernels, not another environment",
        experiment="Look which kernels take the time.", proposals=(view.propose("--pass", "trace"),),
    )  # fmt: skip
