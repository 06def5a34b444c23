"""matplotlib's SVG files as elements of a page: no metadata, ids of their own, and colours by CSS variables."""

from __future__ import annotations

import re
from xml.etree import ElementTree

# The names of the colours that a drawing may have; the page says what they are, in light and in dark.
PARTS = ("data_wait", "forward", "backward", "reduction", "optimizer", "checkpoint", "other")
COLOURS = ("text", "soft", "line", *(f"c-{each}" for each in (*range(8), *PARTS)))
_DROPPED = frozenset({"metadata", "style"})
_COLOUR = re.compile(r"#[0-9a-fA-F]{6}\b")
_REFERENCE = re.compile(r"url\(#([^)]+)\)")


def colour(name: str) -> str:
    """A colour's name: of numbers there are eight, which come again."""
    kind, _, number = name.partition("-")
    return f"{kind}-{int(number) % 8}" if number.isdigit() else name


def sentinel(name: str) -> str:
    """The colour that stands for a name while matplotlib draws."""
    return f"#{COLOURS.index(colour(name)) + 0x0A1B01:06x}"


_NAMES = {sentinel(name): f"var(--{name})" for name in COLOURS}


def inline(text: str, identity: str, *, title: str, description: str) -> str:
    """The file as an element that says what it is, every id in it under ``identity``.

    Raises:
        ValueError: It has a colour that no style of a reader could change.
    """
    root = ElementTree.fromstring(text)
    _clean(root)
    used = {found for each in root.iter() for found in _references(each)}
    for each in root.iter():
        _settle(each, used, identity)
    for name in ("width", "height", "version"):
        root.attrib.pop(name, None)
    root.set("role", "img")
    root.set("aria-labelledby", f"{identity}-title {identity}-desc")
    for place, (tag, said) in enumerate((("title", title), ("desc", description))):
        element = ElementTree.Element(tag, {"id": f"{identity}-{tag}"})
        element.text = said
        root.insert(place, element)
    # Without a namespace: inside HTML an <svg> has it by itself.
    return ElementTree.tostring(root, encoding="unicode")


def _clean(element: ElementTree.Element) -> None:
    element.tag = element.tag.rpartition("}")[2]
    # Line breaks between elements say nothing, and are a tenth of the page.
    if not (element.text or "").strip():
        element.text = None
    element.tail = None
    for child in list(element):
        if child.tag.rpartition("}")[2] in _DROPPED:
            element.remove(child)
        else:
            _clean(child)


def _references(element: ElementTree.Element) -> list[str]:
    found = [match[1] for value in element.attrib.values() for match in _REFERENCE.finditer(value)]
    return found + [value[1:] for name, value in element.attrib.items() if name.endswith("href")]


def _settle(element: ElementTree.Element, used: set[str], identity: str) -> None:
    attributes = {}
    for name, value in element.attrib.items():
        short = name.rpartition("}")[2]
        if short == "id":
            if value in used:
                attributes["id"] = f"{identity}-{value}"
        elif short == "href":
            attributes["href"] = f"#{identity}-{value[1:]}"
        else:
            attributes[short] = _REFERENCE.sub(lambda match: f"url(#{identity}-{match[1]})", _coloured(value))
    element.attrib.clear()
    element.attrib.update(attributes)


def _coloured(value: str) -> str:
    found = _COLOUR.sub(lambda match: _NAMES.get(match[0].lower(), match[0]), value)
    if _COLOUR.search(found):
        raise ValueError(f"a drawing has a colour of its own: {found}")
    return found
