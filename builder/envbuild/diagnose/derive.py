"""More captures from captures: what a value means, by the facts. A signature names the functions that it wants."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from envbuild.facts import Facts

Derive = Callable[[Mapping[str, str], Facts], Mapping[str, str]]


def derived(names: Iterable[str], captures: Mapping[str, str], facts: Facts) -> dict[str, str]:
    """The captures that functions add; a function that cannot say anything adds none."""
    made: dict[str, str] = {}
    for name in names:
        made |= {key: value for key, value in FUNCTIONS[name]({**captures, **made}, facts).items() if value}
    return made


def gcc_of_symbol(captures: Mapping[str, str], facts: Facts) -> Mapping[str, str]:
    return {}


def place_of_library(captures: Mapping[str, str], facts: Facts) -> Mapping[str, str]:
    return {}


FUNCTIONS: dict[str, Derive] = {"gcc_of_symbol": gcc_of_symbol, "place_of_library": place_of_library}
