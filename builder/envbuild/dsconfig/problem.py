"""What a rule objects to, before it has become a finding."""

from __future__ import annotations

from typing import NamedTuple

from envbuild.dsconfig.document import Place
from envbuild.model.finding import Severity

# Replacements in the text: from, to (excluded), what stands there then.
Edit = tuple[int, int, str]


class Problem(NamedTuple):
    """An objection.

    Attributes:
        path: What it is about, such as ``zero_optimization.stage``.
        place: Where in the file; None where the point is that something is not there.
        why: Why it matters, where the message alone does not say so.
        source: Who says so, where it is another than the rule's.
        edits: What would mend it without changing what was meant; ``--fix`` writes that. Empty where a person decides.
    """

    path: str
    severity: Severity
    message: str
    place: Place | None = None
    fix: str = ""
    why: str = ""
    source: str = ""
    edits: tuple[Edit, ...] = ()
