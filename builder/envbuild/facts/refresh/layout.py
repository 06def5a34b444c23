"""Pieces of YAML: where a node ends in its text, how a value is written, and what two parses have in common."""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping
from typing import Any

import yaml

from envbuild.facts.refresh.reading import Step, Value

_PLAIN = re.compile(r"[A-Za-z0-9<>=][A-Za-z0-9 ._+/=<>()*-]*[A-Za-z0-9)*]|[A-Za-z0-9]")
_LOOSE = re.compile(r"\w[\w .,;/+=()*-]*")


def is_alias(key: yaml.Node, value: yaml.Node) -> bool:
    """Whether a value is a reference to one that stands elsewhere."""
    # The parser gives an alias the node of its anchor, which stands further up.
    return value.start_mark.index < key.start_mark.index


def entry_end(key: yaml.Node, value: yaml.Node) -> int:
    """Where the last character of a key and its value is."""
    return key.end_mark.index if is_alias(key, value) else node_end(value)


def node_end(node: yaml.Node) -> int:
    """Where the last character of a node is: a block's own end lies behind the comments that follow it."""
    if isinstance(node, yaml.MappingNode) and not node.flow_style and node.value:
        return entry_end(*node.value[-1])
    if isinstance(node, yaml.SequenceNode) and not node.flow_style and node.value:
        return node_end(node.value[-1])
    return leaf_end(node)


def leaf_end(node: yaml.Node) -> int:
    """Where a scalar, or what is in braces, ends."""
    return int(node.end_mark.index)


def written(value: Value | Mapping[str, Any], *, flow: bool) -> str:
    """A value on one line, quoted where it has to be; ``flow`` where it stands in braces."""
    if isinstance(value, tuple):
        return f"[{', '.join(written(each, flow=True) for each in value)}]"
    if isinstance(value, Mapping):
        return braces(value)
    resolver: Any = yaml.resolver.Resolver()
    resolved = resolver.resolve(yaml.ScalarNode, value, (True, False))
    text = resolved == "tag:yaml.org,2002:str" or re.fullmatch(r"\d{4}-\d\d-\d\d|\d+", value) is not None
    plain = text and (_PLAIN.fullmatch(value) or (not flow and _LOOSE.fullmatch(value)))
    if plain:
        return value
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def braces(values: Mapping[str, Any]) -> str:
    """A mapping on one line."""
    return f"{{{', '.join(f'{written(key, flow=True)}: {written(each, flow=True)}' for key, each in values.items())}}}"


def block(values: Mapping[str, Any], column: int) -> list[str]:
    """A mapping on lines of its own."""
    lines: list[str] = []
    for key, value in values.items():
        head = f"{' ' * column}{written(key, flow=False)}:"
        if isinstance(value, Mapping):
            lines += [f"{head}\n", *block(value, column + 2)]
        else:
            lines.append(f"{head} {written(value, flow=False)}\n")
    return lines


def number(text: str) -> tuple[int, ...]:
    """What version-like keys (2.10.0, 12.6, cu118) are sorted by; other words are equal to one another."""
    found = re.fullmatch(r"(?:cu)?(\d+(?:\.\d+)*)", text)
    return tuple(int(part) for part in found[1].split(".")) if found else ()


def nodes(node: Any) -> list[Any]:
    """A node and all below it."""
    found = [node]
    if isinstance(node, yaml.MappingNode):
        found += [each for entry in node.value for child in entry for each in nodes(child)]
    elif isinstance(node, yaml.SequenceNode):
        found += [each for child in node.value for each in nodes(child)]
    return found


def at_path(data: Any, path: tuple[Step, ...]) -> Any:
    """What lies at a path in parsed data."""
    for step in path:
        data = data[step]
    return data


def put(data: Any, path: tuple[Step, ...], step: Step, value: Any) -> None:
    """Set a key, or add to a list, in parsed data."""
    target = at_path(data, path)
    if isinstance(target, list):
        target.append(value)
    else:
        target[step] = value


def comparable(data: Any) -> Any:
    """What two parses are compared by: text, however the parser read it."""
    if isinstance(data, Mapping):
        return {str(key): comparable(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [comparable(each) for each in data]
    if isinstance(data, datetime.date):
        return data.isoformat()
    return str(data)


def dotted(path: tuple[Step, ...]) -> str:
    """A path in one word."""
    return ".".join(map(str, path))
