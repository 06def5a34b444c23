"""A page as a reader's program sees it: its tables with their exact numbers, its drawings, and every text."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any

VOID = frozenset({"meta", "link", "br", "hr", "img", "input"})


class Document(HTMLParser):
    """A page, parsed; fails where elements do not close in the order that they were opened.

    Attributes:
        tables: By id: rows of cells, each its text and its exact number.
        ids: Every id, in order.
        drawings: For each <svg> with a role: its accessible title.
        tags: Every element, with its attributes.
    """

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tables: dict[str, list[list[tuple[str, str | None]]]] = {}
        self.ids: list[str] = []
        self.drawings: list[dict[str, str | None]] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self._open: list[str] = []
        self._table: list[list[tuple[str, str | None]]] | None = None
        self.feed(text)
        self.close()
        assert not self._open, f"never closed: {self._open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        about = dict(attrs)
        self.tags.append((tag, about))
        if about.get("id"):
            self.ids.append(str(about["id"]))
        if tag == "svg" and about.get("role"):
            self.drawings.append(about)
        if tag == "table":
            self._table = self.tables.setdefault(str(about["id"]), [])
        elif self._table is not None and tag == "tr":
            self._table.append([])
        elif self._table is not None and tag == "td":
            self._table[-1].append(("", None))
        elif self._table is not None and tag == "data":
            text, _ = self._table[-1][-1]
            self._table[-1][-1] = (text, about["value"])
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open and self._open[-1] == tag, f"</{tag}> closes {self._open[-3:]}"
        self._open.pop()
        if tag == "table":
            self._table = None

    def handle_data(self, data: str) -> None:
        self.text.append(data)
        if self._table is not None and self._open and self._open[-1] in ("td", "data"):
            text, value = self._table[-1][-1]
            self._table[-1][-1] = (text + data, value)

    def rows(self, identity: str) -> list[list[Any]]:
        """A table's body: numbers as they are in the document, words, None for what was not measured."""
        return [[cell(*each) for each in row] for row in self.tables[identity] if row]


def cell(text: str, value: str | None) -> Any:
    """What JSON would have."""
    if value is None:
        return None if text == "–" else text
    return value if value in ("nan", "inf", "-inf") else float(value)


def expected(value: Any) -> Any:
    """A value of the JSON, as ``cell`` gives it."""
    return float(value) if isinstance(value, (int, float)) else value
