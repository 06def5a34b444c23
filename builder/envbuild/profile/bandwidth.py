"""The bytes of a collective, and its bus bandwidth: one convention for the whole document, that of NCCL's own tests.

A message is the larger one of what a rank puts in and what it gets: of an all-gather all that was gathered, of a
reduce-scatter and of an all-to-all the whole of what a rank puts in, of an all-reduce or a broadcast the tensor itself.
``bytes`` and ``message_bytes`` mean this wherever they come from; a reader whose source counts a rank's own share
(DeepSpeed's comms_logger does, of an all-gather) makes it a message with ``message_size``.
Source: https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md ("the size in bytes of the total array")
"""

from __future__ import annotations

import math


def gathers(op: str) -> bool:
    """Whether each rank gets what all of them put in."""
    return "allgather" in _flat(op)


def message_size(op: str, given: int, ranks: int | None) -> int | None:
    """The message of which one rank puts in ``given`` bytes; None where the number of ranks is wanted and not known."""
    if not gathers(op):
        return given
    return given * ranks if ranks else None


def bus_bandwidth(op: str, size: float, seconds: float, ranks: int) -> float | None:
    """Bytes per second over the slowest link, whatever the number of ranks; None where it makes no sense.

    Args:
        size: Of the message, or of all of them where ``seconds`` are of all.
    """
    if not (seconds > 0 and size > 0 and ranks > 1):
        return None
    speed = size / seconds * _factor(op, ranks)
    return speed if math.isfinite(speed) else None


def _factor(op: str, ranks: int) -> float:
    name = _flat(op)
    if any(word in name for word in ("allgather", "reducescatter", "alltoall")):
        return (ranks - 1) / ranks
    return 2 * (ranks - 1) / ranks if "allreduce" in name else 1.0


def _flat(op: str) -> str:
    return op.lower().replace("_", "").replace("-", "")
