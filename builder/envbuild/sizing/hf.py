"""Shapes from Hugging Face's config.json."""

from __future__ import annotations

import json
import stat
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from envbuild.errors import InputError
from envbuild.sizing import decoder
from envbuild.sizing.config import Fields
from envbuild.sizing.encoders import ENCODERS
from envbuild.sizing.families import DECODERS, UNVERIFIED
from envbuild.sizing.shape import Shape

# Longer than any published configuration, whose longest fields are lists of labels.
_MOST_BYTES = 4 << 20
# Where models of several kinds of input keep the part that this counts.
_TEXT = ("text_config", "llm_config", "language_config")
# Fields that some families without experts have as well.
_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")


def load(path: Path) -> Shape:
    """The shape of the model whose config.json this is (a folder that holds one will do).

    Raises:
        InputError: It cannot be read, is no configuration of a model, or lacks fields (they are named).
    """
    file = path / "config.json" if path.is_dir() else path
    try:
        # What is no file may never end: a pipe that nobody writes to.
        if stat.S_ISFIFO(file.stat().st_mode) and not str(file).startswith(("/dev/fd/", "/proc/")):
            raise InputError(f"{file}: a pipe", hint="Give the config.json of a model.")
        with file.open("rb") as stream:
            raw = stream.read(_MOST_BYTES + 1)
    except OSError as error:
        raise InputError(f"{file}: {error.strerror or error}", hint="Give the config.json of a model.") from error
    if len(raw) > _MOST_BYTES:
        raise InputError(f"{file}: longer than {_MOST_BYTES >> 20} MiB, so no model's config.json")
    try:
        config = json.loads(raw.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise InputError(f"{file}: is not UTF-8 (byte {error.start})") from error
    except json.JSONDecodeError as error:
        raise InputError(f"{file}:{error.lineno}:{error.colno}: {error.msg}", hint="It must be JSON.") from error
    except (RecursionError, ValueError) as error:
        # Too deep, or a number of more digits than Python converts.
        raise InputError(f"{file}: {' '.join(str(error).split())[:200]}", hint="It must be JSON.") from error
    if not isinstance(config, dict):
        raise InputError(f"{file}: must be a JSON object", hint="Give the config.json of a model.")
    return shape(config, str(file))


def shape(config: Mapping[str, Any], name: str) -> Shape:
    """The shape that a parsed configuration describes; an unknown model_type is counted as a Llama, unverified.

    Raises:
        InputError: Fields are missing or senseless; ``name`` is said as the place.
    """
    text, inside = _language(config)
    place = f"{name}: {inside}" if inside else name
    fields = Fields(text, place)
    family = fields.word("model_type", "")
    if family in ENCODERS:
        known = ENCODERS[family](fields, name)
    elif family in DECODERS or family == "gemma3":
        stack = DECODERS["gemma3_text" if family == "gemma3" else family](fields)
        fields.check()
        known = decoder.shape(stack, name, family, verified=family not in UNVERIFIED)
    else:
        known = _unknown(fields, name, family)
    fields.check()
    notes = list(known.notes)
    if family in UNVERIFIED:
        notes.append(f"the count of {family} was not compared with a model")
    if inside:
        notes.append(f"only {inside} is counted: towers for images or sound come on top")
    return replace(known, family=family, notes=tuple(notes))


def _language(config: Mapping[str, Any]) -> tuple[Mapping[str, Any], str]:
    """The part of a configuration that describes the language model, and its name where it is nested."""
    for key in _TEXT:
        part = config.get(key)
        if isinstance(part, Mapping):
            kind = {} if "model_type" in part else {"model_type": _text_type(config)}
            return {**kind, **part}, key
    return config, ""


def _text_type(config: Mapping[str, Any]) -> Any:
    kind = config.get("model_type")
    return f"{kind}_text" if isinstance(kind, str) and f"{kind}_text" in DECODERS else kind


def _unknown(fields: Fields, name: str, family: str) -> Shape:
    """A model_type that has no entry here: most new ones are a Llama, or a Mixtral, with small changes."""
    for needed in ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size"):
        fields.size(needed)
    # A text of the file is shown with its escapes, or it would command the terminal.
    told = repr(family[:60]) if family else "(none)"
    try:
        fields.check()
    except InputError as error:
        if "did you mean" in error.hint:
            raise
        hint = (
            f"Nothing is known of model_type {told}, and a Llama has these fields. Its size will do, too: --params 7b."
        )
        raise InputError(error.message, hint=hint) from None
    kind = "llama"
    if any(fields.has(each) for each in _EXPERTS):
        kind = "deepseek_v3" if fields.has("kv_lora_rank") else "qwen3_moe" if _narrow(fields) else "mixtral"
    stack = DECODERS[kind](fields)
    fields.check()
    note = f"nothing is known of model_type {told}: counted as {kind}"
    return decoder.shape(stack, name, family, verified=False, notes=(note,))


def _narrow(fields: Fields) -> bool:
    return fields.has("moe_intermediate_size")
