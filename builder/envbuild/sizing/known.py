"""Shapes by name, and a guess where only a count is known."""

from __future__ import annotations

import difflib
import math
import re
from dataclasses import replace

from envbuild.errors import InputError
from envbuild.facts import Facts
from envbuild.sizing import decoder, hf
from envbuild.sizing.decoder import Decoder
from envbuild.sizing.shape import Shape

_COUNT = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,9})?(?:e[0-9]{1,2})?)\s*([kmbt]?)", re.ASCII)
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "t": 10**12}
_LEAST, _MOST = 10**6, 10**13
# What the guess starts from: dense models of one kind, so that they differ in size alone.
_GUESSED_FROM = (
    "qwen2.5-0.5b",
    "smollm3-3b",
    "llama-2-7b",
    "llama-2-13b",
    "qwen2.5-32b",
    "llama-2-70b",
    "llama-3.1-405b",
)
_VOCABULARY = 32_000


def names(facts: Facts) -> tuple[str, ...]:
    """The models that are known by name."""
    return tuple(facts.models)


def find(facts: Facts, text: str, option: str = "--params") -> Shape:
    """``llama-2-7b`` is that model; ``7b``, ``6.7B`` and ``7e9`` are a guess of that size (``guessed``, with a note).

    Raises:
        InputError: It is neither a known model nor a sensible count.
    """
    shown = repr(text if len(text) <= 60 else text[:57] + "...")
    name = _plain(text)
    known = {_plain(each): each for each in facts.models}
    if name in known:
        return _model(facts, known[name])
    found = _COUNT.fullmatch(text.strip().lower().replace(",", "").replace("_", ""))
    if found is None:
        close = difflib.get_close_matches(name, list(known), n=1)
        near = f"; did you mean {known[close[0]]!r}?" if close else ""
        raise InputError(
            f"{option}: {shown} is no known model and no count of parameters{near}",
            hint=f"Say a count such as 7b or 350m, or one of: {', '.join(facts.models)}.",
        )
    count = float(found[1]) * _UNITS[found[2]]
    if not _LEAST <= count <= _MOST:
        raise InputError(
            f"{option}: {shown} is not between a million and ten trillion parameters", hint="Say 7b or 350m."
        )
    return guess(facts, round(count), text.strip())


def guess(facts: Facts, parameters: int, name: str) -> Shape:
    """A dense model of about that size: the nearest known one, made wider or narrower, and as deep as it needs."""
    models = {each: _model(facts, each) for each in _GUESSED_FROM}
    nearest = min(models, key=lambda each: abs(math.log(models[each].parameters / parameters)))
    like = models[nearest]
    hidden = max(128, 128 * round(like.hidden * (parameters / like.parameters) ** (1 / 3) / 128))
    # Half of a small model would be the vocabulary of a large one.
    vocabulary = max(256, min(_VOCABULARY, parameters // (4 * hidden)))
    shape = _like(like, hidden, 1, vocabulary, name)
    layers = max(1, round((parameters - (shape.parameters - shape.layer)) / shape.layer))
    made = _like(like, hidden, layers, vocabulary, name)
    note = (
        f"a guess from the count alone: {layers} layers of width {hidden:,}, in the proportions of {nearest}, "
        f"{made.parameters:,} parameters; give --model-config for the real ones"
    )
    return replace(made, guessed=True, verified=False, notes=(note,))


def _like(like: Shape, hidden: int, layers: int, vocabulary: int, name: str) -> Shape:
    heads = max(1, hidden // 128)
    groups = max(1, hidden * like.key_value // like.query)
    stack = Decoder(
        hidden=hidden, layers=layers, heads=heads, query=hidden, key_value=groups,
        intermediate=max(1, hidden * like.intermediate // like.hidden), vocabulary=vocabulary, context=None,
        tied=False, norm=hidden,
    )  # fmt: skip
    return decoder.shape(stack, name, "a guess", verified=False)


def _model(facts: Facts, name: str) -> Shape:
    return replace(hf.shape(facts.models[name].config, name), name=name)


def _plain(text: str) -> str:
    """A model's name as it is compared: without its owner, in small letters and digits."""
    last = text[:120].lower().rsplit("/", 1)[-1].removesuffix("-hf")
    return re.sub(r"[^a-z0-9.]", "", last)
