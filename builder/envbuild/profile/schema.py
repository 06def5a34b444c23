"""The JSON Schema of a measurement, for those who read or write one; checked in as ``docs/measurement.schema.json``."""

from __future__ import annotations

import json
from typing import Any

from envbuild.profile.document import Document


def json_schema() -> dict[str, Any]:
    """The schema (draft 2020-12), in a stable order."""
    body = Document.model_json_schema(by_alias=True)
    definitions = body.pop("$defs")
    for definition in (body, *definitions.values()):
        _untitled(definition)
    body["required"] = ["schema", *body.get("required", ())]
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "envbuild measurement"}
    return {**head, **body, "$defs": dict(sorted(definitions.items()))}


def dumps() -> str:
    """The schema as the text of its file."""
    return json.dumps(json_schema(), indent=2, ensure_ascii=True) + "\n"


def _untitled(value: Any) -> None:
    """Without pydantic's own titles, which repeat the key."""
    if isinstance(value, list):
        for item in value:
            _untitled(item)
    elif isinstance(value, dict):
        if isinstance(value.get("title"), str):
            del value["title"]
        for item in value.values():
            _untitled(item)
