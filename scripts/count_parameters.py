"""Count the parameters of real models, and compare: ours, from config.json, against the model that transformers builds.

Run on demand, where transformers and torch are (the models are made on the meta device: no weights, no memory):

    python scripts/count_parameters.py > counts.md

Every model of facts/models.yaml is compared, the default configuration of every family, and every switch of them.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
import transformers
import yaml

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "builder"))

from envbuild.errors import InputError  # noqa: E402
from envbuild.sizing import hf  # noqa: E402
from envbuild.sizing.encoders import ENCODERS  # noqa: E402
from envbuild.sizing.families import DECODERS, UNVERIFIED  # noqa: E402

# What the families' switches add; defaults leave most of them off.
VARIANTS: tuple[dict[str, Any], ...] = (
    {"model_type": "llama", "attention_bias": True, "mlp_bias": True, "head_dim": 64, "num_key_value_heads": 4},
    {"model_type": "qwen2_moe", "mlp_only_layers": [0, 3], "decoder_sparse_step": 2},
    {"model_type": "qwen3", "attention_bias": True},
    {"model_type": "qwen3_moe", "mlp_only_layers": [1], "decoder_sparse_step": 3, "attention_bias": True},
    {"model_type": "gemma3_text", "attention_bias": True},
    {"model_type": "phi", "qk_layernorm": True},
    {"model_type": "falcon", "new_decoder_architecture": True, "num_kv_heads": 1, "bias": True},
    {"model_type": "falcon", "new_decoder_architecture": True, "num_kv_heads": 1, "num_ln_in_parallel_attn": 1},
    {"model_type": "falcon", "multi_query": False, "parallel_attn": False, "bias": True},
    {"model_type": "gpt_bigcode", "multi_query": False},
    {"model_type": "gpt_neox", "attention_bias": False, "tie_word_embeddings": True},
    {"model_type": "opt", "word_embed_proj_dim": 512, "do_layer_norm_before": False},
    {"model_type": "opt", "enable_bias": False, "layer_norm_elementwise_affine": False},
    {"model_type": "opt", "_remove_final_layer_norm": True},
    {"model_type": "stablelm", "use_qkv_bias": True, "qk_layernorm": True},
    {"model_type": "stablelm", "use_parallel_residual": True},
    {"model_type": "starcoder2", "use_bias": False},
    {"model_type": "glm", "attention_bias": False},
    {"model_type": "cohere", "use_qk_norm": True, "attention_bias": True},
    {"model_type": "olmo", "attention_bias": True},
    {"model_type": "olmo2", "attention_bias": True, "num_key_value_heads": 8},
    {"model_type": "deepseek_v2", "num_experts_per_tok": 6, "attention_bias": True, "first_k_dense_replace": 2},
    {"model_type": "deepseek_v3", "q_lora_rank": None, "n_shared_experts": 2, "num_hidden_layers": 4},
    {"model_type": "gpt_oss", "attention_bias": False, "num_hidden_layers": 2},
    {"model_type": "t5", "feed_forward_proj": "gated-gelu", "num_decoder_layers": 3},
)


def real(config: Any) -> int:
    """The distinct parameters of the model; tied ones once."""
    kind = transformers.AutoModelForMaskedLM if config.model_type in ("bert", "roberta") else None
    kind = kind or (
        transformers.AutoModelForSeq2SeqLM if config.model_type == "t5" else transformers.AutoModelForCausalLM
    )
    with torch.device("meta"):
        model = kind.from_config(config)
    model.tie_weights()
    return sum({id(parameter): parameter.numel() for parameter in model.parameters()}.values())


def row(name: str, fields: dict[str, Any]) -> bool:
    """One line of the table; whether the two agree."""
    config = transformers.AutoConfig.for_model(**fields)
    counted = real(config)
    try:
        ours = hf.shape(config.to_dict() | fields, name).parameters
    except InputError as error:
        ours = 0
        sys.stderr.write(f"{name}: {error.message}\n")
    sys.stdout.write(
        f"| {name} | {counted:,} | {ours:,} | {'equal' if ours == counted else f'{ours / counted - 1:+.3%}'} |\n"
    )
    sys.stdout.flush()
    return ours == counted


def main() -> int:
    """Every comparison; the number of those that differ."""
    sys.stdout.write(f"transformers {transformers.__version__}, torch {torch.__version__}\n\n")
    sys.stdout.write("| model | transformers | envbuild | |\n|---|---:|---:|---|\n")
    models = yaml.safe_load((ROOT / "facts/models.yaml").read_text(encoding="utf-8"))["models"]
    told = [row(name, dict(model["config"])) for name, model in models.items()]
    families = sorted({*DECODERS, *ENCODERS} - UNVERIFIED - {"deepseek_v2"})
    told += [row(f"{family} (default)", {"model_type": family}) for family in families]
    told += [row(", ".join(f"{key} {value}" for key, value in each.items()), dict(each)) for each in VARIANTS]
    return told.count(False)


if __name__ == "__main__":
    sys.exit(min(1, main()))
