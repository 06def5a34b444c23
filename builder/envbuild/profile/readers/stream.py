"""A chrome trace, one event at a time: a file of gigabytes needs no more memory than its largest event."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from envbuild.errors import InputError
from envbuild.profile.readers.opened import pieces

# No event, and nothing in front of them, is as large.
_LARGEST = 64 * 1024 * 1024
_SPACE = " \t\r\n"


class _Text:
    """A buffer that refills itself."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._pieces = pieces(path)
        self.text = ""
        self.at = 0
        self.passed = 0
        self.over = False

    def more(self) -> bool:
        """Another piece behind what is left; False at the end."""
        piece = next(self._pieces, None)
        if piece is None:
            self.over = True
            return False
        self.passed += self.at
        self.text, self.at = self.text[self.at :] + piece, 0
        return True

    def peek(self) -> str:
        """The next letter that is no space; empty at the end."""
        while True:
            while self.at < len(self.text):
                if self.text[self.at] not in _SPACE:
                    return self.text[self.at]
                self.at += 1
            if not self.more():
                return ""

    def skip(self, letter: str) -> None:
        """Past that letter.

        Raises:
            InputError: Another one stands there.
        """
        found = self.peek()
        if found != letter:
            raise self.wrong(f"'{letter}' is missing" if found else "it ends in the middle: was it cut off?")
        self.at += 1

    def value(self) -> Any:
        """The next value.

        Raises:
            InputError: It is none, or it is too large.
        """
        self.peek()
        decoder = json.JSONDecoder()
        while True:
            try:
                found, end = decoder.raw_decode(self.text, self.at)
            except json.JSONDecodeError as error:
                # A value that is cut at the end of the buffer fails there, and only there.
                if len(self.text) - self.at > _LARGEST:
                    raise self.wrong(f"a value of more than {_LARGEST >> 20} MiB, or none at all") from error
                if not self.more():
                    problem = error.msg if error.pos < len(self.text) - 1 else "it ends in the middle: was it cut off?"
                    raise self.wrong(problem) from error
                continue
            except RecursionError as error:
                raise self.wrong("nested too deeply") from error
            except ValueError as error:
                raise self.wrong(str(error)[:200]) from error
            # A number may go on in the next piece.
            if end == len(self.text) and not self.over and not isinstance(found, (dict, list, str)) and self.more():
                continue
            self.at = end
            return found

    def wrong(self, problem: str) -> InputError:
        """An error with the place."""
        return InputError(f"{self.path}: not a trace of torch: at character {self.passed + self.at}: {problem}")


def events(path: Path, head: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The events of a trace, packed or not; what stands beside them, up to its size, goes into ``head``.

    Raises:
        InputError: It is no such trace, with the place.
    """
    text = _Text(path)
    if text.peek() == "[":
        yield from _array(text)
        return
    text.skip("{")
    while text.peek() != "}":
        name = text.value()
        if not isinstance(name, str):
            raise text.wrong("a name is missing")
        text.skip(":")
        if name == "traceEvents" and text.peek() == "[":
            yield from _array(text)
        else:
            head[name] = text.value()
        if text.peek() == ",":
            text.at += 1
    text.skip("}")


def _array(text: _Text) -> Iterator[dict[str, Any]]:
    text.skip("[")
    while text.peek() != "]":
        value = text.value()
        if isinstance(value, dict):
            yield value
        if text.peek() == ",":
            text.at += 1
        elif text.peek() != "]":
            raise text.wrong("',' is missing" if text.peek() else "it ends in the middle: was it cut off?")
    text.skip("]")
