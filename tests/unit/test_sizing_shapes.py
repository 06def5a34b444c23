"""Shapes: every weight of a model counted, from its config.json, its name, or a bare count."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envbuild.errors import EnvbuildError, InputError
from envbuild.facts import load
from envbuild.sizing import cards, hf, known
from envbuild.sizing.families import DECODERS

FACTS = load()
LLAMA = {
    "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
    "intermediate_size": 11008, "vocab_size": 32000,
}  # fmt: skip
SMALL = {
    "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 160, "vocab_size": 1000,
}  # fmt: skip


@pytest.mark.parametrize("name", FACTS.models)
def test_the_count_of_a_public_model_is_the_published_one(name: str) -> None:
    shape = known.find(FACTS, name)
    assert abs(shape.parameters / FACTS.models[name].parameters - 1) < 1e-4, f"{shape.parameters:,}"
    assert shape.verified and not shape.guessed
    assert shape.parameters == sum(weight.size * count for weight, count in shape.weights())


def test_what_a_family_adds_is_counted() -> None:
    """Every difference between families, against the plain Llama of the same sizes."""
    plain = _count("llama")
    hidden, layers, width, vocabulary = 64, 3, 160, 1000
    assert plain == 2 * vocabulary * hidden + layers * (4 * hidden**2 + 3 * hidden * width + 2 * hidden) + hidden
    assert _count("llama", tie_word_embeddings=True) == plain - vocabulary * hidden
    assert _count("llama", attention_bias=True) == plain + layers * 4 * hidden
    assert _count("llama", mlp_bias=True) == plain + layers * (2 * width + hidden)
    assert _count("llama", num_key_value_heads=2) == plain - layers * hidden**2
    assert _count("llama", head_dim=32) == plain + layers * 4 * hidden**2
    assert _count("qwen2") == plain + layers * 3 * hidden
    assert _count("qwen3", head_dim=16) == plain + layers * 2 * 16
    assert _count("olmo2") == plain + layers * 2 * hidden
    assert _count("olmo") == plain - layers * 2 * hidden - hidden
    assert _count("gemma2", head_dim=16, num_key_value_heads=4) == plain - vocabulary * hidden + layers * 2 * hidden
    assert _count("phi3") == plain, "fused projections are as large as separate ones"
    gate = layers * hidden * width
    assert _count("gpt_neox") == plain - gate + layers * (4 * hidden + width + hidden + 2 * hidden) + hidden
    experts = 8 * 3 * hidden * width - 3 * hidden * width + 8 * hidden
    assert _count("mixtral", num_local_experts=8, num_key_value_heads=4) == plain + layers * experts


def test_a_token_passes_through_the_experts_that_it_is_given() -> None:
    shape = known.find(FACTS, "mixtral-8x7b")
    assert 12.8e9 < shape.used_parameters < 13e9, "published: 12.9 billion"
    assert known.find(FACTS, "llama-2-7b").used_parameters == 6_738_415_616
    assert 37e9 < known.find(FACTS, "deepseek-v3").used_parameters < 38e9, "published: 37 billion"


def test_a_dense_layer_among_experts_is_counted_as_one() -> None:
    config = {**FACTS.models["qwen3-30b-a3b"].config}
    whole = hf.shape(config, "c").parameters
    dense = hf.shape({**config, "mlp_only_layers": [0]}, "c").parameters
    hidden, experts = 2048, 128 * 3 * 2048 * 768 + 128 * 2048
    assert whole - dense == experts - 3 * hidden * 6144
    assert hf.shape({**config, "decoder_sparse_step": 2}, "c").parameters < whole * 0.6


def test_every_family_reads_a_configuration() -> None:
    extra = {
        "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32, "num_experts": 4, "num_experts_per_tok": 2,
        "n_routed_experts": 4, "kv_lora_rank": 8, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16,
        "ffn_hidden_size": 160, "num_layers": 3, "num_key_value_heads": 4,
    }  # fmt: skip
    for family in DECODERS:
        shape = hf.shape({"model_type": family, **SMALL, **extra}, family)
        assert shape.layers == 3 and shape.parameters > 100_000, family


def test_an_unknown_family_is_counted_and_marked() -> None:
    shape = hf.shape({**LLAMA, "model_type": "from-next-year"}, "c.json")
    assert shape.parameters == 6_738_415_616 and not shape.verified
    assert any("from-next-year" in note for note in shape.notes)
    mixed = hf.shape({**LLAMA, "model_type": "new-moe", "num_local_experts": 4, "num_key_value_heads": 32}, "c.json")
    assert mixed.experts == 4 and not mixed.verified
    with pytest.raises(InputError, match="does not say num_attention_heads") as refused:
        hf.shape({"model_type": "mamba2", "hidden_size": 64, "num_hidden_layers": 3, "vocab_size": 9}, "c.json")
    assert "Nothing is known of model_type 'mamba2'" in refused.value.hint and "--params" in refused.value.hint


def test_only_the_language_model_of_several_inputs_is_counted() -> None:
    text = {key: value for key, value in LLAMA.items() if key != "model_type"}
    shape = hf.shape({"model_type": "llava", "text_config": {**text, "model_type": "llama"}, "vision_config": {}}, "c")
    assert shape.parameters == 6_738_415_616 and any("text_config" in note for note in shape.notes)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"hidden_size": None}, "hidden_size"),
        ({"hidden_size": "4096"}, "whole number"),
        ({"hidden_size": -1}, "hidden_size is -1"),
        ({"hidden_size": 10**30}, "must be 1 to"),
        ({"hidden_size": float("nan")}, "hidden_size is nan"),
        ({"hidden_size": True}, "hidden_size is True"),
        ({"num_attention_heads": 33}, "no multiple"),
        ({"num_key_value_heads": 5}, "no multiple"),
        ({"tie_word_embeddings": "yes"}, "true or false"),
        ({"model_type": 7}, "model_type is 7"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(change: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError) as caught:
        hf.shape({**LLAMA, **change}, "c.json")
    assert told in caught.value.message and "c.json" in caught.value.message


def test_all_missing_fields_are_told_at_once_and_a_misspelt_one_is_seen() -> None:
    with pytest.raises(InputError) as caught:
        hf.shape({"model_type": "llama", "hidden_sizes": 64, "num_hidden_layers": 2}, "c.json")
    for name in ("hidden_size", "num_attention_heads", "vocab_size", "intermediate_size"):
        assert name in caught.value.message
    assert "hidden_sizes" in caught.value.hint


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "c.json:1:1"),
        (b"{\n  1", "c.json:2:3"),
        (b"[]", "object"),
        (b'{"a": "\xff"}', "UTF-8"),
        (b"[" * 100_000, "c.json"),
        (b'{"hidden_size": ' + b"9" * 10_000 + b"}", "c.json"),
        (b" " * (5 << 20), "MiB"),
        (b'{"hidden_size": 1e400}', "c.json"),
    ],
    ids=["empty", "cut", "list", "bytes", "deep", "digits", "large", "infinite"],
)
def test_a_file_that_is_none_is_told(content: bytes, told: str, tmp_path: Path) -> None:
    (tmp_path / "c.json").write_bytes(content)
    with pytest.raises(InputError, match=r"c\.json") as caught:
        hf.load(tmp_path / "c.json")
    assert told in caught.value.message


def test_a_folder_is_read_and_a_missing_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    assert hf.load(tmp_path).parameters == 6_738_415_616
    with pytest.raises(InputError, match="No such file"):
        hf.load(tmp_path / "no.json")


_VALUES = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(["", "64", "\x00"])
    | st.lists(st.integers(), max_size=3)
)  # fmt: skip


@given(
    st.sampled_from([*DECODERS, "bert", "t5", "x"]),
    st.dictionaries(st.sampled_from([*SMALL, "num_experts", "mlp_only_layers", "decoder_sparse_step", "kv_lora_rank",
                                     "num_key_value_heads", "head_dim", "text_config", "d_model"]), _VALUES),
)  # fmt: skip
def test_no_configuration_is_a_crash(family: str, change: dict[str, Any]) -> None:
    try:
        shape = hf.shape({"model_type": family, **SMALL, **change}, "c.json")
    except EnvbuildError:
        return
    assert shape.parameters > 0


@pytest.mark.parametrize(
    ("text", "least", "most"),
    [
        ("7b", 6.8e9, 7.2e9), ("350m", 3.3e8, 3.7e8), ("1.3B", 1.2e9, 1.4e9), ("70e9", 68e9, 72e9),
        ("1t", 0.97e12, 1.03e12),
    ],
)  # fmt: skip
def test_a_bare_count_is_a_guess_of_that_size(text: str, least: float, most: float) -> None:
    shape = known.find(FACTS, text)
    assert least < shape.parameters < most
    assert shape.guessed and not shape.verified and "a guess" in shape.notes[0]


@pytest.mark.parametrize("text", ["Llama-2-7b", "meta-llama/Llama-2-7b-hf", "llama_2_7b"])
def test_a_model_is_found_by_the_name_that_people_type(text: str) -> None:
    assert known.find(FACTS, text).name == "llama-2-7b"


@pytest.mark.parametrize("text", ["", "lama-2-7b", "-7b", "1e400", "nan", "7", "9" * 500, "7bb", "1e30b"])
def test_what_is_no_model_is_told(text: str) -> None:
    with pytest.raises(InputError, match="--params"):
        known.find(FACTS, text)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("a100-80gb", "a100-80gb"), ("NVIDIA A100-SXM4-80GB", "a100-80gb"), ("NVIDIA A100 80GB PCIe", "a100-80gb"),
        ("A100-SXM-40GB", "a100-40gb"), ("H100", "h100"), ("NVIDIA H100 80GB HBM3", "h100"),
        ("Tesla V100-SXM2-32GB", "v100-32gb"), ("4090", "rtx4090"), ("NVIDIA GeForce RTX 4090", "rtx4090"),
        ("NVIDIA RTX A6000", "a6000"), ("B200", "b200"), ("a100 80 GiB", "a100-80gb"),
    ],
)  # fmt: skip
def test_a_gpu_is_found_by_the_names_that_it_is_given(text: str, name: str) -> None:
    card = cards.find(FACTS, text)
    assert card.name == name and card.sm == FACTS.gpus[card.gpu].sm and card.memory > 15 << 30


def test_a_gpu_of_two_sizes_and_one_that_is_none_are_told() -> None:
    with pytest.raises(InputError, match="several sizes") as caught:
        cards.find(FACTS, "a100")
    assert "a100-40gb or a100-80gb" in caught.value.hint
    for text in ("", "h900", "tpu", "\x1b[31m"):
        with pytest.raises(InputError, match="nothing is known"):
            cards.find(FACTS, text)


def _count(family: str, **change: Any) -> int:
    return hf.shape({"model_type": family, **SMALL, **change}, family).parameters
