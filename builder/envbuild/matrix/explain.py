"""pydantic's complaints about a row, in words for the person who wrote the row."""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel, ValidationError

from envbuild import model
from envbuild.matrix.merge import EXTENDS, near
from envbuild.matrix.tree import KeyPath, quoted
from envbuild.model import Environment

# Keys that a row has in the file only.
NOT_IN_ROW = frozenset({"name"})


def row_keys() -> list[str]:
    """The keys that a row may have."""
    return [*(key for key in Environment.model_fields if key not in NOT_IN_ROW), EXTENDS]


def _pattern(annotated: Any) -> str:
    constraints = typing.get_args(annotated)[1]
    return str(constraints.pattern)


def _of_field(kind: type[BaseModel], name: str) -> str:
    return str(kind.model_fields[name].metadata[0].pattern)


REQUIREMENT = _pattern(model.Requirement)
_PATTERNS = {
    _pattern(model.Version): "is not a version, such as 2.13.0",
    _pattern(model.MajorMinor): "is not a version of two numbers, such as 3.11",
    _pattern(model.Name): "is not a name of small letters, digits and single hyphens, such as a100-cu118",
    _pattern(model.Word): "is not one word of letters, digits and _ . + -",
    _pattern(model.ImageRef): "is not an image reference, such as docker.io/library/debian:bookworm-slim",
    _pattern(model.Digest): "is not a digest: sha256: and 64 hexadecimal digits",
    REQUIREMENT: "is not a requirement, such as numpy<2 (without spaces, markers and URLs)",
    _pattern(model.EnvName): "is not the name of a variable: capital letters, digits and _",
    _pattern(model.EnvValue): "has a character that is not allowed here: line break, quote, backslash, $ or `",
    _pattern(model.Line): "must be one printable line",
    _pattern(
        typing.get_args(model.DeepSpeed.model_fields["ops"].annotation)[0]
    ): "is not an op's name, such as cpu_adam",
    _of_field(model.Torch, "build"): "is not a build variant: cpu, or cu and digits, such as cu118",
    _pattern(model.Size): "is not a size, such as 512MiB or 1GiB",
    _pattern(model.DottedNumber): "is not a version of numbers and dots, such as 450.80.02",
    _of_field(model.Gcc, "package"): "is not the package of a GCC, such as gcc-12 or gcc-toolset-11-gcc",
    _of_field(model.Performance, "delta"): "is not a share, such as 5%",
    _of_field(model.Waiver, "rule"): "is not the id of a rule, such as R21",
}


def explain(error: ValidationError, data: dict[str, Any]) -> Iterator[tuple[KeyPath, bool, str]]:
    """Each complaint as path in the row, whether it is about the key, and text without the path."""
    by_path: dict[tuple[KeyPath, bool], list[str]] = {}
    for detail in error.errors(include_url=False):
        path, about_key = _path(detail["loc"], data)
        about_key = about_key or detail["type"] == "extra_forbidden"
        texts = by_path.setdefault((path, about_key), [])
        text = _text(dict(detail), path)
        if text not in texts:
            texts.append(text)
    for (path, about_key), texts in by_path.items():
        # Several complaints about one value are the branches of a choice, none of which took it.
        yield path, about_key, ", and ".join(texts)


def _path(loc: KeyPath, data: Any) -> tuple[KeyPath, bool]:
    """The part of a location that is in the file; pydantic appends names of union branches."""
    path: list[str | int] = []
    for part in loc:
        if part == "[key]":
            return tuple(path), True
        if not isinstance(data, dict | list):
            break
        path.append(part)
        inside = part in data if isinstance(data, dict) else isinstance(part, int) and part < len(data)
        data = data[part] if inside else None  # type: ignore[index]
    return tuple(path), False


def _text(detail: dict[str, Any], path: KeyPath) -> str:
    kind, given, context = detail["type"], detail.get("input"), detail.get("ctx", {})
    if kind == "missing":
        return "is required"
    if kind == "extra_forbidden":
        return _unknown_key(path)
    if given is None:
        return "is empty; give it a value or remove the key"
    shown = quoted(given) if isinstance(given, str) else _kind(given)
    if kind == "string_pattern_mismatch":
        return f"{shown} {_PATTERNS.get(context['pattern']) or 'does not match ' + context['pattern']}"
    if kind in ("literal_error", "enum"):
        choices = re.findall(r"'([^']*)'", context["expected"])
        guess = near(given, choices) if isinstance(given, str) else ""
        return f"{shown} is {'none of ' if len(choices) > 1 else 'not '}{', '.join(choices)}{guess}"
    if kind == "too_short":
        return f"needs at least {context['min_length']} item"
    if kind in ("greater_than_equal", "less_than_equal"):
        least = kind == "greater_than_equal"
        return f"{shown} is too {'few: at least' if least else 'many: at most'} {context['ge' if least else 'le']}"
    if kind.startswith("date"):
        return f"{shown} is not a date, such as 2026-11-01"
    wanted = {
        "string_type": "text",
        "string_too_long": f"at most {context.get('max_length')} characters",
        "model_type": "a mapping",
        "dict_type": "a mapping",
        "tuple_type": "a list",
        "bool_type": "true or false",
        "bool_parsing": "true or false",
        "int_type": "a whole number",
        "int_parsing": "a whole number",
        "string_unicode": "text in valid Unicode",
    }.get(kind)
    return f"must be {wanted}, not {shown}" if wanted else f"{shown}: {detail['msg']}"


def _kind(value: object) -> str:
    return "a mapping" if isinstance(value, dict) else "a list" if isinstance(value, list) else type(value).__name__


def _unknown_key(path: KeyPath) -> str:
    key = str(path[-1])
    if len(path) == 1 and key in NOT_IN_ROW:
        return "is not a key of a row: a row's name is the key it stands under"
    known = row_keys() if len(path) == 1 else fields_at(path[:-1])
    return f"is not a known key{near(key, known) or '; known are ' + ', '.join(known)}"


def fields_at(path: KeyPath) -> list[str]:
    """The keys of the mapping at a path of a row; empty where there is none, or where keys are free."""
    annotation: Any = Environment
    for part in path:
        if isinstance(annotation, type) and issubclass(annotation, BaseModel) and part in annotation.model_fields:
            annotation = _inner(annotation.model_fields[str(part)].annotation)
        elif typing.get_origin(annotation) in (tuple, dict):
            # tuple[Item, ...] and dict[Key, Item]: an index or a free key leads to the item.
            arguments = typing.get_args(annotation)
            annotation = _inner(arguments[0] if typing.get_origin(annotation) is tuple else arguments[1])
        else:
            return []
    is_model = isinstance(annotation, type) and issubclass(annotation, BaseModel)
    return list(annotation.model_fields) if is_model else []


def _inner(annotation: Any) -> Any:
    """A type without ``| None`` and without constraints."""
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return _inner(next(a for a in typing.get_args(annotation) if a is not types.NoneType))
    if typing.get_origin(annotation) is typing.Annotated:
        return _inner(typing.get_args(annotation)[0])
    return annotation
