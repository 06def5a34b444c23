"""docs/lint.md lists every rule as it is (UPDATE_GOLDEN=1 rewrites the list), and its example is what lint says."""

from __future__ import annotations

import os
import re
from pathlib import Path

from envbuild.dsconfig.context import Context
from envbuild.dsconfig.document import parse
from envbuild.dsconfig.linting import FLAWS, lint
from envbuild.dsconfig.rules import RULES, Rule
from lintbook import BROKEN, UNSEEN

PAGE = Path(__file__).parents[2] / "docs" / "lint.md"
BEGIN, END = "tests/unit/test_lint_docs.py -->\n", "<!-- end of rules -->"
ORDER = ("error", "warning", "info")
# Tried with real shapes (test_lint_memory.py); what it takes to see them is memory.
MEMORY = {"memory.gpu": "error", "memory.host": "error", "memory.guessed": "info"}


def releases(rule: Rule) -> str:
    if rule.since and rule.before:
        return f"{rule.since} to below {rule.before}"
    return f"from {rule.since}" if rule.since else f"below {rule.before}" if rule.before else "all"


def seen(rule: Rule) -> str:
    """What DeepSpeed does with what is an error."""
    cases = [case for case in BROKEN if case.rule == rule.id and case.does]
    done = sorted({case.does for case in cases if case.does != UNSEEN})
    if done:
        return ", ".join(done)
    if MEMORY.get(rule.id) == "error":
        return "not run: that much memory"
    return f"not run: {cases[0].seen}" if cases else ""


def table() -> str:
    rows = [
        "| id | what a file is held to | worst | DeepSpeed | an error is | known from |",
        "|---|---|---|---|---|---|",
    ]
    rows += [f"| `json.{kind}` | {title} | error | all | | the file alone |" for kind, title in FLAWS.items()]
    for rule in RULES:
        found = {case.severity for case in BROKEN if case.rule == rule.id} | {MEMORY.get(rule.id, "")}
        worst = next((each for each in ORDER if each in found), "warning")
        source = rule.source.replace("|", "\\|")
        rows.append(f"| `{rule.id}` | {rule.title} | {worst} | {releases(rule)} | {seen(rule)} | {source} |")
    return "\n".join(rows) + "\n"


def test_every_rule_is_listed_as_it_is() -> None:
    text = PAGE.read_text()
    before, _, rest = text.partition(BEGIN)
    listed, _, after = rest.partition(END)
    if os.environ.get("UPDATE_GOLDEN"):
        PAGE.write_text(f"{before}{BEGIN}{table()}{END}{after}")
        return
    assert listed == table(), "UPDATE_GOLDEN=1 rewrites it"


def test_the_example_is_what_lint_says() -> None:
    config = (
        '{\n  "train_batch_size": 64,\n  "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 1\n}\n'
    )
    found = lint(parse(config, "ds_config.json"), Context(deepspeed="0.19.8", gpus=8))
    said = next(each for each in found if each.rule == "batch.arithmetic")
    line = f"{said.file}:{said.line}:{said.column}: error [{said.rule}] {said.message}"
    assert line in PAGE.read_text()
    assert f"fix: {said.fix}" in PAGE.read_text()


def test_rules_that_the_page_names_exist() -> None:
    named = set(re.findall(r"\[([a-z]+\.[a-z-]+)\]", PAGE.read_text()))
    assert named <= {rule.id for rule in RULES}
