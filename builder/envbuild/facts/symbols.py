"""Symbol versions of libstdc++.so.6: which GCC first gave them, and how far those of distributions go."""

from __future__ import annotations

from collections.abc import Iterable

from envbuild.facts.fact import Fact
from envbuild.facts.versions import parse, within
from envbuild.model import DottedNumber


class Runtime(Fact):
    """The newest symbol versions that a distribution release's libstdc++ provides."""

    glibcxx: DottedNumber
    cxxabi: DottedNumber


class GccSymbols(Fact):
    """A part of the history: family (GLIBCXX, CXXABI) -> number -> GCC release."""

    gcc: dict[str, dict[DottedNumber, DottedNumber]]


def gcc_of(parts: Iterable[GccSymbols], version: str) -> str | None:
    """The release that first gave a symbol version; None for one that is not known."""
    family, _, number = version.rpartition("_")
    found = (part.gcc.get(family, {}).get(number) for part in parts)
    return next((gcc for gcc in found if gcc is not None), None)


def newest_of(parts: Iterable[GccSymbols], gcc: str, family: str) -> str | None:
    """The newest symbol version of a release's own libstdc++; None for a GCC that is newer than what is known."""
    known = {number: since for part in parts for number, since in part.gcc.get(family, {}).items()}
    if not known or parse(gcc).major > max(parse(since).major for since in known.values()):
        return None
    fitting = [number for number, since in known.items() if within(gcc, since, None)]
    return f"{family}_{max(fitting, key=parse)}" if fitting else None
