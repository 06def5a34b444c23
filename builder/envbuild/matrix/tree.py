"""YAML text to a tree whose every node knows its place.

The tree is built from parser events and not by ``yaml.load``: every scalar stays text (``python: 3.10`` is
not the number 3.1), places survive for error messages, and hostile input (nesting, aliases that multiply,
tags) is refused while it is read, with a stack of our own instead of recursion.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

import yaml

# A row is five levels deep. Deeper input is no matrix, and recursion over the tree stays harmless.
MAX_DEPTH = 24
# Nodes after aliases are followed. A thousand rows have some 100,000.
MAX_NODES = 500_000
MAX_BYTES = 16 * 1024 * 1024

LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_UNPRINTABLE = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]")
_NULLS = frozenset({"", "~", "null", "Null", "NULL"})


@dataclass(slots=True)
class Scalar:
    """A text, or None for an empty value; line and column count from 1."""

    line: int
    column: int
    text: str | None


@dataclass(slots=True)
class Entry:
    """One key of a mapping with its value; the place is the key's."""

    line: int
    column: int
    node: Node


@dataclass(slots=True)
class Sequence:
    """A list; the place is its start."""

    line: int
    column: int
    items: list[Node]


@dataclass(slots=True)
class Mapping:
    """Keys in the order of the file; the place is its start."""

    line: int
    column: int
    entries: dict[str, Entry]


Node = Scalar | Sequence | Mapping
KeyPath = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Problem:
    """Something wrong with the text itself; ``path`` leads to it as far as it is known."""

    line: int
    column: int
    message: str
    path: KeyPath = ()


