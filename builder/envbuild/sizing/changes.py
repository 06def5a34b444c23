"""What would make a model fit that does not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from envbuild.sizing.cards import Card
from envbuild.sizing.ladder import FILLED, Rung, climb, first
from envbuild.sizing.setup import GIB, Machine, Setup
from envbuild.sizing.shape import Shape
from envbuild.sizing.trust import trustworthy

_SHORTEST = 512
_MOST_GPUS, _MOST_NODES = 16, 4096
# What an NVMe of a current server reads a second; only whether there is one decides here.
_SOME_NVME = 5e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One change that would make a rung fit.

    Attributes:
        what: A line for the user, such as ``12 GPUs on each node instead of 8``.
        rung: The first rung that fits then.
    """

    what: str
    rung: Rung


def smallest(shape: Shape, machine: Machine, wanted: Setup, cards: Sequence[Card] = ()) -> tuple[Change, ...]:
    """Each single change that would make it fit where nothing does, the cheapest first.

    Args:
        cards: GPUs that may take the place of the machine's.
    """
    if _first(shape, machine, wanted) is not None:
        return ()
    tries = (_batch, _recompute, _sequence, _memory, _nvme, _gpus, _nodes)
    found = [change for each in tries for change in each(shape, machine, wanted)]
    return (*found, *_cards(shape, machine, wanted, cards))


def _first(shape: Shape, machine: Machine, wanted: Setup) -> Rung | None:
    return first(_rungs(shape, machine, wanted))


def _rungs(shape: Shape, machine: Machine, wanted: Setup) -> tuple[Rung, ...]:
    """The ladder; one of which it is known that it trains wrong does not fit."""
    return tuple(trustworthy(rung, shape, machine) for rung in climb(shape, machine, wanted))


def _fits(what: str, shape: Shape, machine: Machine, wanted: Setup) -> Iterator[Change]:
    rung = _first(shape, machine, wanted)
    if rung is not None:
        yield Change(what=what, rung=rung)


def _batch(shape: Shape, machine: Machine, wanted: Setup) -> Iterator[Change]:
    size = wanted.micro_batch
    while size > 1:
        size //= 2
        found = list(_fits(f"a micro-batch of {size} instead of {wanted.micro_batch}", shape, machine,
                           replace(wanted, micro_batch=size)))  # fmt: skip
        if found:
            yield found[0]
            return


def _recompute(shape: Shape, machine: Machine, wanted: Setup) -> Iterator[Change]:
    if not wanted.recompute:
        yield from _fits("activation checkpointing", shape, machine, replace(wanted, recompute=True))


def _sequence(shape: Shape, machine: Machine, wanted: Setup) -> Iterator[Change]:
    length = wanted.sequence
    while length // 2 >= _SHORTEST:
        length //= 2
        found = list(_fits(f"sequences of {length:,} tokens instead of {wanted.sequence:,}", shape, machine,
                           replace(wanted, sequence=length)))  # fmt: skip
        if found:
            yield found[0]
            return


def _memory(shape: Shape, machine: Machine, wanted: Setup) -> Iterator[Change]:
    if machine.ram is None:
        return
    rungs = [each for each in _rungs(shape, replace(machine, ram=None), wanted) if each.fits]
    if not rungs:
        return
    least = min(max(each.host.total, each.loading.total) for each in rungs)
    ram = -(-int(least / FILLED + 1) // (8 * GIB)) * 8 * GIB
    yield from _fits(f"{ram // GIB:,} GiB of host memory on each node", shape, replace(machine, ram=ram), wanted)


def _nvme(shape: Shape, machine: Machine, wanted: Setup) -> Iterator[Change]:
    if machine.nvme is None:
        yield from _fits("an NVMe drive in each node", shape, replace(machine, nvme=_SOME_NVME), wanted)


def _gpus(shape: Shape, machine: Machine, wanted: Setup) -> Iterator[Change]:
    for count in range(machine.gpus + 1, _MOST_GPUS + 1):
        what = f"{count} GPUs on each node instead of {machine.gpus}"
        found = list(_fits(what, shape, replace(machine, gpus=count), wanted))
        if found:
            yield found[0]
            return


def _nodes(shape: Shape, machine: Machine, wanted: Setup) -> Iterator[Change]:
    low, high = machine.nodes, machine.nodes * 2
    while high <= _MOST_NODES and _first(shape, replace(machine, nodes=high), wanted) is None:
        low, high = high, high * 2
    if high > _MOST_NODES:
        return
    # More nodes never need more on each: the smallest number lies between the last that failed and the first that fits.
    while high - low > 1:
        middle = (low + high) // 2
        if _first(shape, replace(machine, nodes=middle), wanted) is None:
            low = middle
        else:
            high = middle
    yield from _fits(f"{high} nodes instead of {machine.nodes}", shape, replace(machine, nodes=high), wanted)


def _cards(shape: Shape, machine: Machine, wanted: Setup, cards: Sequence[Card]) -> Iterator[Change]:
    larger = sorted((card for card in cards if card.memory > machine.card.memory), key=lambda card: card.memory)
    for card in larger:
        found = list(_fits(f"{card.title} instead of {machine.card.title}", shape, replace(machine, card=card), wanted))
        if found:
            yield found[0]
            return
