"""``defaults`` and ``extends``: mappings merge key by key, everything else replaces."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Mapping as Rows
from dataclasses import dataclass

from envbuild.matrix.tree import Entry, Mapping, Problem, Scalar, quoted

# A reader has to hold the chain in the head.
MAX_CHAIN = 8
# How many mistyped parents get a suggestion: each looks at every row, so all of them would take their product.
_MAX_GUESSES = 20
# What all rows of a file may come to with everything inherited: ten thousand small rows have some 800,000 values. A
# file that is small may say `defaults` with much in it, and many rows.
MAX_VALUES = 2_000_000
EXTENDS = "extends"


def merge(below: Mapping, above: Mapping, left: list[int]) -> Mapping:
    """``above`` laid over ``below``; every value keeps its own place, an empty one takes the place too.

    Args:
        left: One number: how many entries may still be made; it is counted down.

    Raises:
        OverflowError: There are more.
    """
    left[0] -= len(below.entries) + len(above.entries)
    if left[0] < 0:
        raise OverflowError
    entries = dict(below.entries)
    for key, entry in above.entries.items():
        under = entries.get(key)
        node = entry.node
        if under is not None and isinstance(node, Mapping) and isinstance(under.node, Mapping):
            node = merge(under.node, node, left)
        entries[key] = Entry(entry.line, entry.column, node)
    return Mapping(above.line, above.column, entries)


@dataclass(frozen=True, slots=True)
class Resolved:
    """The rows with defaults and parents filled in; a row whose chain is broken has a problem instead.

    Attributes:
        too_many: The row at which all that was inherited became too much; no later one is there.
    """

    rows: dict[str, Mapping]
    problems: list[tuple[str, Problem]]
    too_many: str | None = None


class Resolver:
    """Follows ``extends`` through the rows of one file, each row merged once."""

    def __init__(self, rows: Rows[str, Mapping], defaults: Mapping | None) -> None:
        self._rows = rows
        self._defaults = defaults
        # By row: the merged mapping, None when its chain is broken, and how many rows lie beneath it.
        self._done: dict[str, tuple[Mapping | None, int]] = {}
        self._problems: dict[tuple[str, Problem], None] = {}
        self._guesses: dict[str, str] = {}
        self._left = [MAX_VALUES]

    def resolve(self) -> Resolved:
        """Every row, in the order of the file."""
        rows: dict[str, Mapping] = {}
        for name in self._rows:
            try:
                row = self._row(name)
            except OverflowError:
                return Resolved(rows, list(self._problems), too_many=name)
            if row is not None:
                rows[name] = row
        return Resolved(rows, list(self._problems))

    def _row(self, name: str) -> Mapping | None:
        # Walk up to a row that is done, or to the top; then merge back down.
        chain: dict[str, None] = {}
        current: str | None = name
        while current is not None and current not in self._done:
            if current in chain:
                self._circle([*chain], current)
                break
            chain[current] = None
            current = self._parent(current)
        for row in reversed(chain):
            if row not in self._done:
                self._done[row] = self._merged(row)
        return self._done[name][0]

    def _merged(self, name: str) -> tuple[Mapping | None, int]:
        row = self._rows[name]
        if EXTENDS not in row.entries:
            return (merge(self._defaults, row, self._left) if self._defaults else row), 0
        parent = self._parent(name)
        base, depth = self._done[parent] if parent is not None else (None, 0)
        if base is None:
            return None, 0
        if depth >= MAX_CHAIN:
            self._tell(name, f"more than {MAX_CHAIN} rows extend one another here")
            return None, 0
        own = Mapping(row.line, row.column, {key: e for key, e in row.entries.items() if key != EXTENDS})
        return merge(base, own, self._left), depth + 1

    def _parent(self, name: str) -> str | None:
        """The row that a row extends; a name that is none is a problem, told once."""
        entry = self._rows[name].entries.get(EXTENDS)
        if entry is None:
            return None
        if not isinstance(entry.node, Scalar) or entry.node.text is None:
            self._tell(name, "must be the name of another row")
        elif entry.node.text not in self._rows:
            self._tell(name, f"there is no row {quoted(entry.node.text)}{self._near(entry.node.text)}")
        else:
            return entry.node.text
        return None

    def _near(self, word: str) -> str:
        if word not in self._guesses and len(self._guesses) < _MAX_GUESSES:
            self._guesses[word] = near(word, self._rows)
        return self._guesses.get(word, "")

    def _circle(self, chain: list[str], again: str) -> None:
        circle = [*chain[chain.index(again) :], again]
        self._tell(circle[-2], f"runs in a circle: {' -> '.join(quoted(row) for row in circle[:10])}")
        for row in chain:
            self._done[row] = (None, 0)

    def _tell(self, name: str, message: str) -> None:
        node = self._rows[name].entries[EXTENDS].node
        self._problems[name, Problem(node.line, node.column, message)] = None


def near(word: str, known: Iterable[str]) -> str:
    """``; did you mean 'x'?`` when a known word is close, else nothing."""
    found = close(word, known)
    return f"; did you mean {found[0]!r}?" if found else ""


def close(word: str, known: Iterable[str]) -> list[str]:
    """The known word that is most like another, if one is like it at all."""
    import difflib

    return difflib.get_close_matches(word[:80], list(known), n=1)
