"""docs/rules.md lists every rule as it is, and nothing else; and what it says of the gate is there."""

from __future__ import annotations

import re
from pathlib import Path

from envbuild.matrix import RULES
from envbuild.matrix.rules import WAIVER, Rule

DOCS = Path(__file__).parents[2] / "docs"
ROWS = [
    [cell.strip() for cell in line.strip("|").split(" | ")]
    for line in (DOCS / "rules.md").read_text().splitlines()
    if re.match(r"\| [A-Z]", line)
]


def where(rule: Rule) -> str:
    gate = [f"`{name}`" for name in rule.later if name.startswith("gate.")]
    image = [f"`{name}`" for name in rule.later if not name.startswith("gate.")]
    said = ["row"]
    said += [f"before a run: {' '.join(gate)}"] if gate else []
    said += [f"in the image: {' '.join(image)}"] if image else []
    return "; ".join(said)


def test_every_rule_is_listed_as_it_is() -> None:
    listed = {row[0]: row[1:4] for row in ROWS}
    assert list(listed) == [*(rule.id for rule in RULES), WAIVER]
    for rule in RULES:
        assert listed[rule.id] == [rule.title, rule.severity.value, where(rule)]


def test_every_rule_has_an_origin() -> None:
    assert all(len(row) == 5 and row[4] for row in ROWS)


def test_the_gate_has_the_findings_that_the_rules_name() -> None:
    gate = set(re.findall(r"`([a-z.]+)`", (DOCS / "gate.md").read_text()))
    assert {name for rule in RULES for name in rule.later} <= gate
    # The gate's list names rules in brackets: each of them knows that it does.
    named = {
        (rule, name)
        for line in (DOCS / "gate.md").read_text().splitlines()
        for rule in re.findall(r"\((R[0-9]{2})\)", line)
        for name in re.findall(r"`([a-z.]+)`", line.split("|")[1])
    }
    assert named <= {(rule.id, name) for rule in RULES for name in rule.later}
