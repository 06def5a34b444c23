"""Mends what can be mended without asking: one pass after another, until nothing is left that could be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from envbuild.dsconfig.context import Context
from envbuild.dsconfig.document import Document, parse
from envbuild.dsconfig.editing import apply
from envbuild.dsconfig.linting import Judged, judge
from envbuild.model.finding import Finding

# Passes: far more than a configuration has keys that could have to move.
_MOST = 100


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
    for _ in range(_MOST):
        # Of two equal keys a person says which one is meant, and then what is wrong with it.
        twice = any(flaw.kind == "duplicate" for flaw in document.flaws)
        found = [
            each
            for each in judge(document, context)
            if each.edits and (wanted is None or each.finding.rule in wanted) and not (twice and not _of_text(each))
        ]
        if not found:
            break
        together = _together(found)
        document = parse(apply(document.text, [edit for each in together for edit in each.edits]), document.name)
        mended += [each.finding for each in together]
    return Fixed(document=document, mended=tuple(mended))


def _together(found: Sequence[Judged]) -> Sequence[Judged]:
    """What can be mended in one pass: words that are replaced where they stand. What moves goes alone."""
    simple: list[Judged] = []
    end = -1
    for each in found:
        first, last = min(start for start, _, _ in each.edits), max(end for _, end, _ in each.edits)
        if first > end and (_of_text(each) or all(start < stop and new for start, stop, new in each.edits)):
            simple.append(each)
            end = last
    return simple or found[:1]


def _of_text(judged: Judged) -> bool:
    """Whether it is a comma or another letter too many."""
    return judged.finding.rule.startswith("json.")
