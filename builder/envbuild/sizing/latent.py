"""DeepSeek's decoders: keys and values through a narrow latent width, and many small experts."""

from __future__ import annotations

from envbuild.sizing.config import Fields
from envbuild.sizing.decoder import Decoder, Experts, linear
from envbuild.sizing.shape import Weight


def deepseek(fields: Fields) -> Decoder:
    """DeepSeek-V2 and -V3 (the layer that predicts further tokens is no part of the model that is trained)."""
    hidden, heads = fields.size("hidden_size"), fields.size("num_attention_heads")
    nope, rope = fields.size("qk_nope_head_dim"), fields.size("qk_rope_head_dim")
    value, latent = fields.size("v_head_dim"), fields.size("kv_lora_rank")
    low = fields.size("q_lora_rank", default=0)
    biased = fields.flag("attention_bias", default=False)
    query = (
        (
            *linear("query down", hidden, low, biased),
            Weight(name="query norm", size=low),
            *linear("query up", low, heads * (nope + rope), False),
        )
        if low
        else linear("query", hidden, heads * (nope + rope), False)
    )
    attention = (
        *query,
        *linear("key, value down", hidden, latent + rope, biased),
        Weight(name="key, value norm", size=latent),
        *linear("key, value up", latent, heads * (nope + value), False),
        *linear("attention output", heads * value, hidden, biased),
    )
    width = fields.size("moe_intermediate_size")
    return Decoder(
        hidden=hidden, layers=fields.size("num_hidden_layers"), heads=heads, query=heads * (nope + rope),
        key_value=heads * (nope + rope + value) // 2, intermediate=fields.size("intermediate_size"),
        vocabulary=fields.size("vocab_size"), context=fields.size("max_position_embeddings", default=0) or None,
        tied=fields.flag("tie_word_embeddings", default=False), norm=hidden, attention=attention,
        experts=Experts(
            count=fields.size("n_routed_experts"), used=fields.size("num_experts_per_tok"), width=width,
            shared=fields.size("n_shared_experts", default=0, least=0) * width,
            dense=fields.size("first_k_dense_replace", default=0, least=0),
            dense_width=fields.size("intermediate_size"),
        ),
    )  # fmt: skip
