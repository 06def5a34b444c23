"""The weights of a decoder, from the few ways in which families differ."""

from __future__ import annotations

from dataclasses import dataclass, field

from envbuild.sizing.shape import Block, Shape, Weight


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """The experts of a mixture, each a feed-forward part of its own.

    Attributes:
        used: Through how many a token passes.
        width: Of one expert; ``shared`` that of the part through which every token passes.
        dense: Layers that have an ordinary feed-forward part of width ``dense_width`` instead.
        bias: Whether experts and router have biases.
        extra: Further elements a layer, such as the gate of the shared part.
    """

    count: int
    used: int
    width: int
    shared: int = 0
    dense: int = 0
    dense_width: int = 0
    bias: bool = False
    extra: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoder:
    """A stack of like layers between an embedding and a head.

    Attributes:
        query: All query heads together; ``key_value`` all key heads together, and again all value heads.
        norms: Norms a layer, each of ``norm`` elements.
        extra: Further small tensors of each layer, such as norms of the queries; by name.
        attention: The tensors of attention, where they are not the plain four.
        positions: Rows of a table of positions that is learned.
        once: Tensors that the model has once; by name.
        embedding: Width of the embedding, where it is not the hidden one.
    """

    hidden: int
    layers: int
    heads: int
    query: int
    key_value: int
    intermediate: int
    vocabulary: int
    context: int | None
    tied: bool
    gated: bool = True
    query_bias: bool = False
    output_bias: bool = False
    ff_bias: bool = False
    head_bias: bool = False
    fused: bool = False
    norms: int = 2
    norm: int = 0
    final_norm: bool = True
    positions: int = 0
    embedding: int = 0
    extra: tuple[tuple[str, int], ...] = ()
    once: tuple[tuple[str, int], ...] = ()
    attention: tuple[Weight, ...] = field(default=())
    experts: Experts | None = None


def shape(decoder: Decoder, name: str, family: str, *, verified: bool = True, notes: tuple[str, ...] = ()) -> Shape:
    """The decoder's weights as a shape."""
    experts = decoder.experts
    return Shape(
        name=name, family=family, hidden=decoder.hidden, layers=decoder.layers, heads=decoder.heads,
        query=decoder.query, key_value=decoder.key_value,
        intermediate=experts.used * experts.width + experts.shared if experts else decoder.intermediate,
        gated=decoder.gated, vocabulary=decoder.vocabulary, positions=decoder.context, tied=decoder.tied,
        blocks=_blocks(decoder), experts=experts.count if experts else 0,
        experts_used=experts.used if experts else 0, verified=verified, notes=notes,
    )  # fmt: skip


def _blocks(decoder: Decoder) -> tuple[Block, ...]:
    width = decoder.embedding or decoder.hidden
    table = Weight(name="embedding", size=decoder.vocabulary * width)
    rows = (Weight(name="positions", size=decoder.positions * decoder.hidden),) if decoder.positions else ()
    once = tuple(Weight(name=name, size=size) for name, size in decoder.once if size)
    norm = (Weight(name="final norm", size=decoder.norm),) if decoder.final_norm and decoder.norm else ()
    head = () if decoder.tied else (Weight(name="head", size=decoder.vocabulary * width),)
    bias = (Weight(name="head bias", size=decoder.vocabulary),) if decoder.head_bias else ()
    return (
        Block(name="embedding", count=1, weights=(table, *rows)),
        *_layers(decoder),
        *(Block(name=weight.name, count=1, weights=(weight,)) for weight in (*once, *norm)),
        *((Block(name="head", count=1, weights=(*head, *bias)),) if head or bias else ()),
    )


def _layers(decoder: Decoder) -> list[Block]:
    common = (*(decoder.attention or plain_attention(decoder)), *_small(decoder))
    if decoder.experts is None:
        return [Block(name="layer", count=decoder.layers, weights=(*common, *_dense(decoder, decoder.intermediate)))]
    dense = min(decoder.experts.dense, decoder.layers)
    blocks = []
    if dense:
        weights = (*common, *_dense(decoder, decoder.experts.dense_width))
        blocks.append(Block(name="dense layer", count=dense, weights=weights))
    if decoder.layers > dense:
        weights = (*common, *_mixture(decoder, decoder.experts))
        blocks.append(Block(name="expert layer", count=decoder.layers - dense, weights=weights))
    return blocks


def plain_attention(decoder: Decoder) -> tuple[Weight, ...]:
    """Query, key, value and output, one tensor each, or the first three in one."""
    hidden, query, key_value = decoder.hidden, decoder.query, decoder.key_value
    widths = {"query": query, "key": key_value, "value": key_value}
    if decoder.fused:
        widths = {"query, key, value": query + 2 * key_value}
    return (
        *(weight for name, width in widths.items() for weight in linear(name, hidden, width, decoder.query_bias)),
        *linear("attention output", query, hidden, decoder.output_bias),
    )


def linear(name: str, inner: int, outer: int, bias: bool, copies: int = 1, used: int = 1) -> tuple[Weight, ...]:
    """A projection, and its bias where it has one."""
    weight = Weight(name=name, size=inner * outer, copies=copies, used=used)
    return (weight, Weight(name=f"{name} bias", size=outer, copies=copies, used=used)) if bias else (weight,)


def _small(decoder: Decoder) -> tuple[Weight, ...]:
    norms = (Weight(name="norm", size=decoder.norm, copies=decoder.norms, used=decoder.norms),) if decoder.norm else ()
    return (*norms, *(Weight(name=name, size=size) for name, size in decoder.extra if size))


def _dense(decoder: Decoder, width: int) -> tuple[Weight, ...]:
    up = 2 * width if decoder.gated and decoder.fused else width
    gate = linear("gate", decoder.hidden, width, decoder.ff_bias) if decoder.gated and not decoder.fused else ()
    return (
        *gate,
        *linear("up", decoder.hidden, up, decoder.ff_bias),
        *linear("down", width, decoder.hidden, decoder.ff_bias),
    )


def _mixture(decoder: Decoder, experts: Experts) -> tuple[Weight, ...]:
    hidden, count, used = decoder.hidden, experts.count, experts.used
    up = 2 * experts.width if decoder.gated else experts.width
    shared = _dense(decoder, experts.shared) if experts.shared else ()
    return (
        *linear("router", hidden, count, experts.bias),
        *linear("experts' up", hidden, up, experts.bias, count, used),
        *linear("experts' down", experts.width, hidden, experts.bias, count, used),
        *shared,
        *((Weight(name="shared gate", size=experts.extra),) if experts.extra else ()),
    )
