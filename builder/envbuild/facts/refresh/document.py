"""A YAML file that is changed in places and otherwise keeps every byte: comments, order, quotes, layout.

The parser tells where each node lies in the text; a change is a new text for that place. After every change the file is
parsed again and compared with what was meant, so that a layout nobody thought of is an error and never a wrong fact.
"""

from __future__ import annotations

import copy
import datetime
import re
from collections.abc import Mapping
from typing import Any

import yaml

from envbuild.errors import InputError
from envbuild.facts.refresh.reading import Step, Value

# libyaml is about ten times faster, and is missing only from builds made without it.
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_Plain = re.compile(r"[A-Za-z0-9<>=][A-Za-z0-9 ._+/=<>()*-]*[A-Za-z0-9)*]|[A-Za-z0-9]")
_WIDTH = 118


class Document:
    """The text of one facts file."""

    def __init__(self, text: str, place: str) -> None:
        self._text = text
        self._place = place
        self._data: Any = self._parse(text)

    @property
    def text(self) -> str:
        """The file as it is now."""
        return self._text

    def get(self, path: tuple[Step, ...]) -> dict[str, Value] | None:
        """The scalars and lists of scalars of a mapping, as text; None where there is no such mapping."""
        node = self._find(path)[1]
        if not isinstance(node, yaml.MappingNode):
            return None
        found: dict[str, Value] = {}
        for key, value in node.value:
            if isinstance(value, yaml.ScalarNode):
                found[key.value] = value.value
            elif isinstance(value, yaml.SequenceNode) and all(
                isinstance(each, yaml.ScalarNode) for each in value.value
            ):
                found[key.value] = tuple(each.value for each in value.value)
        return found

    def length(self, path: tuple[Step, ...]) -> int:
        """How many entries a list has; 0 where there is none."""
        node = self._find(path)[1]
        return len(node.value) if isinstance(node, yaml.SequenceNode) else 0

    def set(self, path: tuple[Step, ...], key: str, value: Value, *, after: str | None = None) -> None:
        """Give a key of an existing mapping a value; a new key comes after another one, or last.

        Raises:
            InputError: The place cannot be changed by itself, such as one that is shared by an alias.
        """
        mapping = self._own(path)
        entry = next(((k, v) for k, v in mapping.value if k.value == key), None)
        flow = bool(mapping.flow_style)
        if entry is not None:
            if _is_alias(*entry) or isinstance(entry[1], yaml.MappingNode):
                raise self._stuck(path, key)
            start, end = entry[1].start_mark.index, _leaf_end(entry[1])
            text = _written(value, flow=flow)
            if getattr(entry[1], "style", None) in ("|", ">"):
                raise self._stuck(path, key)
            if isinstance(entry[1], yaml.SequenceNode) and not entry[1].flow_style:
                raise self._stuck(path, key)
            changed = self._text[:start] + text + self._text[end:]
        else:
            before = next(((k, v) for k, v in mapping.value if k.value == after), mapping.value[-1])
            if flow:
                end = _leaf_end(before[1])
                changed = f"{self._text[:end]}, {key}: {_written(value, flow=True)}{self._text[end:]}"
            else:
                end = self._line_end(_entry_end(*before))
                indent = " " * mapping.value[0][0].start_mark.column
                changed = f"{self._text[:end]}{indent}{key}: {_written(value, flow=False)}\n{self._text[end:]}"
        self._take(changed, path, key, value)

    def drop(self, path: tuple[Step, ...], key: str) -> None:
        """Remove a key of a mapping that has others; nothing happens when it is not there.

        Raises:
            InputError: As ``set``.
        """
        mapping = self._own(path)
        place = next((number for number, (k, _) in enumerate(mapping.value) if k.value == key), None)
        if place is None:
            return
        entry = mapping.value[place]
        if place == 0 or _is_alias(*entry):
            raise self._stuck(path, key)
        if mapping.flow_style:
            start, end = _leaf_end(mapping.value[place - 1][1]), _leaf_end(entry[1])
        else:
            start, end = self._line_start(entry[0].start_mark.index), self._line_end(_entry_end(*entry))
        self._take(self._text[:start] + self._text[end:], path, key, None)

    def add(self, path: tuple[Step, ...], values: Mapping[str, Value], *, before: str | None = None) -> None:
        """Add a mapping at a path that is not there yet, and the mappings above it that are not.

        A new key of the mapping above is sorted in behind the nearest smaller version, where its keys are versions;
        else it stands before ``before``, or last.

        Raises:
            InputError: The place cannot be added to.
        """
        here = len(path) - 1
        while here and self._find(path[:here])[1] is None:
            here -= 1
        parent = self._find(path[:here])[1]
        nested: Any = dict(values)
        for step in reversed(path[here + 1 :]):
            nested = {str(step): nested}
        if isinstance(parent, yaml.SequenceNode) and not parent.flow_style and parent.value:
            end = self._line_end(_node_end(parent.value[-1]))
            dash = self._text[self._line_start(parent.value[0].start_mark.index) :].partition("-")[0]
            lines = f"{dash}- {_flow(nested)}\n"
            if len(lines) > _WIDTH:
                first, *rest = _block(nested, len(dash) + 2)
                lines = "".join([f"{dash}- {first.lstrip()}", *rest])
            changed = self._text[:end] + lines + self._text[end:]
        elif (
            isinstance(parent, yaml.MappingNode) and not parent.flow_style and parent.value and path[:here] is not None
        ):
            changed = self._added(parent, str(path[here]), nested, before)
        else:
            raise self._stuck(path, "")
        expected = copy.deepcopy(self._data)
        _down(expected, path[:here], path[here], nested)
        self._check(changed, expected, path)

    def _added(self, parent: yaml.MappingNode, key: str, nested: Any, before: str | None) -> str:
        self._shared(parent, (key,))
        column = parent.value[0][0].start_mark.column
        name = _written(key, flow=False)
        # One line where a neighbour is one, or where there is none, and where it fits.
        styles = [value.flow_style for _, value in parent.value if isinstance(value, yaml.MappingNode)]
        inline = (any(styles) or not styles) and not any(isinstance(value, Mapping) for value in nested.values())
        lines = [f"{' ' * column}{name}: {_flow(nested)}\n"]
        if not inline or len(lines[0]) > _WIDTH + 1:
            lines = [f"{' ' * column}{name}:\n", *_block(nested, column + 2)]
        stop = next((k for k, _ in parent.value if k.value == before), None)
        if stop is not None:
            at = self._line_start(stop.start_mark.index)
        else:
            smaller = [entry for entry in parent.value if _number(entry[0].value) < _number(key)]
            last = max(smaller, key=lambda entry: _number(entry[0].value)) if smaller else parent.value[-1]
            at = self._line_end(_entry_end(*last))
        return self._text[:at] + "".join(lines) + self._text[at:]

    def _own(self, path: tuple[Step, ...]) -> yaml.MappingNode:
        shared, node = self._find(path)
        if not isinstance(node, yaml.MappingNode) or not node.value:
            raise self._stuck(path, "")
        if shared:
            raise InputError(f"{self._place}: {_dotted(path)} is shared by a YAML alias, so it is not changed here")
        self._shared(node, path)
        return node

    def _shared(self, node: yaml.Node, path: tuple[Step, ...]) -> None:
        anchors = re.match(r"&([^\s,\[\]{}]+)", self._text[node.start_mark.index :])
        before = self._text[: node.start_mark.index].rstrip()
        anchor = anchors or re.search(r"&([^\s,\[\]{}]+)$", before)
        if anchor and re.search(rf"\*{re.escape(anchor[1])}(?=[\s,}}\]]|$)", self._text):
            raise InputError(f"{self._place}: {_dotted(path)} is shared by a YAML alias, so it is not changed here")

    def _find(self, path: tuple[Step, ...]) -> tuple[bool, yaml.Node | None]:
        """The node at a path, and whether it lies behind an alias."""
        node: yaml.Node | None = yaml.compose(self._text, Loader=_Loader)
        shared = False
        for step in path:
            if isinstance(node, yaml.SequenceNode) and isinstance(step, int):
                node = node.value[step] if step < len(node.value) else None
            elif isinstance(node, yaml.MappingNode):
                entry = next(((k, v) for k, v in node.value if k.value == str(step)), None)
                shared = shared or (entry is not None and _is_alias(*entry))
                node = entry[1] if entry else None
            else:
                return shared, None
        return shared, node

    def _take(self, changed: str, path: tuple[Step, ...], key: str, value: Value | None) -> None:
        expected = copy.deepcopy(self._data)
        if value is None:
            del _at(expected, path)[key]
        else:
            _down(expected, path, key, value)
        self._check(changed, expected, path)

    def _check(self, changed: str, expected: Any, path: tuple[Step, ...]) -> None:
        data = self._parse(changed)
        if _plain(data) != _plain(expected):
            raise InputError(f"{self._place}: {_dotted(path)} cannot be changed in this layout")
        self._text, self._data = changed, data

    def _parse(self, text: str) -> Any:
        try:
            return yaml.load(text, Loader=_Loader)
        except yaml.YAMLError as error:
            raise InputError(f"{self._place}: {' '.join(str(error).split())}") from error

    def _line_start(self, index: int) -> int:
        return self._text.rfind("\n", 0, index) + 1

    def _line_end(self, index: int) -> int:
        end = self._text.find("\n", index)
        if end < 0:
            self._text += "\n"
            return len(self._text)
        return end + 1

    def _stuck(self, path: tuple[Step, ...], key: str) -> InputError:
        where = ".".join(part for part in (_dotted(path), key) if part)
        return InputError(f"{self._place}: {where} cannot be changed in this layout")


