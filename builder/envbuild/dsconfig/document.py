"""A JSON text with its places: what stands where, how it was written, and what is not JSON about it.

DeepSpeed reads a file as Hjson, Hugging Face Trainer and Accelerate as JSON. So comments and a comma too many, which
Hjson allows, are read here, too, and noted as flaws; what else is not JSON ends the reading, and is a flaw as well.
The standard library's reader knows no places, keeps the last of two equal keys without a word, and turns 1e400 into
infinity.
"""

from __future__ import annotations

import bisect
import math
import os
import re
import stat
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from envbuild.errors import InputError

# A configuration is some kilobytes. What is much longer is another kind of file.
LONGEST = 1 << 20
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A text that was read.

    Attributes:
        name: The file as the user named it.
        root: None where the text could not be understood; the flaws say why.
    """

    name: str
    text: str
    root: Node | None
    flaws: tuple[Flaw, ...] = ()
    starts: tuple[int, ...] = field(default=(0,), repr=False)

    def line(self, number: int) -> str:
        """A line without its end, for showing."""
        start = self.starts[number - 1]
        end = self.starts[number] if number < len(self.starts) else len(self.text)
        return self.text[start:end].rstrip("\r\n")

    def place(self, start: int, end: int) -> Place:
        """The place of a piece of the text."""
        return _place(self.starts, start, end)


def read(name: str) -> Document:
    """The document in a file, or on standard input where the name is ``-``.

    Raises:
        InputError: There is nothing that can be read, or it is no text.
    """
    shown = "<stdin>" if name == "-" else name
    data = sys.stdin.buffer.read(LONGEST + 1) if name == "-" else _bytes(name)
    if len(data) > LONGEST:
        raise InputError(
            f"{shown}: longer than {LONGEST >> 20} MiB", hint="A configuration of DeepSpeed is some kilobytes of JSON."
        )
    return parse(_decoded(data, shown), shown)


def _bytes(name: str) -> bytes:
    path = Path(name)
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            raise InputError(f"{name}: a folder", hint="Name the files: envbuild lint DIR/*.json")
        # `envbuild lint <(command)` is a pipe that somebody writes; a named one may have no writer, and never end.
        if not (stat.S_ISREG(mode) or (stat.S_ISFIFO(mode) and name.startswith(("/dev/fd/", "/proc/")))):
            raise InputError(
                f"{name}: neither a file nor standard input", hint="Hand it over with: envbuild lint - < NAME"
            )
        with path.open("rb") as file:
            return file.read(LONGEST + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "no name of a file"
        raise InputError(f"{_printable(name)}: {reason}", hint="Name a file, or - for standard input.") from error


def _printable(name: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in os.fsdecode(name))


def _decoded(data: bytes, name: str) -> str:
    if data.startswith((b"\xff\xfe", b"\xfe\xff")) or data[:4].count(0) >= 2:
        raise InputError(
            f"{name}:1:1: not UTF-8, but UTF-16 or UTF-32", hint="Save it as UTF-8: iconv -f UTF-16 -t UTF-8 FILE"
        )
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        good = data[: error.start].decode("utf-8")
        line, column = _position(good)
        raise InputError(
            f"{name}:{line}:{column}: not UTF-8: byte 0x{data[error.start]:02x}",
            hint="Save the file as UTF-8: iconv -f LATIN1 -t UTF-8 FILE",
        ) from error


def _position(before: str) -> tuple[int, int]:
    starts = _line_starts(before)
    return len(starts), len(before) - starts[-1] + 1


_LINE_END = re.compile(r"\r\n|\r|\n")


def _line_starts(text: str) -> tuple[int, ...]:
    return (0, *(match.end() for match in _LINE_END.finditer(text)))


def _place(starts: tuple[int, ...], start: int, end: int) -> Place:
    line = bisect.bisect_right(starts, start)
    return Place(line, start - starts[line - 1] + 1, start, end)


def parse(text: str, name: str = "<text>") -> Document:
    """The document that a text holds; whatever is in the text."""
    starts = _line_starts(text)
    reader = _Reader(text, starts)
    root: Node | None = None
    try:
        root = reader.whole()
    except _Stop as stop:
        reader.flaws.append(stop.flaw)
    if root is not None and root.kind != OBJECT:
        reader.flaws.append(
            Flaw(
                kind="object", message=f"the whole is {IN_WORDS[root.kind]}, not an object",
                fix="Begin the configuration with { and end it with }.", place=root.place,
            )
        )  # fmt: skip
        root = None
    return Document(name=name, text=text, root=root, flaws=tuple(reader.flaws), starts=starts)


class _Stop(Exception):
    def __init__(self, flaw: Flaw) -> None:
        super().__init__(flaw.message)
        self.flaw = flaw


_SPACE = re.compile(r"[ \t\r\n]*")
_COMMENT = re.compile(r"//[^\r\n]*|#[^\r\n]*|/\*.*?\*/", re.DOTALL)
_STRING = re.compile(r'"((?:[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*)"')
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?(?![0-9A-Za-z_.+])")
_WORD = re.compile(r"[^\s,:\[\]{}\"']+")
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))")
_ESCAPES = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_WORDS = {"true": (BOOLEAN, True), "false": (BOOLEAN, False), "null": (NULL, None)}
_PYTHON = {"True": "true", "False": "false", "None": "null"}
_NOT_FINITE = ("NaN", "Infinity", "-Infinity", "nan", "inf", "-inf")


class _Reader:
    """One pass over a text."""

    def __init__(self, text: str, starts: tuple[int, ...]) -> None:
        self.text = text
        self.starts = starts
        self.flaws: list[Flaw] = []
        self.at = 0

    def whole(self) -> Node:
        if self.text.startswith("\ufeff"):
            self._flaw("bom", "begins with a byte order mark", "Save it as UTF-8 without one.", 0, 1, (0, 1, ""))
            self.at = 1
        self._skip()
        if self.at == len(self.text):
            raise self._stop("empty", "there is nothing in it", "An empty configuration is {}.", 0, 0)
        root = self._value(0)
        self._skip()
        if self.at < len(self.text):
            raise self._stop("syntax", "something follows the end of the configuration", "Remove it.", self.at)
        return root

    def _place(self, start: int, end: int) -> Place:
        return _place(self.starts, start, end)

    def _flaw(
        self, kind: str, message: str, fix: str, start: int, end: int, edit: tuple[int, int, str] | None = None
    ) -> None:
        self.flaws.append(Flaw(kind=kind, message=message, fix=fix, place=self._place(start, end), edit=edit))

    def _stop(self, kind: str, message: str, fix: str, start: int, end: int | None = None) -> _Stop:
        end = min(len(self.text), start + 1) if end is None else end
        return _Stop(Flaw(kind=kind, message=message, fix=fix, place=self._place(start, end)))

    def _skip(self) -> None:
        """Past spaces and comments."""
        while True:
            match = _SPACE.match(self.text, self.at)
            assert match is not None
            self.at = match.end()
            if self.at == len(self.text) or self.text[self.at] not in "/#":
                return
            comment = _COMMENT.match(self.text, self.at)
            if comment is None:
                if self.text.startswith("/*", self.at):
                    raise self._stop("syntax", "this comment has no end", "End it with */, or remove it.", self.at)
                return
            self._flaw("comment", "a comment, which JSON does not have", "Remove it.", self.at, comment.end())
            self.at = comment.end()

    def _value(self, depth: int) -> Node:
        letter = self.text[self.at]
        if letter == "{":
            return self._object(depth + 1)
        if letter == "[":
            return self._array(depth + 1)
        start = self.at
        if letter == '"':
            value = self._string()
            return Node(STRING, value, self.text[start : self.at], self._place(start, self.at))
        if number := _NUMBER.match(self.text, start):
            self.at = number.end()
            return Node(NUMBER, self._number(number.group(), start), number.group(), self._place(start, self.at))
        word = _WORD.match(self.text, start)
        written = word.group() if word else letter
        if written in _WORDS:
            self.at = start + len(written)
            return Node(*_WORDS[written], written, self._place(start, self.at))
        raise self._no_value(written, start)

    def _no_value(self, written: str, start: int) -> _Stop:
        end = start + len(written)
        if written in _NOT_FINITE:
            return self._stop("number", f"{written} is no number of JSON", "Write a number.", start, end)
        if written in _PYTHON:
            return self._stop(
                "syntax", f"{written} is Python's word", f"JSON writes it {_PYTHON[written]}.", start, end
            )
        if written == "'":
            return self._stop("syntax", "a string in single quotes", 'JSON has double quotes: "...".', start)
        if written in ",}]:":
            return self._stop("syntax", f"a value is missing before '{written}'", "Write the value.", start)
        if written[0] in "+-.0123456789":
            said = f"'{_short(written)}' is no number of JSON"
            return self._stop("syntax", said, "Write it like 1, 0.5, -2 or 5e8.", start, end)
        return self._stop(
            "syntax", f"'{_short(written)}' is no value of JSON", 'A text stands in double quotes: "...".', start, end
        )

    def _number(self, written: str, start: int) -> int | float:
        end = start + len(written)
        if any(letter in written for letter in ".eE"):
            value = float(written)
            if math.isinf(value):
                raise self._stop(
                    "number", f"{_short(written)} is more than a number can be: it is read as infinity",
                    "Write a number that is meant.", start, end,
                )  # fmt: skip
            return value
        if len(written) > 40:
            raise self._stop(
                "number", f"a number of {len(written)} digits", "Write a number that is meant.", start, end
            )
        return int(written)

    def _string(self) -> str:
        match = _STRING.match(self.text, self.at)
        if match is None:
            raise self._broken_string()
        self.at = match.end()
        inner = match.group(1)
        if "\\" not in inner:
            return inner
        units = _ESCAPE.sub(lambda each: chr(int(each[1], 16)) if each[1] else _ESCAPES.get(each[2], each[2]), inner)
        # Two halves of one character become it, as everywhere; half a one stays what it is.
        return units.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")

    def _broken_string(self) -> _Stop:
        at = self.at + 1
        while at < len(self.text):
            letter = self.text[at]
            if letter == "\\":
                if not re.compile(r'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})').match(self.text, at):
                    return self._stop(
                        "syntax", f"'{self.text[at : at + 2]!s}' is no escape of JSON".replace("\n", " "),
                        "A backslash is written twice: \\\\.", at, min(len(self.text), at + 2),
                    )  # fmt: skip
                at += 2
                continue
            if letter == '"':
                break
            if letter < " ":
                if letter in "\r\n":
                    break
                return self._stop(
                    "syntax", f"a control character (U+{ord(letter):04X}) inside a string",
                    f"Write it \\u{ord(letter):04x}.", at,
                )  # fmt: skip
            at += 1
        return self._stop("syntax", "this string has no end on its line", 'End it with ".', self.at, at)

    def _deep(self, depth: int) -> None:
        if depth > DEEPEST:
            raise self._stop(
                "depth", f"nested deeper than {DEEPEST} levels", "No key of DeepSpeed is so deep.", self.at
            )

    def _object(self, depth: int) -> Node:
        self._deep(depth)
        opened = self.at
        members: list[Member] = []
        seen: dict[str, Place] = {}
        self.at += 1
        for _ in self._parts("}", opened):
            key, place = self._key()
            if key in seen:
                self._flaw(
                    "duplicate", f"the key '{_short(key)}' stands here again; first in line {seen[key].line}",
                    "Remove one of the two.", place.start, place.end,
                )  # fmt: skip
            seen.setdefault(key, place)
            self._skip()
            if not self.text.startswith(":", self.at):
                raise self._stop(
                    "syntax", f"no ':' between the key '{_short(key)}' and its value", "Write a colon.", place.end
                )
            self.at += 1
            self._skip()
            self._not_at_end(opened)
            members.append(Member(key, place, self._value(depth)))
        value = {member.key: member.node.value for member in members}
        return Node(OBJECT, value, self.text[opened : self.at], self._place(opened, self.at), members=tuple(members))

    def _key(self) -> tuple[str, Place]:
        start = self.at
        letter = self.text[start]
        if letter != '"':
            word = _WORD.match(self.text, start)
            if letter == "'":
                raise self._stop("syntax", "a key in single quotes", 'JSON has double quotes: "...".', start)
            if word is None:
                raise self._stop("syntax", f"a key is missing before '{letter}'", 'A key is written "name".', start)
            said = f"the key '{_short(word.group())}' is not in quotes"
            raise self._stop("syntax", said, 'Write it in double quotes: "name".', start, word.end())
        key = self._string()
        return key, self._place(start, self.at)

    def _array(self, depth: int) -> Node:
        self._deep(depth)
        opened = self.at
        self.at += 1
        items = [self._value(depth) for _ in self._parts("]", opened)]
        raw = self.text[opened : self.at]
        return Node(ARRAY, [item.value for item in items], raw, self._place(opened, self.at), items=tuple(items))

    def _parts(self, closing: str, opened: int) -> Iterator[None]:
        """Once for each part up to the closing bracket, with the commas between them; leaves behind the bracket."""
        first = True
        while True:
            before = self.at
            self._skip()
            self._not_at_end(opened)
            if self.text[self.at] == closing:
                break
            if not first:
                if self.text[self.at] != ",":
                    raise self._no_comma(before, closing)
                comma = self.at
                self.at += 1
                self._skip()
                self._not_at_end(opened)
                if self.text[self.at] == closing:
                    self._flaw(
                        "comma", f"a comma before '{closing}', where nothing follows", "Remove it.", comma, comma + 1,
                        (comma, comma + 1, ""),
                    )  # fmt: skip
                    break
            first = False
            yield
        self.at += 1

    def _no_comma(self, before: int, closing: str) -> _Stop:
        letter = self.text[self.at]
        if letter in "]}":
            said = f"'{letter}' where '{closing}' or a comma belongs"
            return self._stop("syntax", said, "Close brackets in the order they were opened.", self.at)
        return self._stop("syntax", "a comma is missing here", "Write a comma between two values.", before)

    def _not_at_end(self, opened: int) -> None:
        if self.at >= len(self.text):
            bracket = self.text[opened]
            line = self._place(opened, opened).line
            raise self._stop(
                "syntax", f"the file ends inside the '{bracket}' of line {line}", "Close every bracket.",
                len(self.text.rstrip()),
            )  # fmt: skip


def _short(text: str) -> str:
    shown = text if len(text) <= 40 else f"{text[:37]}..."
    return "".join(letter if letter.isprintable() else "?" for letter in shown)
