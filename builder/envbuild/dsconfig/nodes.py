"""What a JSON text is made of, each piece with its place."""

from __future__ import annotations

import bisect
import re
from typing import Any, NamedTuple

# DeepSpeed's own keys go six levels down.
DEEPEST = 64

OBJECT, ARRAY, STRING, NUMBER, BOOLEAN, NULL = "object", "array", "string", "number", "boolean", "null"
# For messages: what a value is, in words.
IN_WORDS = {
    OBJECT: "an object", ARRAY: "a list", STRING: "a string", NUMBER: "a number", BOOLEAN: "true or false",
    NULL: "null",
}  # fmt: skip


# Named tuples, here and in the rooms around: a small file costs imports above all, and a frozen dataclass takes five
# times as long to be made.
class Place(NamedTuple):
    """Where something stands: line and column from 1, in characters; offsets into the text from 0, the end excluded."""

    line: int
    column: int
    start: int
    end: int


class Member(NamedTuple):
    """A key with its value."""

    key: str
    place: Place
    node: Node


class Node(NamedTuple):
    """A value.

    Attributes:
        value: As Python has it: dict, list, str, int, float, bool or None; of two equal keys the last one counts.
        raw: As it is written.
        members: Of an object: every key with its value, in their order, equal ones too.
        items: Of a list.
    """

    kind: str
    value: Any
    raw: str
    place: Place
    members: tuple[Member, ...] = ()
    items: tuple[Node, ...] = ()

    def member(self, key: str) -> Member | None:
        """The key of that name; of two the last, which is the one that counts."""
        return next((each for each in reversed(self.members) if each.key == key), None)


class Flaw(NamedTuple):
    """Something that is wrong with the text itself.

    Attributes:
        kind: The last part of the rule's id (``json.KIND``).
        edit: What would mend it: (start, end, text); None where nobody can know.
    """

    kind: str
    message: str
    fix: str
    place: Place
    edit: tuple[int, int, str] | None = None


_LINE_END = re.compile(r"\r\n|\r|\n")


def line_starts(text: str) -> tuple[int, ...]:
    return (0, *(match.end() for match in _LINE_END.finditer(text)))


def place_of(starts: tuple[int, ...], start: int, end: int) -> Place:
    line = bisect.bisect_right(starts, start)
    return Place(line, start - starts[line - 1] + 1, start, end)
