"""A YAML file that is changed in places and otherwise keeps every byte: comments, order, quotes, layout.

The parser tells where each node lies in the text; a change is a new text for that place. After every change the file is
parsed again and compared with what was meant, so that a layout nobody thought of is an error and never a wrong fact.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import yaml

from envbuild.errors import InputError
from envbuild.facts.refresh.layout import (
    at_path,
    block,
    braces,
    comparable,
    dotted,
    entry_end,
    is_alias,
    leaf_end,
    node_end,
    nodes,
    number,
    put,
    written,
)
from envbuild.facts.refresh.reading import Step, Value

# libyaml is about ten times faster, and is missing only from builds made without it.
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_WIDTH = 118


class Document:
    """The text of one facts file."""

    def __init__(self, text: str, place: str) -> None:
        self._text = text
        self._place = place
        self._data: Any = self._parse(text)
        self._kept: tuple[str, tuple[Any, list[Any], dict[int, str]]] | None = None

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
        """Give a key of an existing mapping a value; a new key comes after another one, or before the mark.

        Raises:
            InputError: The place cannot be changed by itself, such as one that is shared by an alias.
        """
        mapping = self._mapping(path)
        entry = next(((k, v) for k, v in mapping.value if k.value == key), None)
        flow = bool(mapping.flow_style)
        if entry is not None:
            if isinstance(entry[1], yaml.MappingNode):
                raise self._stuck(path, key)
            start, end = entry[1].start_mark.index, leaf_end(entry[1])
            text = written(value, flow=flow)
            if getattr(entry[1], "style", None) in ("|", ">"):
                raise self._stuck(path, key)
            if isinstance(entry[1], yaml.SequenceNode) and not entry[1].flow_style:
                raise self._stuck(path, key)
            changed = self._text[:start] + text + self._text[end:]
        else:
            changed = self._with_key(mapping, key, value, after)
        self._take(changed, path, key, value)

    def _with_key(self, mapping: yaml.MappingNode, key: str, value: Value, after: str | None) -> str:
        """The text with a new key: behind another one, or else before the mark, where a fact's values end."""
        text = f"{key}: {written(value, flow=bool(mapping.flow_style))}"
        behind = next((entry for entry in mapping.value if entry[0].value == after), None)
        stop = next((k for k, _ in mapping.value if k.value == "mark"), None)
        if mapping.flow_style:
            if behind is None and stop is not None:
                at = stop.start_mark.index
                return f"{self._text[:at]}{text}, {self._text[at:]}"
            end = leaf_end((behind or mapping.value[-1])[1])
            return f"{self._text[:end]}, {text}{self._text[end:]}"
        indent = " " * mapping.value[0][0].start_mark.column
        if behind is None and stop is not None:
            at = stop.start_mark.index
            return f"{self._text[:at]}{text}\n{indent}{self._text[at:]}"
        at = self._line_end(entry_end(*(behind or mapping.value[-1])))
        return f"{self._text[:at]}{indent}{text}\n{self._text[at:]}"

    def drop(self, path: tuple[Step, ...], key: str) -> None:
        """Remove a key of a mapping that has others; nothing happens when it is not there.

        Raises:
            InputError: As ``set``.
        """
        mapping = self._mapping(path)
        place = next((number for number, (k, _) in enumerate(mapping.value) if k.value == key), None)
        if place is None:
            return
        entry = mapping.value[place]
        if place == 0:
            raise self._stuck(path, key)
        if mapping.flow_style:
            start, end = leaf_end(mapping.value[place - 1][1]), leaf_end(entry[1])
        else:
            start, end = self._line_start(entry[0].start_mark.index), self._line_end(entry_end(*entry))
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
        parent = self._own(path[:here])
        nested: Any = dict(values)
        for step in reversed(path[here + 1 :]):
            nested = {str(step): nested}
        if isinstance(parent, yaml.SequenceNode) and not parent.flow_style and parent.value:
            end = self._line_end(node_end(parent.value[-1]))
            dash = self._text[self._line_start(parent.value[0].start_mark.index) :].partition("-")[0]
            lines = f"{dash}- {braces(nested)}\n"
            if len(lines) > _WIDTH:
                first, *rest = block(nested, len(dash) + 2)
                lines = "".join([f"{dash}- {first.lstrip()}", *rest])
            changed = self._text[:end] + lines + self._text[end:]
        elif isinstance(parent, yaml.MappingNode) and not parent.flow_style and parent.value:
            changed = self._added(parent, str(path[here]), nested, before)
        else:
            raise self._stuck(path, "")
        expected = copy.deepcopy(self._data)
        put(expected, path[:here], path[here], nested)
        self._check(changed, expected, path)

    def _added(self, parent: yaml.MappingNode, key: str, nested: Any, before: str | None) -> str:
        column = parent.value[0][0].start_mark.column
        name = written(key, flow=False)
        # One line where a neighbour is one, or where there is none, and where it fits.
        styles = [value.flow_style for _, value in parent.value if isinstance(value, yaml.MappingNode)]
        inline = (any(styles) or not styles) and not any(isinstance(value, Mapping) for value in nested.values())
        lines = [f"{' ' * column}{name}: {braces(nested)}\n"]
        if not inline or len(lines[0]) > _WIDTH + 1:
            lines = [f"{' ' * column}{name}:\n", *block(nested, column + 2)]
        stop = next((k for k, _ in parent.value if k.value == before), None)
        if stop is not None:
            at = self._line_start(stop.start_mark.index)
        else:
            smaller = [entry for entry in parent.value if number(entry[0].value) < number(key)]
            last = max(smaller, key=lambda entry: number(entry[0].value)) if smaller else parent.value[-1]
            at = self._line_end(entry_end(*last))
        return self._text[:at] + "".join(lines) + self._text[at:]

    def _own(self, path: tuple[Step, ...]) -> yaml.Node | None:
        """The node at a path, which nothing else in the file shares from now on."""
        shared, node = self._find(path)
        if shared:
            self._unshare()
            node = self._find(path)[1]
        return node

    def _mapping(self, path: tuple[Step, ...]) -> yaml.MappingNode:
        node = self._own(path)
        if not isinstance(node, yaml.MappingNode) or not node.value:
            raise self._stuck(path, "")
        return node

    def _events(self) -> tuple[list[Any], dict[int, str]]:
        """The aliases of the file, and the anchors that they refer to by their place."""
        return self._parsed()[1:]

    def _parsed(self) -> tuple[Any, list[Any], dict[int, str]]:
        """The nodes, aliases and anchors of the text as it is; worked out again when it has changed."""
        if self._kept is None or self._kept[0] is not self._text:
            self._kept = (self._text, (yaml.compose(self._text, Loader=_Loader), *self._shares()))
        return self._kept[1]

    def _shares(self) -> tuple[list[Any], dict[int, str]]:
        if "*" not in self._text:
            return [], {}
        events: list[Any] = list(yaml.parse(self._text, Loader=_Loader))
        aliases = [event for event in events if isinstance(event, yaml.AliasEvent)]
        used = {event.anchor for event in aliases}
        anchors = {event.start_mark.index: event.anchor for event in events if getattr(event, "anchor", None) in used}
        return aliases, {at: name for at, name in anchors.items() if self._text[at] == "&"}

    def _unshare(self) -> None:
        """Write what aliases stand for in their places: a change of one is no change of the others."""
        text = self._text
        places = sorted(self._events()[1].items(), reverse=True)
        while aliases := self._events()[0]:
            start, end = aliases[-1].start_mark.index, aliases[-1].end_mark.index
            copied = self._copy(aliases[-1].anchor, self._line_column(start))
            self._text = self._text[: len(self._text[:start].rstrip(" "))] + copied + self._text[end:]
        # An alias stands behind its anchor: the places of the anchors are what they were.
        for at, name in places:
            rest = self._text[at + 1 + len(name) :]
            before = self._text[:at].rstrip(" ") if rest.startswith("\n") else self._text[:at]
            self._text = before + rest.lstrip(" ")
        text, self._text = self._text, text
        self._check(text, self._data, ())

    def _copy(self, anchor: str, column: int) -> str:
        """What stands at an anchor, for a place behind a key in that column."""
        at = next(at for at, name in self._events()[1].items() if name == anchor)
        node = next(node for node in nodes(self._parsed()[0]) if node.start_mark.index == at)
        if not isinstance(node, yaml.MappingNode) or node.flow_style:
            return " " + self._text[at + 1 + len(anchor) : leaf_end(node)].strip()
        first = node.value[0][0].start_mark
        lines = self._text[self._line_start(first.index) : self._line_end(node_end(node))].splitlines()
        indent = " " * (column + 2)
        return "\n" + "\n".join(f"{indent}{line[first.column :]}" if line.strip() else line for line in lines)

    def _line_column(self, index: int) -> int:
        line = self._text[self._line_start(index) : index]
        return len(line) - len(line.lstrip(" "))

    def _find(self, path: tuple[Step, ...]) -> tuple[bool, yaml.Node | None]:
        """The node at a path, and whether it is also reached by another."""
        root, _, anchors = self._parsed()
        node: yaml.Node | None = root
        shared = False
        for step in path:
            if isinstance(node, yaml.SequenceNode) and isinstance(step, int):
                node = node.value[step] if step < len(node.value) else None
            elif isinstance(node, yaml.MappingNode):
                entry = next(((k, v) for k, v in node.value if k.value == str(step)), None)
                shared = shared or (entry is not None and is_alias(*entry))
                node = entry[1] if entry else None
            else:
                return shared, None
            shared = shared or (node is not None and node.start_mark.index in anchors)
        return shared, node

    def _take(self, changed: str, path: tuple[Step, ...], key: str, value: Value | None) -> None:
        expected = copy.deepcopy(self._data)
        if value is None:
            del at_path(expected, path)[key]
        else:
            put(expected, path, key, value)
        self._check(changed, expected, path)

    def _check(self, changed: str, expected: Any, path: tuple[Step, ...]) -> None:
        data = self._parse(changed)
        if comparable(data) != comparable(expected):
            raise InputError(f"{self._place}: {dotted(path)} cannot be changed in this layout")
        self._text, self._data = changed, data

    def _parse(self, text: str) -> Any:
        try:
            return yaml.load(text, Loader=_Loader)
        except yaml.YAMLError as error:
            raise InputError(f"{self._place}: {' '.join(str(error).split())}") from error

    def _line_start(self, index: int) -> int:
        return self._text.rfind("\n", 0, index) + 1

    def _line_end(self, index: int) -> int:
        # A block scalar ends where the next thing begins.
        end = self._text.find("\n", len(self._text[:index].rstrip()))
        if end < 0:
            self._text += "\n"
            return len(self._text)
        return end + 1

    def _stuck(self, path: tuple[Step, ...], key: str) -> InputError:
        where = ".".join(part for part in (dotted(path), key) if part)
        return InputError(f"{self._place}: {where} cannot be changed in this layout")