def _is_alias(key: yaml.Node, value: yaml.Node) -> bool:
    # The parser gives an alias the node of its anchor, which stands further up.
    return value.start_mark.index < key.start_mark.index


def _entry_end(key: yaml.Node, value: yaml.Node) -> int:
    return key.end_mark.index if _is_alias(key, value) else _node_end(value)


def _node_end(node: yaml.Node) -> int:
    """Where the last character of a node is: a block's own end lies behind the comments that follow it."""
    if isinstance(node, yaml.MappingNode) and not node.flow_style and node.value:
        return _entry_end(*node.value[-1])
    if isinstance(node, yaml.SequenceNode) and not node.flow_style and node.value:
        return _node_end(node.value[-1])
    return _leaf_end(node)


def _leaf_end(node: yaml.Node) -> int:
    return int(node.end_mark.index)


def _written(value: Value | Mapping[str, Any], *, flow: bool) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(_written(each, flow=True) for each in value)}]"
    if isinstance(value, Mapping):
        return _flow(value)
    resolver: Any = yaml.resolver.Resolver()
    resolved = resolver.resolve(yaml.ScalarNode, value, (True, False))
    text = resolved == "tag:yaml.org,2002:str" or re.fullmatch(r"\d{4}-\d\d-\d\d|\d+", value) is not None
    plain = text and (_Plain.fullmatch(value) or (not flow and re.fullmatch(r"[\w][\w .,;/+=()*-]*", value)))
    if plain:
        return value
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _flow(values: Mapping[str, Any]) -> str:
    return (
        f"{{{', '.join(f'{_written(key, flow=True)}: {_written(each, flow=True)}' for key, each in values.items())}}}"
    )


