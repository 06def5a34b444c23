"""Symbol versions as numbers: ``GLIBCXX_3.4.9`` is older than ``GLIBCXX_3.4.29``."""

from __future__ import annotations

import re
from collections.abc import Iterable

# A family is words with letters in front; the numbers stand after the last underscore: CXXABI_1.3.11, CXXABI_TM_1.
_VERSION = re.compile(r"([A-Za-z][A-Za-z0-9]*(?:_[A-Za-z][A-Za-z0-9]*)*)_(\d{1,9}(?:\.\d{1,9}){0,9})", re.ASCII)

Numbers = tuple[int, ...]


def parse(version: str) -> tuple[str, Numbers] | None:
    """Family and numbers of a symbol version: ``("GLIBCXX", (3, 4, 29))``.

    None for one without an order (GLIBC_PRIVATE, GLIBC_ABI_DT_RELR, CXXABI_FLOAT128, libcudart.so.12): such a
    version is there or it is not.
    """
    found = _VERSION.fullmatch(version)
    if found is None:
        return None
    return found[1], tuple(int(number) for number in found[2].split("."))


def highest(versions: Iterable[str], family: str) -> str | None:
    """The newest version of a family, by number; None where none is of it."""
    of_family = [(parsed[1], text) for text in versions if (parsed := parse(text)) and parsed[0] == family]
    return max(of_family)[1] if of_family else None


def by_family(versions: Iterable[str]) -> dict[str, str]:
    """The newest version of every family that has an order, by family."""
    texts = list(versions)
    families = sorted({parsed[0] for text in texts if (parsed := parse(text))})
    return {family: found for family in families if (found := highest(texts, family)) is not None}
