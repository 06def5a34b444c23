"""Reads a text as JSON, with comments and commas too many noted and passed over; a list of flaws is what is wrong."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from envbuild.dsconfig.nodes import (
    ARRAY,
    BOOLEAN,
    DEEPEST,
    NULL,
    NUMBER,
    OBJECT,
    STRING,
    Flaw,
    Member,
    Node,
    Place,
    place_of,
)  # fmt: skip


class Stop(Exception):
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


class Reader:
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
        return place_of(self.starts, start, end)

    def _flaw(
        self, kind: str, message: str, fix: str, start: int, end: int, edit: tuple[int, int, str] | None = None
    ) -> None:
        self.flaws.append(Flaw(kind=kind, message=message, fix=fix, place=self._place(start, end), edit=edit))

    def _stop(self, kind: str, message: str, fix: str, start: int, end: int | None = None) -> Stop:
        end = min(len(self.text), start + 1) if end is None else end
        return Stop(Flaw(kind=kind, message=message, fix=fix, place=self._place(start, end)))

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

    def _no_value(self, written: str, start: int) -> Stop:
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

    def _broken_string(self) -> Stop:
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

    def _no_comma(self, before: int, closing: str) -> Stop:
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
