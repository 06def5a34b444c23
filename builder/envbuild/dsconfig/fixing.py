"""Mends what can be mended without asking: one change after another, until nothing is left that could be."""

from __future__ import annotations

from dataclasses import dataclass

from envbuild.dsconfig.context import Context
from envbuild.dsconfig.document import Document, parse
from envbuild.dsconfig.editing import apply
from envbuild.dsconfig.linting import judge
from envbuild.model.finding import Finding

# A file of a megabyte has no more places than that where something could be wrong and be mended.
_MOST = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Fixed:
    """A text that was mended.

    Attributes:
        document: What it is now.
        mended: What was wrong, each with its place in the text as it then was.
    """

    document: Document
    mended: tuple[Finding, ...]


def fix(document: Document, context: Context, *, wanted: frozenset[str] | None = None) -> Fixed:
    """The document with everything mended that has one obvious remedy; ``wanted``: only what these rules find."""
    mended: list[Finding] = []
    while len(mended) < _MOST:
        found = next(
            (
                each
                for each in judge(document, context)
                if each.edits and (wanted is None or each.finding.rule in wanted)
            ),
            None,
        )
        if found is None:
            break
        document = parse(apply(document.text, found.edits), document.name)
        mended.append(found.finding)
    return Fixed(document=document, mended=tuple(mended))
