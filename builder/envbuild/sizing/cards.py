"""GPUs with their memory and links, by the names that people use."""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from envbuild.errors import InputError
from envbuild.facts import Facts
from envbuild.facts.gpus import plain, plain_card

_MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """One GPU product.

    Attributes:
        name: The facts' name of it, such as a100-80gb.
        gpu: The name of its GPU in ``facts.gpus``, such as a100.
        memory: Bytes.
        sm: Compute capability, such as 8.0.
        bus: Its link to the host, in words; ``link`` its bytes a second in one direction, as the standard counts.
        compute: Dense 16-bit operations a second, as the datasheet counts.
        mark: How far these figures were checked; ``source`` where they are from.
    """

    name: str
    title: str
    gpu: str
    memory: int
    sm: str
    bus: str
    link: float
    compute: float
    mark: str
    source: str


def names(facts: Facts) -> tuple[str, ...]:
    """The cards that are known, for completion."""
    return tuple(facts.cards)


def find(facts: Facts, text: str, option: str = "--gpu") -> Card:
    """The card that is meant: ``a100-80gb``, ``NVIDIA H100 80GB HBM3``, ``4090``.

    Raises:
        InputError: It is unknown, or sold with several sizes of memory.
    """
    known = {plain_card(said): name for name, card in facts.cards.items() for said in (name, card.title, *card.aliases)}
    word = plain_card(text)
    if word in known:
        return _card(facts, known[word])
    sizes = [name for name, card in facts.cards.items() if word in (plain(card.gpu), plain(facts.gpus[card.gpu].name))]
    if len(sizes) == 1:
        return _card(facts, sizes[0])
    shown = repr(text if len(text) <= 60 else text[:57] + "...")
    if sizes:
        raise InputError(f"{option}: {shown} is sold with several sizes of memory", hint=f"Say {' or '.join(sizes)}.")
    close = difflib.get_close_matches(word, list(known), n=1)
    near = f"; did you mean {known[close[0]]!r}?" if close else ""
    raise InputError(
        f"{option}: nothing is known of the GPU {shown}{near}", hint=f"Known GPUs: {', '.join(facts.cards)}."
    )


def _card(facts: Facts, name: str) -> Card:
    card = facts.cards[name]
    bus = facts.buses[card.bus]
    return Card(
        name=name, title=card.title, gpu=card.gpu, memory=card.memory * _MIB, sm=facts.gpus[card.gpu].sm,
        bus=bus.title, link=bus.gigabytes * 1e9, compute=card.tflops * 1e12, mark=str(card.mark.value),
        source=card.source,
    )  # fmt: skip
