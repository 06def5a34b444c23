"""A JSON text with its places: what stands where, how it was written, and what is not JSON about it.

DeepSpeed reads a file as Hjson, Hugging Face Trainer and Accelerate as JSON. So comments and a comma too many, which
Hjson allows, are read here, too, and noted as flaws; what else is not JSON ends the reading, and is a flaw as well.
The standard library's reader knows no places, keeps the last of two equal keys without a word, and turns 1e400 into
infinity.
"""

from __future__ import annotations

import os
import stat
import sys
from dataclasses import dataclass, field
from pathlib import Path

from envbuild.dsconfig.nodes import (
    ARRAY,
    BOOLEAN,
    DEEPEST,
    IN_WORDS,
    NULL,
    NUMBER,
    OBJECT,
    STRING,
    Flaw,
    Member,
    Node,
    Place,
    line_starts,
    place_of,
)  # fmt: skip
from envbuild.dsconfig.scanner import Reader, Stop
from envbuild.errors import InputError

__all__ = [
    "ARRAY", "BOOLEAN", "DEEPEST", "IN_WORDS", "LONGEST", "NULL", "NUMBER", "OBJECT", "STRING", "Document", "Flaw",
    "Member", "Node", "Place", "parse", "read",
]  # fmt: skip

# A configuration is some kilobytes. What is much longer is another kind of file.
LONGEST = 1 << 20


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
        return place_of(self.starts, start, end)


def read(name: str) -> Document:
    """The document in a file, or on standard input where the name is ``-``.

    Raises:
        InputError: There is nothing that can be read, or it is no text.
    """
    shown = "<stdin>" if name == "-" else name
    data = _standard_input() if name == "-" else _bytes(name)
    if len(data) > LONGEST:
        raise InputError(
            f"{shown}: longer than {LONGEST >> 20} MiB", hint="A configuration of DeepSpeed is some kilobytes of JSON."
        )
    return parse(_decoded(data, shown), shown)


def _standard_input() -> bytes:
    try:
        if sys.stdin is not None:
            return sys.stdin.buffer.read(LONGEST + 1)
        reason = "closed"
    except OSError as error:
        reason = error.strerror or str(error)
    raise InputError(f"<stdin>: {reason}", hint="Hand over a file: envbuild lint - < FILE")


def _bytes(name: str) -> bytes:
    path = Path(name)
    try:
        if not name:
            raise ValueError
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
        shown = _printable(name) or "''"
        raise InputError(f"{shown}: {reason}", hint="Name a file, or - for standard input.") from error


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
    starts = line_starts(before)
    return len(starts), len(before) - starts[-1] + 1


def parse(text: str, name: str = "<text>") -> Document:
    """The document that a text holds; whatever is in the text."""
    starts = line_starts(text)
    reader = Reader(text, starts)
    root: Node | None = None
    try:
        root = reader.whole()
    except Stop as stop:
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
