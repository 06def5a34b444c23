"""How much work one step should do: a larger micro-batch, and more micro steps before the optimizer runs."""

from __future__ import annotations

from dataclasses import replace

from envbuild.sizing import copies, gpu
from envbuild.sizing.ladder import FILLED
from envbuild.sizing.setup import Machine, Setup
from envbuild.sizing.shape import Shape

# Of the time that a step computes: what the optimizer on the CPU and the copies to it may take.
SHARE = 0.1
_MOST_BATCH, _MOST_STEPS = 1024, 256


def largest(shape: Shape, setup: Setup, machine: Machine, most: int = _MOST_BATCH) -> int:
    """The largest power of two (or ``setup``'s own micro-batch) that fits the GPU; 0 where not even 1 does."""
    found, size = 0, 1
    while size <= most:
        if gpu.per_gpu(shape, replace(setup, micro_batch=size), machine).total > FILLED * machine.card.memory:
            break
        found, size = size, size * 2
    return found


def steps(shape: Shape, setup: Setup, machine: Machine, share: float = SHARE) -> int:
    """The gradient accumulation with which optimizer and copies of gradients take at most ``share`` of the compute.

    What each micro step copies itself does not become less with more of them: then the answer is the most, 256.
    """
    count = 1
    while count < _MOST_STEPS:
        times = copies.times(shape, replace(setup, accumulation=count), machine)
        once = times.part("optimizer on the CPU") + times.part(copies.TO_HOST)
        if once <= share * times.part("compute"):
            return count
        count *= 2
    return count
