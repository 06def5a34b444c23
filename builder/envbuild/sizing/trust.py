"""Rungs that would fit and train wrong: they are not proposed."""

from __future__ import annotations

from dataclasses import replace

from envbuild.sizing.ladder import Rung
from envbuild.sizing.setup import Machine, Place
from envbuild.sizing.shape import Shape

# DeepSpeed 0.19.8 swaps gradients in pieces of 512 bytes: what is left over of one that shares a sub-group is lost.
ALIGNED = 512


def misaligned(shape: Shape, world: int) -> tuple[str, ...]:
    """The tensors of which a rank's share, in fp32, is no multiple of 512 bytes."""
    return tuple(dict.fromkeys(each.name for each, _ in shape.weights() if -(-each.size // world) * 4 % ALIGNED))


def named(tensors: tuple[str, ...]) -> str:
    """Some of them, in words."""
    return ", ".join(tensors[:3]) + (f" and {len(tensors) - 3} more" if len(tensors) > 3 else "")


def trustworthy(rung: Rung, shape: Shape, machine: Machine) -> Rung:
    """The rung; one that would train wrong does not fit."""
    tensors = misaligned(shape, machine.world) if rung.setup.optimizer_place is Place.NVME else ()
    if not tensors:
        return rung
    some = named(tensors)
    why = (
        f"optimizer on NVMe: with {machine.world} ranks the shares of {some} are no multiples of {ALIGNED} bytes, and "
        "DeepSpeed 0.19.8 then trains wrong, silently"
    )
    return replace(rung, fits=False, why=(*(() if rung.fits else rung.why), why))
