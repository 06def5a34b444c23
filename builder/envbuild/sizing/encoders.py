"""Encoders, and encoders with a decoder, by model_type."""

from __future__ import annotations

from collections.abc import Callable

from envbuild.sizing.config import Fields
from envbuild.sizing.decoder import linear
from envbuild.sizing.shape import Block, Shape, Weight


def _bert(fields: Fields, name: str) -> Shape:
    """BERT and RoBERTa with the head that predicts masked tokens."""
    hidden, layers, heads = (
        fields.size("hidden_size"),
        fields.size("num_hidden_layers"),
        fields.size("num_attention_heads"),
    )
    width, vocabulary = fields.size("intermediate_size"), fields.size("vocab_size")
    positions = fields.size("max_position_embeddings", default=512)
    fields.divided(hidden, heads, "hidden size by heads")
    norm = Weight(name="norm", size=2 * hidden)
    tables = (
        Weight(name="embedding", size=vocabulary * hidden),
        Weight(name="positions", size=positions * hidden),
        Weight(name="token types", size=fields.size("type_vocab_size", default=2) * hidden),
        norm,
    )
    layer = (
        *(weight for each in ("query", "key", "value", "attention output")
          for weight in linear(each, hidden, hidden, True)),
        *linear("up", hidden, width, True),
        *linear("down", width, hidden, True),
        Weight(name="norm", size=2 * hidden, copies=2, used=2),
    )  # fmt: skip
    head = (*linear("head", hidden, hidden, True), norm, Weight(name="head bias", size=vocabulary))
    blocks = (
        Block(name="embedding", count=1, weights=tables),
        Block(name="layer", count=layers, weights=layer),
        Block(name="head", count=1, weights=head),
    )
    return Shape(
        name=name, family="bert", hidden=hidden, layers=layers, heads=heads, query=hidden, key_value=hidden,
        intermediate=width, gated=False, vocabulary=vocabulary, positions=positions, tied=True, blocks=blocks,
        notes=("with the head that predicts masked tokens",),
    )  # fmt: skip


def _t5(fields: Fields, name: str) -> Shape:
    """T5: a decoder layer has a second attention, over what the encoder gave."""
    hidden, heads = fields.size("d_model"), fields.size("num_heads")
    inner = heads * fields.size("d_kv")
    width, vocabulary = fields.size("d_ff"), fields.size("vocab_size")
    encoder = fields.size("num_layers")
    decoder = fields.size("num_decoder_layers", default=encoder)
    gated = fields.word("feed_forward_proj", "relu").startswith("gated")
    tied = fields.flag("tie_word_embeddings", default=True)
    bias = Weight(name="relative positions", size=fields.size("relative_attention_num_buckets", default=32) * heads)
    attention = tuple(
        weight for each in ("query", "key", "value", "output") for weight in linear(each, hidden, inner, False)
    )
    forward = tuple(
        weight for each in (("gate", "up", "down") if gated else ("up", "down"))
        for weight in linear(each, hidden, width, False)
    )  # fmt: skip
    norm = Weight(name="norm", size=hidden)
    stacks = (
        Block(name="encoder layer", count=encoder, weights=(*attention, *forward, norm, norm)),
        Block(name="decoder layer", count=decoder, weights=(*attention, *attention, *forward, norm, norm, norm)),
        Block(name="stack", count=2, weights=(bias, norm)),
    )
    head = () if tied else (Block(name="head", count=1, weights=linear("head", hidden, vocabulary, False)),)
    return Shape(
        name=name, family="t5", hidden=hidden, layers=encoder + decoder, heads=heads, query=inner, key_value=inner,
        intermediate=width, gated=gated, vocabulary=vocabulary, positions=None, tied=tied,
        blocks=(Block(name="embedding", count=1, weights=linear("embedding", vocabulary, hidden, False)),
                *stacks, *head),
        notes=("encoder and decoder are counted with the same sequence length",),
    )  # fmt: skip


ENCODERS: dict[str, Callable[[Fields, str], Shape]] = {"bert": _bert, "roberta": _bert, "t5": _t5}
