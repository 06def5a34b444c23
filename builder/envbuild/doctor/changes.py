"""One difference between two collections, and how to find it."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

Kind = Literal[
    "loader", "loading variable", "core package", "driver", "core system package", "package transaction", "toolkit",
    "compiler", "op", "limit", "variable", "python package", "system package", "kernel", "machine", "import",
]  # fmt: skip


_WORDS = {
    "loader": "loaded library", "loading variable": "variable", "core package": "Python package",
    "python package": "Python package", "core system package": "system package",
    "package transaction": "installed by", "op": "compiled op", "import": "and so",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One thing that is no longer what it was.

    Attributes:
        kind: What kind of thing; ``import`` is the effect, everything else may be its cause.
        old: What it was; None where it was not there.
        new: What it is; None where it is gone.
        note: What is known of the why.
    """

    kind: Kind
    name: str
    old: str | None
    new: str | None
    note: str = ""

    @property
    def what(self) -> str:
        """The kind of thing, in words."""
        return _WORDS.get(self.kind, self.kind)

    @property
    def effect(self) -> bool:
        """What came of the other changes, rather than a cause."""
        return self.kind == "import"


def changed(old: Mapping[str, str], new: Mapping[str, str]) -> Iterator[tuple[str, str | None, str | None]]:
    """Name, old and new value of what differs, by name."""
    for name in sorted(old.keys() | new.keys()):
        if old.get(name) != new.get(name):
            yield name, old.get(name), new.get(name)


def since_lines(old: tuple[str, ...], new: tuple[str, ...]) -> tuple[str, ...]:
    """Lines of a log that grows at its end, and of which only the last ones were kept: those behind the old end."""
    if not old:
        return ()
    last = len(new) - 1 - new[::-1].index(old[-1]) if old[-1] in new else None
    return new[last + 1 :] if last is not None else tuple(each for each in new if each > old[-1])


def elapsed(old: str, new: str) -> float | None:
    """Seconds between two times in ISO 8601; None where one of them is not such a time."""
    try:
        return (_time(new) - _time(old)).total_seconds()
    except ValueError:
        return None


def _time(text: str) -> datetime.datetime:
    # Python 3.10 does not read the Z.
    found = datetime.datetime.fromisoformat(text.replace("Z", "+00:00"))
    return found if found.tzinfo is not None else found.replace(tzinfo=datetime.timezone.utc)
