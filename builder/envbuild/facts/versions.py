"""Versions, compared as numbers and never as text (2.9 is older than 2.10)."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

from packaging.version import Version


@cache
def parse(text: str) -> Version:
    """The comparable form of a version that the domain types have already accepted."""
    return Version(text)


def within(text: str, since: str | None, through: str | None) -> bool:
    """Whether a version lies between two others, both included; None is an open end."""
    version = parse(text)
    return (since is None or parse(since) <= version) and (through is None or version <= parse(through))


def starts_with(text: str, prefix: str) -> bool:
    """Whether a version belongs to a series, by components: 2.18.1 to 2.18, and not 2.180 to 2.18."""
    return (text + ".").startswith(prefix + ".")


def neighbours(text: str, known: Iterable[str]) -> list[str]:
    """The nearest known versions below and above, for a message that names alternatives."""
    ordered = sorted(known, key=parse)
    below = [v for v in ordered if parse(v) < parse(text)]
    above = [v for v in ordered if parse(v) > parse(text)]
    return below[-1:] + above[:1]


def cuda_of_build(build: str) -> str | None:
    """``torch.version.cuda`` of a build variant: cu118 is 11.8, cu130 is 13.0, cpu is None."""
    digits = build.removeprefix("cu")
    return f"{digits[:-1]}.{digits[-1]}" if digits.isdigit() else None
