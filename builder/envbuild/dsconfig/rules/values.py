"""Values of types that DeepSpeed does not take, or takes for something else; numbers out of bounds; unknown words.

What becomes of a wrong type was tried with DeepSpeed itself, one value of each type for each key (dsschema): it is
refused, or turned into another one, or kept as it is by code that never looks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from envbuild.collector import secrets
from envbuild.dsconfig.context import Context
from envbuild.dsconfig.conversion import WORDS, number, read, uncountable
from envbuild.dsconfig.document import ARRAY, BOOLEAN, IN_WORDS, NULL, NUMBER, OBJECT, STRING, Member, Node
from envbuild.dsconfig.editing import replace
from envbuild.dsconfig.problem import Edit, Problem
from envbuild.dsconfig.rules.near import near
from envbuild.dsconfig.rules.rule import Rule
from envbuild.dsconfig.rules.schema import walk
from envbuild.dsconfig.view import AUTO, View
from envbuild.dsschema import Key, Section
from envbuild.dsschema.types import FORBID
from envbuild.model.finding import Severity

ERROR, WARNING = Severity.ERROR, Severity.WARNING
_EXPECTED = {
    "boolean": "true or false", "integer": "a whole number", "number": "a number", "string": "a string",
    "array": "a list", "object": "an object", "null": "null",
}  # fmt: skip
# Their rules are those of batch sizes.
_BATCH = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
_BOUNDS = {"gt": "more than", "ge": "at least", "lt": "less than", "le": "at most"}


def typed(view: View, context: Context) -> Iterable[Problem]:
    """Types."""
    for path, section, member, key in _settings(view):
        kind = _kind(member.node)
        if _fits(kind, key, section):
            continue
        yield from _wrong(view, path, section, member, key)


def bounded(view: View, context: Context) -> Iterable[Problem]:
    """Numbers out of bounds."""
    for path, section, member, key in _settings(view):
        value = _value(view, section, member, key)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            continue
        for bound, limit in key.bounds:
            if not _inside(value, bound, limit):
                yield _problem(
                    view, path, section, ERROR, member,
                    f"{member.node.raw} is out of bounds: DeepSpeed wants {_BOUNDS[bound]} {limit}",
                    f"Give a number that is {_BOUNDS[bound]} {limit}.",
                )  # fmt: skip
        if path in _BATCH:
            continue
        refused = ("0" if value == 0 else "m") not in key.takes
        if value <= 0 and refused and not key.bounds and not key.allowed and "i" in key.takes:
            yield _problem(
                view, path, section, ERROR, member,
                f"{member.node.raw} is refused: DeepSpeed wants a number above 0", "Give a number above 0.",
            )  # fmt: skip


def allowed(view: View, context: Context) -> Iterable[Problem]:
    """Words and numbers that are none of a list."""
    for path, section, member, key in _settings(view):
        value = _value(view, section, member, key)
        if not key.allowed or member.node.kind not in (STRING, NUMBER) or value in key.allowed:
            continue
        if isinstance(value, str) and "string" not in key.types:
            continue
        guess = near(value, [each for each in key.allowed if isinstance(each, str)]) if isinstance(value, str) else ""
        yield _problem(
            view, path, section, ERROR, member,
            f"{_shown(member)} is none of {', '.join(map(_written, key.allowed))}",
            f"Did you mean {_written(guess)}?" if guess else "Take one of them.",
        )  # fmt: skip


def _settings(view: View) -> Iterator[tuple[str, Section, Member, Key]]:
    """Every known key of the file, without those left to Hugging Face."""
    for path, section, node in walk(view):
        for member in node.members:
            key = section.find(member.key)
            if key is not None and member.node.value != AUTO:
                yield f"{path}.{member.key}" if path else member.key, section, member, key


def _value(view: View, section: Section, member: Member, key: Key) -> Any:
    """What is written, as a model reads it."""
    return read(member.node, key, view.schema.pydantic) if section.extra == FORBID else member.node.value


def _kind(node: Node) -> str:
    if node.kind != NUMBER:
        return node.kind
    return "integer" if isinstance(node.value, int) or node.value.is_integer() else "number"


def _fits(kind: str, key: Key, section: Section) -> bool:
    """Whether nothing is to be said of a value of that type."""
    if not key.types or "any" in key.types:
        return not _known_to_fail(kind, key)
    if kind in key.types or (kind == "integer" and "number" in key.types):
        return True
    if section.extra != "forbid":
        # What is not declared is known by its default alone: 0 may well be meant for 0.5, null for "not set".
        return kind == "null" or (kind == "number" and "integer" in key.types)
    # 0 and 1 are said on purpose.
    return kind == "integer" and key.types[0] == "boolean"


def _known_to_fail(kind: str, key: Key) -> bool:
    """Of a key without a declared type: whether this type was refused while numbers, or texts, were taken."""
    if "i" in key.takes:
        letters = {"string": "nts", "array": "a", "object": "o", "number": "f", "null": ""}.get(kind, "")
    elif "s" in key.takes:
        letters = {"integer": "i", "number": "f", "boolean": "b", "array": "a", "object": "o"}.get(kind, "")
    else:
        return False
    return bool(letters) and not set(letters) & set(key.takes)


def _letter(node: Node) -> str:
    """Which of the values that were tried is like this one."""
    if node.kind == STRING:
        word = node.value.strip()
        return "n" if number(word) is not None else "t" if word.lower() in WORDS else "s"
    if node.kind == NUMBER:
        return "i" if _kind(node) == "integer" else "f"
    return {ARRAY: "a", OBJECT: "o", BOOLEAN: "b", NULL: "z"}[node.kind]


def _wrong(view: View, path: str, section: Section, member: Member, key: Key) -> Iterator[Problem]:
    node = member.node
    wanted = " or ".join(_EXPECTED[each] for each in key.types if each in _EXPECTED) or _tried(key)
    said = f"{_shown(member)} is {IN_WORDS[node.kind]}, not {wanted}"
    if node.kind == NUMBER and "integer" in key.types:
        said = f"{_shown(member)} is not {wanted}"
    right = _right(node, key)
    fix = f"Write {right}." if right else f"Write {wanted}."
    edits: tuple[Edit, ...] = (replace(node, right),) if right else ()
    if _letter(node) not in key.takes or (section.extra == FORBID and uncountable(node, key, view.schema.pydantic)):
        # What is not taken cannot be mended without asking what was meant, unless it says the same.
        yield _problem(view, path, section, ERROR, member, f"{said}; DeepSpeed refuses to start", fix, edits)
    elif section.extra == "forbid":
        turned = f"; pydantic {view.schema.pydantic} turns it into one"
        if node.kind == NUMBER and "integer" in key.types:
            turned = f"; pydantic {view.schema.pydantic} cuts it to {int(node.value)}"
        elif node.kind in (OBJECT, ARRAY, NULL):
            return
        yield _problem(view, path, section, WARNING, member, said + turned, fix, edits)
    elif node.kind == STRING and key.types and key.types[0] == "boolean":
        harm = "DeepSpeed never looks, and a text that is not empty counts as true"
        yield _problem(view, path, section, ERROR, member, f"{said}; {harm}", fix, edits)
    elif node.kind == BOOLEAN and key.types and key.types[0] in ("integer", "number"):
        yield _problem(view, path, section, WARNING, member, f"{said}; it counts as {int(node.value)}", fix)
    elif not (key.types and key.types[0] == "boolean" and node.kind == NUMBER):
        harm = "DeepSpeed keeps it as it is, and what computes with it fails later"
        yield _problem(view, path, section, ERROR, member, f"{said}; {harm}", fix, edits)


def _tried(key: Key) -> str:
    return "a number" if "i" in key.takes else "a string"


def _right(node: Node, key: Key) -> str:
    """The same value in the right type, as JSON writes it; empty where it has no such."""
    if node.kind != STRING:
        return ""
    word: str = node.value.strip()
    kinds = key.types or (("number",) if "i" in key.takes else ())
    if kinds and kinds[0] == "boolean":
        return WORDS.get(word.lower(), "")
    value = number(word)
    if value is None or not {"integer", "number"} & set(kinds) or "string" in kinds:
        return ""
    if "number" not in kinds and not float(value).is_integer():
        return ""
    return word


def _inside(value: float, bound: str, limit: float) -> bool:
    return {"gt": value > limit, "ge": value >= limit, "lt": value < limit, "le": value <= limit}[bound]


def _problem(
    view: View, path: str, section: Section, severity: Severity, member: Member, message: str, fix: str,
    edits: tuple[Edit, ...] = (),
) -> Problem:  # fmt: skip
    reader = section.model or "deepspeed/runtime/config.py"
    return Problem(
        path=path, severity=severity, message=message, place=member.node.place, fix=fix, edits=edits,
        source=f"DeepSpeed {view.schema.measured}, {reader}",
    )  # fmt: skip


def _shown(member: Member) -> str:
    if secrets.kept_back(member.key, member.node.value) and member.key not in secrets.MONITORS:
        return secrets.SECRET
    raw = " ".join(member.node.raw.split())
    raw = raw if len(raw) <= 40 else f"{raw[:37]}..."
    return "".join(letter if letter.isprintable() else "?" for letter in raw)


def _written(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value)


_SOURCE = "DeepSpeed's own schema, by release (envbuild/dsschema)"
RULES = (
    Rule(id="schema.type", title="every value has the type that is wanted", judge=typed, source=_SOURCE),
    Rule(id="schema.bounds", title="every number is inside its bounds", judge=bounded, source=_SOURCE),
    Rule(id="schema.value", title="every word is one of those that are known", judge=allowed, source=_SOURCE),
)
