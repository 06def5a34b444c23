"""Changes of a text that leave the rest of it as it was written: order, indentation, numbers, ends of lines."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from envbuild.dsconfig.document import Document, Member, Node
from envbuild.dsconfig.problem import Edit


def apply(text: str, edits: Sequence[Edit]) -> str:
    """The text with replacements that do not overlap."""
    for start, end, new in sorted(edits, reverse=True):
        text = text[:start] + new + text[end:]
    return text


def rename(member: Member, name: str) -> Edit:
    """Another key in front of the same value."""
    return (member.place.start, member.place.end, json.dumps(name))


def replace(node: Node, written: str) -> Edit:
    """Another value."""
    return (node.place.start, node.place.end, written)


def removal(document: Document, node: Node, member: Member) -> tuple[Edit, ...]:
    """The key gone, with its comma."""
    if _commented(document):
        return ()
    number = node.members.index(member)
    if number + 1 < len(node.members):
        return ((member.place.start, node.members[number + 1].place.start, ""),)
    if number:
        return ((node.members[number - 1].node.place.end, member.node.place.end, ""),)
    return ((node.place.start + 1, node.place.end - 1, ""),)


def move(document: Document, node: Node, member: Member, target: Node) -> tuple[Edit, ...]:
    """The key at the end of another object, indented as its neighbours there are."""
    gone = removal(document, node, member)
    if not gone or not target.members:
        return ()
    text = document.text
    last = target.members[-1]
    space = re.search(r"[ \t\r\n]*$", text[: last.place.start])
    before = space.group() if space and space.group().strip(" \t") else " "
    written = text[member.place.start : member.node.place.end]
    moved = _indented(written, _indentation(document, member), _indentation(document, last))
    at = last.node.place.end
    if gone[0][0] < at < gone[0][1]:
        return ()
    return (*gone, (at, at, f",{before}{moved}"))


def _indentation(document: Document, member: Member) -> str:
    """What stands before the first word of the line that a key is in."""
    blank = re.match(r"[ \t]*", document.line(member.place.line))
    return blank.group() if blank else ""


def _indented(text: str, old: str, new: str) -> str:
    # No string of JSON goes over lines: what begins a line is nothing but indentation.
    return re.sub(rf"(\r\n|\r|\n)(?:{re.escape(old)})?", lambda end: end.group(1) + new, text)


def _commented(document: Document) -> bool:
    """Whether what would be moved or removed may leave a comment behind that belongs to it."""
    return any(flaw.kind == "comment" for flaw in document.flaws)
