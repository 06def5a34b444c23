"""Text folded to a width: between words, and paths that are longer than a line behind a slash."""

from __future__ import annotations

import re


def fold(text: str, width: int, first: str = "", rest: str = "") -> list[str]:
    """Lines of at most ``width`` columns, the first behind ``first``, each further one behind ``rest``.

    Where the two leave too little room a line is a few words wide all the same.
    """
    room = [max(12, width - len(first)), max(12, width - len(rest))]
    made: list[str] = []
    current = ""
    for word in text.split():
        gap = " " if current else ""
        space = room[bool(made)]
        if len(current) + len(gap) + len(word) <= space:
            current += gap + word
            continue
        if len(word) > room[1]:
            *full, current = _broken(current + gap, word, space, room[1])
            made += full
            continue
        made.append(current)
        current = word
    made.append(current)
    return [f"{first if number == 0 else rest}{line}".rstrip() for number, line in enumerate(made)]


def _broken(current: str, word: str, space: int, room: int) -> list[str]:
    """A word that fits into no line, over several, behind what the current line has already."""
    made = []
    for part in re.split(r"(?<=[^/]/)", word):
        while len(current) + len(part) > space:
            # A piece that is longer than a line by itself is cut where the line ends.
            taken = max(0, space - len(current)) if len(part) > room else 0
            current, part = current + part[:taken], part[taken:]
            made.append(current.rstrip())
            current, space = "", room
        current += part
    return [*made, current]
