"""Values of other types that DeepSpeed's models take for numbers and for true and false, as pydantic turns them."""

from __future__ import annotations

from typing import Any

from envbuild.dsconfig.nodes import BOOLEAN, NUMBER, STRING, Node
from envbuild.dsschema import Key

# What JSON writes for each word that pydantic knows.
WORDS = {
    "true": "true", "yes": "true", "on": "true", "t": "true", "y": "true", "1": "true",
    "false": "false", "no": "false", "off": "false", "f": "false", "n": "false", "0": "false",
}  # fmt: skip


def number(word: str) -> float | None:
    """The number that a text holds; None where it holds another thing."""
    import json

    try:
        value = json.loads(word)
    except (ValueError, RecursionError):
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or abs(value) > 1e300 or value != value:
        return None
    return value


def uncountable(node: Node, key: Key, pydantic: int) -> bool:
    """Whether a text is a number that is no whole one to pydantic: 1e3 to both, 3.0 to the first."""
    if node.kind != STRING or not key.types or key.types[0] != "integer" or "number" in key.types:
        return False
    word: str = node.value.strip()
    return number(word) is not None and bool(set(word) & set("eE" if pydantic > 1 else "eE."))


def read(node: Node, key: Key, pydantic: int) -> Any:
    """What a model makes of a value; what it refuses stays as it is written."""
    if not key.types or "string" in key.types:
        return node.value
    first = key.types[0]
    if node.kind == NUMBER and first == "boolean" and node.value in (0, 1) and "i" in key.takes:
        return node.value == 1
    if node.kind == BOOLEAN and "boolean" not in key.types and first in ("integer", "number") and "b" in key.takes:
        return int(node.value)
    if node.kind != STRING:
        return node.value
    word: str = node.value.strip()
    if first == "boolean":
        said = WORDS.get(word.lower())
        return node.value if said is None or not set("nt") & set(key.takes) else said == "true"
    if not {"integer", "number"} & set(key.types) or "n" not in key.takes or uncountable(node, key, pydantic):
        return node.value
    value = number(word)
    if value is None or (first == "integer" and value != value // 1):
        return node.value
    return int(value) if first == "integer" else value
