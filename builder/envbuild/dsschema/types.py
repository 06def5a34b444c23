"""What is known of one release: sections and keys."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple

# Who looks at an unknown key of a section.
FORBID = "forbid"  # a model of pydantic: it is refused
IGNORE = "ignore"  # keys are asked for by name: it is passed over
OPEN = "open"  # the section is handed on as it is: others may ask for more


class Deprecation(NamedTuple):
    """A key that another one took the place of.

    Attributes:
        new: The other one, beside it; empty where there is none.
        becomes: What true and false become there; empty where the value of the old one has no effect.
    """

    new: str
    message: str
    becomes: Mapping[str, Any]


class Key(NamedTuple):
    """One key.

    Attributes:
        names: Every spelling that is read; the first is the one that documentation uses.
        types: JSON types it is declared with, or that its default has; empty where nothing says.
        default: What counts where it is not given.
        allowed: Its values, where they are a list.
        bounds: (``gt``, ``ge``, ``lt`` or ``le``, number).
        takes: Letters of the sample values that DeepSpeed took without an error (see extract.SAMPLES).
    """

    names: tuple[str, ...]
    types: tuple[str, ...]
    default: Any
    allowed: tuple[Any, ...] = ()
    bounds: tuple[tuple[str, float], ...] = ()
    takes: str = ""
    required: bool = False
    deprecated: Deprecation | None = None
    section: Section | None = None

    @property
    def name(self) -> str:
        """The spelling of the documentation."""
        return self.names[0]


class Section:
    """An object: its keys, and what becomes of others.

    Attributes:
        extra: forbid, ignore or open.
        model: The class of DeepSpeed that reads it; empty where a function does.
        removed: Keys that are refused, because what they switched on is gone, with DeepSpeed's words.
        entries: How to make each key, by every spelling of it: few of them are asked for.
    """

    def __init__(
        self, *, extra: str, model: str, removed: Mapping[str, str], entries: Mapping[str, Callable[[], Key]]
    ) -> None:
        self.extra = extra
        self.model = model
        self.removed = removed
        self.entries = entries
        self._known: dict[str, Key] = {}

    def find(self, name: str) -> Key | None:
        """The key of that spelling."""
        if name not in self._known:
            entry = self.entries.get(name)
            if entry is None:
                return None
            self._known[name] = entry()
        return self._known[name]

    @property
    def spellings(self) -> tuple[str, ...]:
        """Every spelling of every key."""
        return tuple(self.entries)

    def __iter__(self) -> Iterator[Key]:
        seen = set()
        for name in self.entries:
            key = self.find(name)
            assert key is not None
            if key.name not in seen:
                seen.add(key.name)
                yield key


class Schema(NamedTuple):
    """What one release knows.

    Attributes:
        version: As it was asked for.
        measured: The release that the data is of.
        pydantic: Whose rules of conversion its models have: 1 or 2.
        by_stage: Keys of zero_optimization whose default depends on the stage: one value for each of 0 to 3.
        optimizers: Types of optimizers that DeepSpeed has of its own, in lower case.
        schedulers: Its schedulers, each with its parameters and their defaults.
    """

    version: str
    measured: str
    pydantic: int
    root: Section
    by_stage: Mapping[str, tuple[Any, ...]]
    optimizers: tuple[str, ...]
    schedulers: Mapping[str, Mapping[str, Any]]

    @property
    def exact(self) -> bool:
        """Whether the data is of the very release that was asked for."""
        return self.version == self.measured

    def find(self, path: str) -> Key | None:
        """The key at a path, such as ``zero_optimization.stage``."""
        section: Section | None = self.root
        key = None
        for word in path.split("."):
            key = section.find(word) if section else None
            section = key.section if key else None
        return key

    def homes(self, name: str) -> tuple[str, ...]:
        """Every path that ends in a key of that spelling, shortest first."""
        return _homes(self.root).get(name, ())

    def sections(self) -> Iterator[tuple[str, Section]]:
        """Every section with its path; the whole has an empty one."""
        return _sections(self.root)


def _sections(root: Section) -> Iterator[tuple[str, Section]]:
    todo = [("", root)]
    while todo:
        path, section = todo.pop(0)
        yield path, section
        todo += [
            (f"{path}.{key.name}" if path else key.name, key.section) for key in section if key.section is not None
        ]


@cache
def _homes(root: Section) -> Mapping[str, tuple[str, ...]]:
    # A file may ask for thousands of names.
    found: dict[str, list[str]] = {}
    for path, section in _sections(root):
        for name in section.entries:
            found.setdefault(name, []).append(f"{path}.{name}" if path else name)
    return {name: tuple(sorted(paths, key=lambda each: each.count("."))) for name, paths in found.items()}
