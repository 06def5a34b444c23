"""The ladder: from ZeRO-0 to NVMe, the first rung that fits."""

from __future__ import annotations

from dataclasses import dataclass, replace

from envbuild.sizing import gpu, host
from envbuild.sizing.part import Need
from envbuild.sizing.setup import GIB, Machine, Place, Setup
from envbuild.sizing.shape import Shape

# Of a GPU's memory, and of a node's: the rest is for what the formulae do not see (fragments, processes, data).
FILLED = 0.9
# The largest sub-group with NVMe: with four swap buffers 1.6 GB of page-locked memory a rank; at the default it is ten
# times that.
_SWAPPED = 100_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """One way to train.

    Attributes:
        id: ``zero0`` ... ``zero3``, ``offload-optimizer``, ``offload-parameters``, ``nvme``; ``name`` in words.
        nvme: None on rungs that use none.
        fits: Whether GPU, host and loading stay below FILLED.
        why: A line for each limit that is passed; where none is, a line for the tightest.
    """

    id: str
    name: str
    setup: Setup
    gpu: Need
    host: Need
    loading: Need
    nvme: Need | None
    fits: bool
    why: tuple[str, ...]


_RUNGS: tuple[tuple[str, str, int, Place, Place], ...] = (
    ("zero0", "ZeRO-0", 0, Place.GPU, Place.GPU),
    ("zero1", "ZeRO-1", 1, Place.GPU, Place.GPU),
    ("zero2", "ZeRO-2", 2, Place.GPU, Place.GPU),
    ("zero3", "ZeRO-3", 3, Place.GPU, Place.GPU),
    ("offload-optimizer", "ZeRO-3, optimizer in host memory", 3, Place.CPU, Place.GPU),
    ("offload-parameters", "ZeRO-3, optimizer and parameters in host memory", 3, Place.CPU, Place.CPU),
    ("nvme", "ZeRO-3, optimizer and parameters on NVMe", 3, Place.NVME, Place.NVME),
)


def tuned(shape: Shape, setup: Setup) -> Setup:
    """The setup with buckets, prefetch, persistence and live parameters that follow from the shape.

    The first three are the rules of Hugging Face's Trainer for ``auto``; three layers may be live at a time.
    """
    square = shape.hidden**2
    return replace(
        setup, reduce_bucket=square, prefetch_bucket=max(1, square * 9 // 10), persistence=10 * shape.hidden,
        max_live=max(1, 3 * shape.layer),
    )  # fmt: skip


def climb(shape: Shape, machine: Machine, wanted: Setup) -> tuple[Rung, ...]:
    """Every rung, from ZeRO-0 up, with ``wanted``'s types, batch, sequence and buckets."""
    setups = {
        id: replace(wanted, stage=stage, optimizer=optimizer, parameters=parameters)
        for id, _, stage, optimizer, parameters in _RUNGS
    }
    setups["nvme"] = swapping(shape, machine, setups["nvme"])
    return tuple(rung(shape, machine, setups[id], id, name) for id, name, *_ in _RUNGS)


def swapping(shape: Shape, machine: Machine, setup: Setup) -> Setup:
    """The setup with buffers that suit NVMe: each swap buffer is as large as a sub-group, and a parameter buffer has
    to hold the largest share of a tensor."""
    largest = -(-shape.largest_weight.size // machine.world)
    return replace(setup, sub_group=min(setup.sub_group, _SWAPPED), buffer_size=max(setup.buffer_size, largest))


def first(rungs: tuple[Rung, ...]) -> Rung | None:
    """The first rung that fits."""
    return next((rung for rung in rungs if rung.fits), None)


def rung(shape: Shape, machine: Machine, setup: Setup, id: str, name: str) -> Rung:
    """One setup as a rung."""
    swapped = Place.NVME in (setup.optimizer_place, setup.parameter_place)
    gpus = gpu.per_gpu(shape, setup, machine)
    kept = host.per_host(shape, setup, machine)
    loading = host.loading(shape, setup, machine, setup.zero_init)
    passed, tight = _limits(machine, gpus, kept, loading)
    if swapped and machine.nvme is None:
        passed = (*passed, "NVMe: this machine has none")
    return Rung(
        id=id, name=name, setup=setup, gpu=gpus, host=kept, loading=loading,
        nvme=host.nvme(shape, setup, machine) if swapped else None, fits=not passed, why=passed or tight,
    )  # fmt: skip


def _limits(machine: Machine, gpus: Need, kept: Need, loading: Need) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The limits that are passed, and the tightest one that is not, in words."""
    needs: list[tuple[Need, str, int]] = [(gpus, machine.card.title, machine.card.memory)]
    if machine.ram is not None:
        needs += [(kept, "host memory", machine.ram), (loading, "host memory", machine.ram)]
    shares = [(need.total / has if has else float("inf"), need, what, has) for need, what, has in needs]
    told = [(share, _told(share, need, what, has)) for share, need, what, has in shares]
    passed = tuple(dict.fromkeys(line for share, line in told if share > FILLED))
    return passed, (max(told)[1],)


def _told(share: float, need: Need, what: str, has: int) -> str:
    compared = "more than" if share > FILLED else "within"
    return f"{need.name}: {gib(need.total)}, {compared} {FILLED:.0%} of {gib(has)} ({what})"


def gib(value: float) -> str:
    """Bytes as people read them."""
    if value < 0.1 * GIB:
        return f"{value / (1 << 20):,.1f} MiB"
    return f"{value / GIB:,.1f} GiB"