class Unreadable(Exception):
    """The text cannot be read beyond a place; ``problems`` has what was found up to there."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__(problems[-1].message)
        self.problems = problems


def decode(raw: bytes) -> str:
    """The text of a file.

    Raises:
        Unreadable: It is not UTF-8, too large, or has control characters.
    """
    if len(raw) > MAX_BYTES:
        raise Unreadable([Problem(1, 1, f"the file is larger than {MAX_BYTES // 1024 // 1024} MiB")])
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = raw[: error.start].decode("utf-8-sig", errors="replace")
        raise Unreadable(
            [Problem(*_place(before), f"byte 0x{raw[error.start]:02x} is not UTF-8; save the file as UTF-8")]
        ) from None
    found = _UNPRINTABLE.search(text)
    if found:
        name = f"U+{ord(found[0]):04X}"
        raise Unreadable([Problem(*_place(text[: found.start()]), f"control character {name} is not allowed")])
    return text


def compose(text: str, loader: Any = LOADER) -> tuple[Node, list[Problem]]:
    """The tree of the text's only document, and what is wrong without ending the reading.

    Raises:
        Unreadable: The text is not YAML, or is YAML that a matrix may not contain.
    """
    return _Composer().compose(text, loader)


@dataclass(slots=True)
class _Frame:
    node: Sequence | Mapping
    anchor: str | None
    size_before: int
    height: int = 1
    key: Scalar | None = None
    waiting_for_key: bool = True
    duplicate: bool = False


class _Composer:
    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self.stack: list[_Frame] = []
        self.size = 0
        self.last = (1, 1)
        # By anchor: the node, its nodes with aliases followed, and its height.
        self.anchors: dict[str, tuple[Node, int, int]] = {}
        self.root: Node | None = None

    def compose(self, text: str, loader: Any) -> tuple[Node, list[Problem]]:
        documents = 0
        for event in self._events(text, loader):
            self.last = place = (event.start_mark.line + 1, event.start_mark.column + 1)
            kind = type(event)
            if kind is yaml.ScalarEvent:
                self._scalar(event, place)
            elif kind is yaml.MappingStartEvent:
                self._open(event, Mapping(*place, {}))
            elif kind is yaml.SequenceStartEvent:
                self._open(event, Sequence(*place, []))
            elif kind is yaml.MappingEndEvent or kind is yaml.SequenceEndEvent:
                self._close()
            elif kind is yaml.AliasEvent:
                self._alias(event.anchor, place)
            elif kind is yaml.DocumentStartEvent:
                documents += 1
                if documents > 1:
                    self._fail(place, "a second document begins here; a matrix is one document")
        if self.root is None:
            self._fail((1, 1), "the file is empty")
        return self.root, self.problems

    def _events(self, text: str, loader: Any) -> Iterator[Any]:
        try:
            yield from yaml.parse(text, Loader=loader)
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            place = (mark.line + 1, mark.column + 1) if mark else self.last
            said = ", ".join(part for part in (error.context, error.problem) if part)
            self._fail(place, f"not valid YAML: {said}")
        except (yaml.YAMLError, ValueError, OverflowError) as error:
            # A reader's error without a mark, or an escape outside Unicode in the pure Python parser.
            self._fail(self.last, f"not valid YAML: {str(error).splitlines()[0]}")

    def _fail(self, place: tuple[int, int], message: str) -> NoReturn:
        raise Unreadable([*self.problems, Problem(*place, message, self._path())])

    def _path(self) -> KeyPath:
        """Where the reading is: the open keys, and positions in open lists."""
        path: list[str | int] = []
        for frame in self.stack:
            if isinstance(frame.node, Sequence):
                path.append(len(frame.node.items))
            elif frame.key is not None and not frame.waiting_for_key:
                path.append(frame.key.text or "")
        return tuple(path)

    def _note(self, place: tuple[int, int], message: str) -> None:
        self.problems.append(Problem(*place, message, self._path()))

    def _check(self, event: Any, place: tuple[int, int], explicit: bool) -> None:
        if explicit:
            self._fail(
                place, f"the tag {quoted(event.tag or '!')} is not allowed; a matrix has texts, lists and mappings only"
            )
        self.size += 1
        if self.size > MAX_NODES:
            self._fail(place, f"more than {MAX_NODES:,} values, with aliases followed")

    def _scalar(self, event: Any, place: tuple[int, int]) -> None:
        # A plain scalar without a tag is (True, False), a quoted one (False, True); a tagged one neither.
        self._check(event, place, explicit=not any(event.implicit))
        text = None if event.implicit[0] and event.value in _NULLS else event.value
        node = Scalar(*place, text)
        if event.anchor is not None:
            self.anchors[event.anchor] = (node, 1, 0)
        self._add(node, place)

    def _open(self, event: Any, node: Sequence | Mapping) -> None:
        place = (node.line, node.column)
        self._check(event, place, explicit=not event.implicit)
        if len(self.stack) >= MAX_DEPTH:
            self._fail(place, f"nested deeper than {MAX_DEPTH} levels")
        if self.stack and type(self.stack[-1].node) is Mapping and self.stack[-1].waiting_for_key:
            self._fail(place, "a key must be text, not a list or a mapping")
        self.stack.append(_Frame(node, event.anchor, self.size - 1))

    def _close(self) -> None:
        frame = self.stack.pop()
        if frame.anchor is not None:
            self.anchors[frame.anchor] = (frame.node, self.size - frame.size_before, frame.height)
        if self.stack:
            self.stack[-1].height = max(self.stack[-1].height, frame.height + 1)
        self._add(frame.node, (frame.node.line, frame.node.column))

    def _alias(self, name: str, place: tuple[int, int]) -> None:
        if name in (frame.anchor for frame in self.stack):
            self._fail(place, f"the alias *{name} refers to itself")
        if name not in self.anchors:
            self._fail(place, f"the alias *{name} has no anchor")
        node, size, height = self.anchors[name]
        self.size += size
        if self.size > MAX_NODES:
            self._fail(place, f"more than {MAX_NODES:,} values, with aliases followed")
        if len(self.stack) + height > MAX_DEPTH:
            self._fail(place, f"nested deeper than {MAX_DEPTH} levels, with aliases followed")
        if self.stack:
            self.stack[-1].height = max(self.stack[-1].height, height + 1)
        self._add(node, place)

    def _add(self, node: Node, place: tuple[int, int]) -> None:
        if not self.stack:
            self.root = node
            return
        frame = self.stack[-1]
        parent = frame.node
        if isinstance(parent, Sequence):
            parent.items.append(node)
        elif frame.waiting_for_key:
            self._key(frame, parent, node, place)
        else:
            frame.waiting_for_key = True
            if frame.key is not None and not frame.duplicate:
                assert frame.key.text is not None
                parent.entries[frame.key.text] = Entry(frame.key.line, frame.key.column, node)

    def _key(self, frame: _Frame, parent: Mapping, node: Node, place: tuple[int, int]) -> None:
        frame.waiting_for_key = frame.duplicate = False
        frame.key = None
        if not isinstance(node, Scalar) or node.text is None:
            self._note(place, "a key must be text")
        elif node.text == "<<":
            self._note(place, "merge keys (<<) are not supported; use 'extends' or 'defaults'")
        else:
            # An alias to a scalar is a key at its own place.
            frame.key = Scalar(*place, node.text)
            frame.duplicate = node.text in parent.entries
            if frame.duplicate:
                self._note(place, f"is already set in line {parent.entries[node.text].line}")


def _place(before: str) -> tuple[int, int]:
    """Line and column of what follows a text, as YAML counts lines."""
    lines = re.split("\r\n|[\n\r\x85\u2028\u2029]", before)
    return len(lines), len(lines[-1]) + 1


def quoted(text: str) -> str:
    """A text of the user's for a one-line message: quoted, escaped, and not too long."""
    return repr(text if len(text) <= 60 else text[:57] + "...")


def plain(node: Node, left: list[int]) -> Any:
    """The node as dict, list, str and None.

    Args:
        left: One number: how many values may still be made; it is counted down. Aliases and inheritance can
            make a small file large, so the limit is on what comes out.

    Raises:
        OverflowError: There are more.
    """
    left[0] -= 1
    if left[0] < 0:
        raise OverflowError
    if isinstance(node, Scalar):
        return node.text
    if isinstance(node, Sequence):
        return [plain(item, left) for item in node.items]
    return {key: plain(entry.node, left) for key, entry in node.entries.items()}
