"""Reading the facts from the package, once per process."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Any

import yaml

from envbuild.facts.types import Facts

# libyaml is about ten times faster, and is missing only from builds made without it.
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@cache
def load() -> Facts:
    """All facts. They are part of the package, so a failure here is a defect of envbuild."""
    return Facts.model_validate(
        {
            **_document("toolkits"),
            **_document("gpus"),
            **_document("distributions"),
            **_document("torch"),
            "deepspeed": _document("deepspeed"),
        }
    )


def _document(name: str) -> dict[str, Any]:
    text = files("envbuild.facts").joinpath(f"data/{name}.yaml").read_text(encoding="utf-8")
    document: dict[str, Any] = yaml.load(text, Loader=_Loader)
    return document
