"""Decoders by model_type, as Hugging Face's transformers builds them (read in the sources of 5.24.0).

One function a kind; ``scripts/count_parameters.py`` compares each with the model itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from envbuild.sizing.config import Fields
from envbuild.sizing.decoder import Decoder, Experts
from envbuild.sizing.latent import deepseek


def base(fields: Fields, *, tied: bool = False, kv: int | None = None, head: int | None = None) -> Decoder:
    """What most configurations say, under the names that most use.

    Args:
        tied, kv, head: The family's defaults: tie_word_embeddings, num_key_value_heads, head_dim.
    """
    hidden = fields.size("hidden_size", "n_embd", "d_model", "n_embed")
    heads = fields.size("num_attention_heads", "n_head", "n_heads")
    groups = fields.size("num_key_value_heads", default=kv or heads)
    width = fields.size("head_dim", default=head or 0) or fields.divided(hidden, heads, "hidden size by heads")
    fields.divided(heads, groups, "attention heads by key and value heads")
    return Decoder(
        hidden=hidden, layers=fields.size("num_hidden_layers", "n_layer", "n_layers"), heads=heads,
        query=heads * width, key_value=groups * width,
        intermediate=fields.size("intermediate_size", "ffn_hidden_size", "n_inner", "ffn_dim", default=4 * hidden),
        vocabulary=fields.size("vocab_size"),
        context=fields.size("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", default=0) or None,
        tied=fields.flag("tie_word_embeddings", default=tied), norm=hidden,
    )  # fmt: skip


def _llama(fields: Fields) -> Decoder:
    if not fields.has("intermediate_size"):
        fields.size("intermediate_size")
    biased = fields.flag("attention_bias", default=False)
    ff_bias = fields.flag("mlp_bias", default=False)
    return replace(base(fields), query_bias=biased, output_bias=biased, ff_bias=ff_bias)


def _smollm3(fields: Fields) -> Decoder:
    return replace(base(fields, tied=True, kv=4), query_bias=fields.flag("attention_bias", default=False))


def _mistral(fields: Fields) -> Decoder:
    return base(fields, kv=8)


def _mixtral(fields: Fields) -> Decoder:
    decoder = base(fields, kv=8)
    count, used = fields.size("num_local_experts", default=8), fields.size("num_experts_per_tok", default=2)
    return replace(decoder, experts=Experts(count=count, used=used, width=decoder.intermediate))


def _qwen2(fields: Fields) -> Decoder:
    return replace(base(fields), query_bias=True)


def _sparse(fields: Fields, layers: int) -> int:
    """How many layers have no experts, by Qwen's two fields."""
    step = fields.size("decoder_sparse_step", default=1)
    listed = fields.numbers("mlp_only_layers")
    return sum(number in listed or (number + 1) % step != 0 for number in range(min(layers, 10_000)))


def _qwen2_moe(fields: Fields) -> Decoder:
    decoder = base(fields, kv=16)
    experts = Experts(
        count=fields.size("num_experts", default=60), used=fields.size("num_experts_per_tok", default=4),
        width=fields.size("moe_intermediate_size"), shared=fields.size("shared_expert_intermediate_size"),
        dense=_sparse(fields, decoder.layers), dense_width=decoder.intermediate, extra=decoder.hidden,
    )  # fmt: skip
    return replace(decoder, query_bias=fields.flag("qkv_bias", default=True), experts=experts)


def _qwen3(fields: Fields) -> Decoder:
    decoder = base(fields, head=128)
    width = decoder.query // decoder.heads
    biased = fields.flag("attention_bias", default=False)
    extra = (("query norm", width), ("key norm", width))
    return replace(decoder, query_bias=biased, output_bias=biased, extra=extra)


def _qwen3_moe(fields: Fields) -> Decoder:
    decoder = base(fields, kv=4)
    width = decoder.query // decoder.heads
    experts = Experts(
        count=fields.size("num_experts", "num_local_experts", default=128),
        used=fields.size("num_experts_per_tok", default=8), width=fields.size("moe_intermediate_size"),
        dense=_sparse(fields, decoder.layers), dense_width=decoder.intermediate,
    )  # fmt: skip
    biased = fields.flag("attention_bias", default=False)
    extra = (("query norm", width), ("key norm", width))
    return replace(decoder, query_bias=biased, output_bias=biased, extra=extra, experts=experts)


def _gemma(fields: Fields) -> Decoder:
    biased = fields.flag("attention_bias", default=False)
    return replace(base(fields, tied=True, kv=16, head=256), query_bias=biased, output_bias=biased)


