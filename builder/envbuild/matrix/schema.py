"""The JSON Schema of a matrix file, for editors; checked in as ``docs/matrix.schema.json``.

It describes the file before ``defaults`` and ``extends`` are filled in, so nothing in a row is required.
What is required of the finished row, the loader says.
"""

from __future__ import annotations

import json
import typing
from typing import Any

from envbuild import model
from envbuild.matrix.explain import NOT_IN_ROW
from envbuild.matrix.load import SCHEMA
from envbuild.matrix.merge import EXTENDS
from envbuild.model import Environment


def json_schema() -> dict[str, Any]:
    """The schema (draft 2020-12), in a stable order."""
    row = Environment.model_json_schema()
    definitions: dict[str, Any] = row.pop("$defs")
    for definition in (row, *definitions.values()):
        _loosen(definition)
        # Mappings merge, so any of a mapping's keys may be inherited; items of lists are replaced whole.
        if definition is not definitions["Extra"]:
            definition.pop("required", None)
    for key in NOT_IN_ROW:
        del row["properties"][key]
    name = _text(model.Name)
    definitions["Defaults"] = {**row, "description": "What lies beneath every row."}
    definitions["Row"] = {
        **row,
        "properties": {**row["properties"], EXTENDS: {**name, "description": "The row that this one builds on."}},
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "envbuild matrix",
        "description": "Environments for DeepSpeed ZeRO-3 offload, one row each.",
        "type": "object",
        "additionalProperties": False,
        "required": ["schema", "environments"],
        "properties": {
            "schema": {"const": SCHEMA},
            "defaults": {"anyOf": [{"$ref": "#/$defs/Defaults"}, {"type": "null"}]},
            "environments": {
                "type": "object",
                "minProperties": 1,
                "propertyNames": name,
                "additionalProperties": {"$ref": "#/$defs/Row"},
            },
        },
        "$defs": dict(sorted(definitions.items())),
    }


def dumps() -> str:
    """The schema as the text of its file."""
    return json.dumps(json_schema(), indent=2, ensure_ascii=True) + "\n"


def _text(annotated: Any) -> dict[str, Any]:
    constraints = typing.get_args(annotated)[1]
    schema = {"type": "string", "pattern": constraints.pattern, "maxLength": constraints.max_length}
    return {key: value for key, value in schema.items() if value is not None}


# The loader keeps every value as text; to an editor an unquoted 3.11 or true is none.
_LOOKS_LIKE_NUMBER = {_text(kind)["pattern"]: ["string", "number"] for kind in (model.Version, model.MajorMinor)}
_LOOKS_LIKE_NUMBER[_text(model.EnvValue)["pattern"]] = ["string", "number", "boolean"]


def _loosen(schema: Any) -> None:
    if isinstance(schema, list):
        for item in schema:
            _loosen(item)
    elif isinstance(schema, dict):
        if isinstance(schema.get("title"), str):
            # pydantic's own titles repeat the key.
            del schema["title"]
        pattern = schema.get("pattern")
        if isinstance(pattern, str) and schema.get("type") == "string" and pattern in _LOOKS_LIKE_NUMBER:
            schema["type"] = _LOOKS_LIKE_NUMBER[pattern]
        for value in schema.values():
            _loosen(value)
