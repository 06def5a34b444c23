"""Rules asked about thousands of combinations: each once for every set of values that it looks at.

A rule is a function of what it reads of a row. So what it reads is watched, and its answer is kept by that: a tree for
each rule, with a field at every fork, a branch for each value, and the number of errors at the end. A rule that would
read a field which has no value yet is undecided, and says which field it waits for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from envbuild.matrix.space import Space, Value
from envbuild.model import Environment

# Errors that a rule finds in a row.
Judge = Callable[[Environment], int]


class _Waits(Exception):
    def __init__(self, field: str) -> None:
        super().__init__(field)


class _Watched:
    """Stands in for a row whose fields are given one by one."""

    __slots__ = ("_read", "_space")

    def __init__(self, space: Space, read: Callable[[str], Value]) -> None:
        self._space = space
        self._read = read

    def __getattr__(self, name: str) -> Any:
        return self._space.attribute(name, self._read)


class _Node:
    """A place in a rule's tree: what it reads next, or what it says."""

    __slots__ = ("branches", "errors", "field")

    def __init__(self) -> None:
        self.field: str | None = None
        self.branches: dict[Value, _Node] = {}
        self.errors: int | None = None


class Verdicts:
    """What every rule says of combinations that may be incomplete."""

    def __init__(self, space: Space, judges: Sequence[Judge]) -> None:
        self._space = space
        self._trees = [(judge, _Node()) for judge in judges]
        self.every = tuple(range(len(judges)))
        self.asked = 0

    def ask(self, rule: int, values: Mapping[str, Value]) -> tuple[int | None, tuple[str, ...]]:
        """The errors that a rule finds, None while it waits for a field, and the fields that this stands on."""
        judge, node = self._trees[rule]
        path: list[str] = []
        while True:
            if node.errors is not None:
                return node.errors, tuple(path)
            if node.field is None:
                self._grow(judge, rule, values)
                continue
            if node.field not in values:
                return None, tuple(path)
            path.append(node.field)
            child = node.branches.get(values[node.field])
            if child is None:
                self._grow(judge, rule, values)
                child = node.branches[values[node.field]]
            node = child

    def _grow(self, judge: Judge, rule: int, values: Mapping[str, Value]) -> None:
        """Run the rule, and keep what it read and said."""
        self.asked += 1
        node, seen = self._trees[rule][1], set[str]()

        def read(field: str) -> Value:
            nonlocal node
            if field not in seen:
                node.field = field
                if field not in values:
                    raise _Waits(field)
                seen.add(field)
                node = node.branches.setdefault(values[field], _Node())
            return values[field]

        try:
            node.errors = judge(cast(Environment, _Watched(self._space, read)))
        except _Waits:
            return