def _gemma2(fields: Fields) -> Decoder:
    biased = fields.flag("attention_bias", default=False)
    return replace(base(fields, tied=True, kv=4, head=256), query_bias=biased, output_bias=biased, norms=4)


def _gemma3(fields: Fields) -> Decoder:
    decoder = _gemma2(fields)
    width = decoder.query // decoder.heads
    return replace(decoder, extra=(("query norm", width), ("key norm", width)))


def _with_bias(decoder: Decoder, *, gated: bool = False) -> Decoder:
    """LayerNorms with a bias, and biases in every projection."""
    return replace(decoder, gated=gated, query_bias=True, output_bias=True, ff_bias=True, norm=2 * decoder.hidden)


def _phi(fields: Fields) -> Decoder:
    decoder = _with_bias(base(fields))
    width = decoder.query // decoder.heads if fields.flag("qk_layernorm", default=False) else 0
    return replace(decoder, norms=1, head_bias=True, extra=(("query norm", 2 * width), ("key norm", 2 * width)))


def _phi3(fields: Fields) -> Decoder:
    return replace(base(fields), fused=True)


def _falcon(fields: Fields) -> Decoder:
    decoder = replace(base(fields, tied=True), gated=False, fused=True)
    new = fields.flag("new_decoder_architecture", default=False)
    parallel = fields.flag("parallel_attn", default=True)
    biased = fields.flag("bias", default=False)
    width = decoder.query // decoder.heads
    groups = decoder.heads
    if new:
        groups = fields.size("num_kv_heads", default=decoder.heads)
    elif fields.flag("multi_query", default=True):
        groups = 1
    norms = fields.size("num_ln_in_parallel_attn", default=2 if new else 1)
    if not new:
        norms = 1 if parallel else 2
    return replace(
        decoder, key_value=groups * width, norms=norms, norm=2 * decoder.hidden,
        query_bias=biased, output_bias=biased, ff_bias=biased,
    )  # fmt: skip


def _gpt2(fields: Fields) -> Decoder:
    decoder = base(fields, tied=True)
    positions = fields.size("n_positions", "max_position_embeddings", default=1024)
    return replace(_with_bias(decoder), fused=True, positions=positions)


