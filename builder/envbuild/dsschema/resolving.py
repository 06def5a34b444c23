"""What a configuration comes to: every value, with the defaults of one release, and one hash of them all."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from envbuild.dsschema.releases import for_version
from envbuild.dsschema.types import Key, Schema, Section

AUTO = "auto"
_ZERO = "zero_optimization"


def resolve(config: Mapping[str, Any], version: str) -> dict[str, Any]:
    """Every key that a release reads, with the value that counts.

    What the file says under another spelling or an old name stands under the documented one; "auto" inside a section
    that a model reads is that model's default, as in plain DeepSpeed. Keys that nobody reads are kept as they are: they
    are part of what the file says. Nothing is validated: values of wrong types stay.
    """
    schema = for_version(version)
    resolved = _section(schema.root, config)
    zero = resolved.get(_ZERO)
    if isinstance(zero, dict):
        given = config.get(_ZERO)
        _by_stage(schema, zero, given if isinstance(given, Mapping) else {})
    return resolved


def digest(config: Mapping[str, Any], version: str) -> str:
    """SHA-256 of the resolved configuration: the same for two files that mean the same to that release."""
    # Not needed by those who only read a configuration, and not cheap: it brings OpenSSL.
    import hashlib

    text = json.dumps(_numbers(resolve(config, version)), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _section(section: Section, config: Mapping[str, Any]) -> dict[str, Any]:
    given = dict(config)
    _rename(section, given)
    found: dict[str, Any] = {}
    for key in section:
        name = next((each for each in key.names if each in given), None)
        value = given.pop(name) if name is not None else None
        for other in key.names:
            given.pop(other, None)
        # A model drops "auto" before it looks: the key is as good as not there.
        missing = name is None or (value == AUTO and section.extra == "forbid" and AUTO not in key.allowed)
        if key.deprecated is not None and missing:
            continue
        found[key.name] = _value(key, None if missing else value, missing)
    return found | given


def _value(key: Key, value: Any, missing: bool) -> Any:
    if key.section is None or key.section.extra == "open":
        return key.default if missing else value
    if isinstance(value, Mapping):
        return _section(key.section, value)
    # An optional section that is not there is off; one that is always read has its defaults.
    if missing and "null" not in key.types:
        return _section(key.section, key.default if isinstance(key.default, Mapping) else {})
    return value


def _rename(section: Section, given: dict[str, Any]) -> None:
    """Old names become new ones, as DeepSpeed does it when it reads the file."""
    for name in list(given):
        key = section.find(name)
        if key is None or key.deprecated is None or not key.deprecated.becomes:
            continue
        target = section.find(key.deprecated.new)
        word = {True: "true", False: "false"}.get(given[name]) if isinstance(given[name], bool) else None
        if target is None or word is None or any(each in given for each in target.names):
            continue
        given[target.name] = key.deprecated.becomes.get(word)
        del given[name]


def _by_stage(schema: Schema, zero: dict[str, Any], given: Mapping[str, Any]) -> None:
    stage = zero.get("stage")
    if isinstance(stage, bool) or stage not in (0, 1, 2, 3):
        return
    for name, values in schema.by_stage.items():
        if given.get(name) in (None, AUTO):
            zero[name] = values[int(stage)]


def _numbers(value: Any) -> Any:
    """5e8 and 500000000 are the same number."""
    if isinstance(value, dict):
        return {str(name): _numbers(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_numbers(each) for each in value]
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return int(value)
    return value
