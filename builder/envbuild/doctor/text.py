"""Collected facts as words for people. They come from strange machines: no control character gets through."""

from __future__ import annotations

import re
import unicodedata

# What moves a cursor, sets a colour or a title: ECMA-48 control sequences, and what their ends leave behind.
_SEQUENCE = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[ -/]*[0-~]")
# Invisible characters that turn the reading direction or hide text (Unicode's "format" class).
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
# More of one string is never worth a reader's time, and nothing bounds what an image writes into one.
MAX_TEXT = 2000


def line(text: object, most: int = MAX_TEXT) -> str:
    """Any value as one line that a terminal can show; at most ``most`` characters."""
    said = str(text)
    cut = said[: 4 * most]
    plain = _SEQUENCE.sub("", cut)
    shown = "".join(" " if each in "\n\r\t\v\f" else "?" if _hidden(each) else each for each in plain)
    whole = " ".join(shown.split())
    return whole if len(whole) <= most and len(said) == len(cut) else f"{whole[: most - 3]}..."


def printable(text: str) -> str:
    """A text of several lines without anything that is not to be seen."""
    return "".join("?" if each != "\n" and _hidden(each) else each for each in text)


def _hidden(character: str) -> bool:
    return not character.isprintable() and unicodedata.category(character) in _HIDDEN


def count(number: int, one: str, many: str = "") -> str:
    """``1 error``, ``2 errors``."""
    return f"{number} {one if number == 1 else many or f'{one}s'}"


# What people who train models need not know, in the fewest words.
_GLOSSARY = (
    (r"\bR(?:UN)?PATH of", "RPATH, RUNPATH: folders that are written into the file which asks for the library"),
    (r"ld\.so\.cache", "ld.so.cache: the system's list of libraries, made by ldconfig"),
    (r"LD_LIBRARY_PATH", "LD_LIBRARY_PATH: your variable; its folders come before the system's"),
    (r"LD_PRELOAD|ld\.so\.preload", "LD_PRELOAD: libraries that are loaded before all others"),
)


def glossary(text: str) -> list[str]:
    """The words in a text that need one of explanation."""
    return [told for pattern, told in _GLOSSARY if re.search(pattern, text)]


def moment(taken: str) -> str:
    """A time for people: ``2026-11-30 10:00 UTC``; what is no such time, as it is."""
    found = re.fullmatch(r"(\d{4}-\d\d-\d\d)T(\d\d:\d\d)(?::[\d.]+)?(?:Z|\+00:00)", taken)
    return f"{found[1]} {found[2]} UTC" if found else line(taken, 40)