def _block(values: Mapping[str, Any], column: int) -> list[str]:
    lines: list[str] = []
    for key, value in values.items():
        head = f"{' ' * column}{_written(key, flow=False)}:"
        if isinstance(value, Mapping):
            lines += [f"{head}\n", *_block(value, column + 2)]
        else:
            lines.append(f"{head} {_written(value, flow=False)}\n")
    return lines


def _number(text: str) -> tuple[int, ...]:
    """What version-like keys (2.10.0, 12.6, cu118) are sorted by; other words are equal to one another."""
    found = re.fullmatch(r"(?:cu)?(\d+(?:\.\d+)*)", text)
    return tuple(int(part) for part in found[1].split(".")) if found else ()


def _at(data: Any, path: tuple[Step, ...]) -> Any:
    for step in path:
        data = data[step]
    return data


def _down(data: Any, path: tuple[Step, ...], step: Step, value: Any) -> None:
    target = _at(data, path)
    if isinstance(target, list):
        target.append(value)
    else:
        target[step] = value


def _plain(data: Any) -> Any:
    """What two parses are compared by: text, however the parser read it."""
    if isinstance(data, Mapping):
        return {str(key): _plain(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_plain(each) for each in data]
    if isinstance(data, datetime.date):
        return data.isoformat()
    return str(data)


def _dotted(path: tuple[Step, ...]) -> str:
    return ".".join(map(str, path))
