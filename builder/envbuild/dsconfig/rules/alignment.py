"""Gradients that are swapped to NVMe where they do not begin at the multiples that DeepSpeed takes for granted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from envbuild.dsconfig.context import Context
from envbuild.dsconfig.problem import Problem
from envbuild.dsconfig.rules.asking import ERROR, WARNING
from envbuild.dsconfig.rules.rule import Rule
from envbuild.dsconfig.view import View
from envbuild.dsschema import release

Z = "zero_optimization"
# Gradients that do not begin at multiples of 512 bytes; sizing.trust refuses to propose them.
_TRAINED_WRONG = (0, 19, 8)
_SEEN = "Seen in runs on the CPU accelerator with 0.19.8; other releases were not looked at."


def misaligned(view: View, context: Context) -> Iterator[Problem]:
    """Gradients that share a sub-group on NVMe are aligned."""
    if view.device("optimizer") != "nvme" or view.stage != 3:
        return
    device, seen = view.get(f"{Z}.offload_optimizer.device"), release(context.deepspeed) == _TRAINED_WRONG
    shape = getattr(context.model, "shape", None)
    known = context.world is not None and hasattr(shape, "weights") and not getattr(shape, "guessed", False)
    if known:
        yield from _misaligned(view, shape, context.world or 1, seen)
    elif seen:
        yield device.problem(
            WARNING,
            "with the optimizer on NVMe, DeepSpeed 0.19.8 trained wrong, without a word, where gradients that share a "
            "sub-group did not begin at multiples of 512 bytes",
            fix=f"Compare a short run with one on cpu; a {Z}.sub_group_size so small that each tensor has its own "
            "sub-group avoids it.",
            why=_SEEN,
        )  # fmt: skip


def _misaligned(view: View, shape: Any, world: int, seen: bool) -> Iterator[Problem]:
    """The tensors are known: either all are aligned, or some are not."""
    from envbuild.sizing.trust import misaligned as unaligned
    from envbuild.sizing.trust import named

    tensors = unaligned(shape, world)
    group = view.get(f"{Z}.sub_group_size").number
    alone = group is not None and group <= min(-(-weight.size // world) for weight, _ in shape.weights())
    if tensors and not alone:
        yield view.get(f"{Z}.offload_optimizer.device").problem(
            ERROR if seen else WARNING,
            f"with the optimizer on NVMe and {world} processes the shares of {named(tensors)} are no multiples of 512 "
            "bytes: DeepSpeed 0.19.8 then trains wrong, without a word",
            fix=f"Offload to cpu, take another number of GPUs, or a {Z}.sub_group_size so small that each tensor has "
            "its own sub-group.",
            why=_SEEN,
        )  # fmt: skip


RULES = (
    Rule(
        id="nvme.misaligned", title="gradients on NVMe are aligned", judge=misaligned,
        source="seen in runs with 0.19.8",
    ),
)  # fmt: skip
