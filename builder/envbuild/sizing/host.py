"""What one node's memory, its NVMe, and the disk for checkpoints have to hold."""

from __future__ import annotations

from dataclasses import replace

from envbuild.sizing.part import Basis, Need, Part, number, parts, product
from envbuild.sizing.setup import Dtype, Machine, Place, Setup
from envbuild.sizing.shape import Shape
from envbuild.sizing.states import GRADIENT, MASTER, MOMENTS, shard, states

ROUNDING = "rounding of pinned blocks"
# transformers loads in fp32 unless it is told a type (its default was that for years).
LOADED = 4


def per_host(shape: Shape, setup: Setup, machine: Machine) -> Need:
    """What the ranks of one node keep in host memory while training; the processes themselves come on top.

    torch's allocator of page-locked memory rounds each block up to a power of two: a part of its own.
    """
    kept = states(shape, setup, machine)
    ranks = tuple(_ranks(part, machine) for part in kept.host)
    return Need(name="host", parts=(*ranks, *_rounding(kept.pinned, machine)))


def _ranks(part: Part, machine: Machine) -> Part:
    return replace(
        part, value=part.value * machine.gpus, formula=f"n x {part.formula}",
        numbers=f"{number(machine.gpus)} x {part.numbers}",
    )  # fmt: skip


def _rounding(pinned: tuple[float, ...], machine: Machine) -> tuple[Part, ...]:
    sizes = [round(each) for each in pinned if each >= 1]
    lost = sum(rounded(size) - size for size in sizes)
    if not lost:
        return ()
    told = ", ".join(f"{number(size)} to {number(rounded(size))}" for size in sizes[:4])
    more = f", and {len(sizes) - 4} more" if len(sizes) > 4 else ""
    return (
        Part(
            name=ROUNDING, value=lost * machine.gpus, formula="n x what each block lacks to a power of two",
            numbers=f"{number(machine.gpus)} x ({told}{more})",
        ),
    )  # fmt: skip


def rounded(size: int) -> int:
    """The power of two that a page-locked block of this size takes."""
    return 1 << (size - 1).bit_length() if size > 1 else size


def loading(shape: Shape, setup: Setup, machine: Machine, zero_init: bool) -> Need:
    """The peak on one node while the model is loaded and the engine starts.

    Without ``zero.Init`` every rank holds the whole model before it is divided; then the states are made while the
    model goes. With it (ZeRO-3 only) a rank holds one tensor whole at a time.
    """
    kept = per_host(shape, setup, machine)
    if zero_init and setup.stage == 3:
        tensor = product(
            "largest tensor on each rank", Basis.ASSUMED, _4=LOADED, n=machine.gpus,
            largest_tensor=shape.largest_weight.size,
        )  # fmt: skip
        return Need(name="loading with zero.Init", parts=(*kept.parts, *parts(tensor)))
    whole = product("the model on every rank", Basis.ASSUMED, _4=LOADED, n=machine.gpus, P=shape.parameters)
    alone = Need(name="loading without zero.Init", parts=parts(whole))
    return alone if alone.total >= kept.total else replace(alone, parts=kept.parts)


def checkpoint(shape: Shape, setup: Setup) -> Need:
    """What one checkpoint takes on disk, all ranks together."""
    count, mixed = shape.parameters, setup.dtype is not Dtype.FP32
    return Need(
        name="checkpoint",
        parts=parts(
            product("optimizer moments", Basis.MEASURED, _8=MOMENTS, P=count),
            product("master parameters", Basis.MEASURED, _4=MASTER, P=count) if setup.stage or mixed else None,
            # ZeRO-3 keeps no other copy; the others write the model as it computes beside it.
            product("parameters", Basis.MEASURED, p=setup.dtype.bytes, P=count) if setup.stage < 3 else None,
        ),
    )


def nvme(shape: Shape, setup: Setup, machine: Machine) -> Need:
    """What one node's NVMe has to hold while training."""
    own = shard(shape, machine)
    swapped = setup.optimizer_place is Place.NVME
    rest = max(0, own - setup.in_cpu) if setup.parameter_place is Place.NVME else 0
    return Need(
        name="NVMe",
        parts=parts(
            product("optimizer states", n=machine.gpus, _12=MASTER + MOMENTS, S=own) if swapped else None,
            product("fp32 gradients", n=machine.gpus, _4=GRADIENT, S=own) if swapped else None,
            product("parameters", n=machine.gpus, p=setup.dtype.bytes, beyond_max_in_cpu=rest),
        ),
    )