def _bigcode(fields: Fields) -> Decoder:
    decoder = _gpt2(fields)
    if not fields.flag("multi_query", default=True):
        return decoder
    return replace(decoder, key_value=decoder.query // decoder.heads)


def _gpt_neox(fields: Fields) -> Decoder:
    biased = fields.flag("attention_bias", default=True)
    return replace(_with_bias(base(fields)), fused=True, query_bias=biased, output_bias=biased)


def _gptj(fields: Fields) -> Decoder:
    decoder = _with_bias(base(fields))
    return replace(decoder, query_bias=False, output_bias=False, norms=1, head_bias=True)


def _opt(fields: Fields) -> Decoder:
    decoder = base(fields, tied=True)
    width = fields.size("word_embed_proj_dim", default=decoder.hidden)
    biased = fields.flag("enable_bias", default=True)
    before = fields.flag("do_layer_norm_before", default=True)
    last = before and not fields.flag("_remove_final_layer_norm", default=False)
    affine = fields.flag("layer_norm_elementwise_affine", default=True)
    projection = decoder.hidden * width if width != decoder.hidden else 0
    return replace(
        decoder, gated=False, query_bias=biased, output_bias=biased, ff_bias=biased, final_norm=last,
        norm=2 * decoder.hidden if affine else 0, embedding=width,
        # The table starts with two rows that no position uses.
        positions=fields.size("max_position_embeddings", default=2048) + 2,
        once=(("projection in", projection), ("projection out", projection)),
    )  # fmt: skip


def _bloom(fields: Fields) -> Decoder:
    decoder = _with_bias(base(fields, tied=True))
    return replace(decoder, fused=True, intermediate=4 * decoder.hidden, once=(("embedding norm", 2 * decoder.hidden),))


def _mpt(fields: Fields) -> Decoder:
    decoder = base(fields, tied=True)
    return replace(decoder, gated=False, fused=True, intermediate=4 * decoder.hidden)


def _gpt_oss(fields: Fields) -> Decoder:
    decoder = base(fields, kv=8, head=64)
    biased = fields.flag("attention_bias", default=True)
    experts = Experts(
        count=fields.size("num_local_experts", "num_experts", default=128),
        used=fields.size("num_experts_per_tok", "experts_per_token", default=4), width=decoder.intermediate, bias=True,
    )  # fmt: skip
    extra = (("sinks", decoder.heads),)
    return replace(decoder, query_bias=biased, output_bias=biased, extra=extra, experts=experts)


def _starcoder2(fields: Fields) -> Decoder:
    decoder = base(fields, tied=True, kv=2)
    biased = fields.flag("use_bias", default=True)
    return replace(decoder, gated=False, query_bias=biased, output_bias=biased, ff_bias=biased, norm=2 * decoder.hidden)


def _stablelm(fields: Fields) -> Decoder:
    decoder = base(fields)
    each = fields.flag("qk_layernorm", default=False)
    extra = (("query norm", decoder.query), ("key norm", decoder.key_value)) if each else ()
    norms = 1 if fields.flag("use_parallel_residual", default=False) else 2
    biased = fields.flag("use_qkv_bias", default=False)
    return replace(decoder, norm=2 * decoder.hidden, norms=norms, query_bias=biased, extra=extra)


def _glm(fields: Fields) -> Decoder:
    return replace(base(fields, kv=2, head=128), query_bias=fields.flag("attention_bias", default=True))


def _glm4(fields: Fields) -> Decoder:
    return replace(_glm(fields), norms=4)


def _chatglm(fields: Fields) -> Decoder:
    hidden, heads = fields.size("hidden_size"), fields.size("num_attention_heads")
    width = fields.size("kv_channels", default=0) or fields.divided(hidden, heads, "hidden size by heads")
    shared = fields.flag("multi_query_attention", default=False)
    groups = fields.size("multi_query_group_num", default=1) if shared else heads
    biased = fields.flag("add_bias_linear", default=False)
    return Decoder(
        hidden=hidden, layers=fields.size("num_layers"), heads=heads, query=heads * width, key_value=groups * width,
        intermediate=fields.size("ffn_hidden_size"), vocabulary=fields.size("padded_vocab_size", "vocab_size"),
        context=fields.size("seq_length", default=0) or None, tied=fields.flag("tie_word_embeddings", default=False),
        fused=True, query_bias=fields.flag("add_qkv_bias", default=False) or biased, output_bias=biased,
        ff_bias=biased, norm=hidden if fields.flag("rmsnorm", default=True) else 2 * hidden,
        final_norm=fields.flag("post_layer_norm", default=True),
    )  # fmt: skip


def _olmo(fields: Fields) -> Decoder:
    biased = fields.flag("attention_bias", default=False)
    return replace(base(fields), norm=0, query_bias=biased, output_bias=biased)


def _olmo2(fields: Fields) -> Decoder:
    decoder = base(fields)
    biased = fields.flag("attention_bias", default=False)
    extra = (("query norm", decoder.query), ("key norm", decoder.key_value))
    return replace(decoder, query_bias=biased, output_bias=biased, extra=extra)


def _olmoe(fields: Fields) -> Decoder:
    decoder = _olmo2(fields)
    count, used = fields.size("num_experts", default=64), fields.size("num_experts_per_tok", default=8)
    return replace(decoder, experts=Experts(count=count, used=used, width=decoder.intermediate))


def _cohere(fields: Fields) -> Decoder:
    decoder = base(fields, tied=True)
    biased = fields.flag("attention_bias", default=False)
    each = fields.flag("use_qk_norm", default=False)
    extra = (("query norm", decoder.query), ("key norm", decoder.key_value)) if each else ()
    return replace(decoder, norms=1, query_bias=biased, output_bias=biased, extra=extra)


DECODERS: dict[str, Callable[[Fields], Decoder]] = {
    "bloom": _bloom, "chatglm": _chatglm, "cohere": _cohere, "cohere2": _cohere, "deepseek_v2": deepseek,
    "deepseek_v3": deepseek, "falcon": _falcon, "gemma": _gemma, "gemma2": _gemma2, "gemma3_text": _gemma3,
    "glm": _glm, "glm4": _glm4, "gpt2": _gpt2, "gpt_bigcode": _bigcode, "gpt_neox": _gpt_neox, "gpt_oss": _gpt_oss,
    "gptj": _gptj, "granite": _llama, "llama": _llama, "mistral": _mistral, "mixtral": _mixtral, "mpt": _mpt,
    "olmo": _olmo, "olmo2": _olmo2, "olmoe": _olmoe, "opt": _opt, "phi": _phi, "phi3": _phi3, "qwen2": _qwen2,
    "qwen2_moe": _qwen2_moe, "qwen3": _qwen3, "qwen3_moe": _qwen3_moe, "smollm3": _smollm3, "stablelm": _stablelm,
    "starcoder2": _starcoder2,
}  # fmt: skip
# transformers has no code for these: they come with the model.
UNVERIFIED = frozenset({"chatglm"})
