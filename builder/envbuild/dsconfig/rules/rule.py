"""What a rule is."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from envbuild.dsconfig.context import Context
from envbuild.dsconfig.problem import Problem
from envbuild.dsconfig.view import View

Judge = Callable[[View, Context], Iterable[Problem]]


class Rule(NamedTuple):
    """A rule with the id it is cited by.

    Attributes:
        id: ``family.word``, such as ``schema.unknown``.
        title: What it holds a configuration to, in one line.
        source: Who says so; a problem may name another.
        since: The first DeepSpeed release it holds for; all where it is None.
        before: The first release it does not hold for any more.
    """

    id: str
    title: str
    judge: Judge
    source: str
    since: str | None = None
    before: str | None = None
