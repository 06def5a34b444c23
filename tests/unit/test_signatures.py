"""Every signature holds to its own examples, and to those of nobody else's."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from envbuild.diagnose.signature import Pattern, Signature
from envbuild.doctor.checks import CHECKS
from envbuild.matrix.rules import RULES

FOLDER = Path(__file__).parents[2] / "signatures"
SIGNATURES = [
    Signature.model_validate(entry)
    for path in sorted(FOLDER.glob("*.yaml"))
    for entry in yaml.safe_load(path.read_text())
]


def _found(signature: Signature, text: str) -> list[tuple[Pattern, re.Match[str]]]:
    """Matches in windows of logical lines, by the plainest possible search: the reference for the fast one."""
    lines = text.splitlines()
    found = []
    for pattern in signature.patterns:
        for at in range(len(lines)):
            window = "\n".join(lines[at : at + pattern.lines])
            match = pattern.compiled.search(window)
            if match and not any(re.search(each, text) for each in (*signature.unless, *pattern.unless)):
                found.append((pattern, match))
    return found


@pytest.mark.parametrize("signature", SIGNATURES, ids=lambda signature: signature.kind)
def test_examples(signature: Signature) -> None:
    for text in signature.examples.positive:
        found = _found(signature, text)
        assert found, text
        for pattern, match in found:
            assert any(anchor in match[0] for anchor in pattern.anchors), (pattern, match[0])
    for text in signature.examples.negative:
        assert not _found(signature, text), text


def test_every_pattern_has_an_example() -> None:
    bare = [
        (signature.kind, pattern.regex)
        for signature in SIGNATURES
        for pattern in signature.patterns
        if not any(pattern is each for text in signature.examples.positive for each, _ in _found(signature, text))
    ]
    assert not bare


def test_what_a_signature_points_to_is_there() -> None:
    checks, rules = {check.name for check in CHECKS}, {rule.id for rule in RULES}
    for signature in SIGNATURES:
        assert set(signature.doctor) <= checks, signature.kind
        assert set(signature.rules) <= rules, signature.kind
        # What it explains is a kind, and not itself.
        assert set(signature.explains) <= {each.kind for each in SIGNATURES} - {signature.kind}, signature.kind
