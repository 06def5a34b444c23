"""Bus bandwidth of a collective, as NCCL's own tests define it.

Sizes are what one rank puts in: the shard of an all-gather, the whole of a reduce-scatter.
Source: https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md
"""

from __future__ import annotations

import math


def bus_bandwidth(op: str, size: float, seconds: float, ranks: int) -> float | None:
    """Bytes per second over the slowest link, whatever the number of ranks; None where it makes no sense."""
    if not (seconds > 0 and size > 0 and ranks > 1):
        return None
    speed = size / seconds * _factor(op, ranks)
    return speed if math.isfinite(speed) else None


def _factor(op: str, ranks: int) -> float:
    name = op.lower().replace("_", "").replace("-", "")
    if "allgather" in name:
        return ranks - 1
    if "reducescatter" in name or "alltoall" in name:
        return (ranks - 1) / ranks
    if "allreduce" in name:
        return 2 * (ranks - 1) / ranks
    return 1.0
