"""docs/gate.md names every finding of the gate, and nothing that does not exist."""

from __future__ import annotations

import re
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
SOURCES = [REPOSITORY / "builder/envbuild" / folder for folder in ("judge", "pipeline")]
ID = r"(?:gate|content|smoke|verify)(?:\.[a-z0-9]+)+"
# Names of files and of fields of reports that look like an id.
NONE = {"content.py", "smoke.py", "content.inspect"}


def test_the_list_of_findings_is_complete() -> None:
    documented = set(re.findall(rf"`({ID})`", (REPOSITORY / "docs/gate.md").read_text()))
    named = {
        found
        for folder in SOURCES
        for path in folder.rglob("*.py")
        for found in re.findall(rf'"({ID})"', path.read_text())
    } - NONE
    # A content probe that fails is told in the words of a smoke that fails (failure.explain_failure).
    failures = re.findall(r'"smoke(\.[a-z]+)"', (REPOSITORY / "builder/envbuild/judge/failure.py").read_text())
    named |= {f"content{ending}" for ending in failures} & documented
    assert named - documented == set(), "not in docs/gate.md"
    assert documented - named == set(), "in docs/gate.md, and found by nobody"
