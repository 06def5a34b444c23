"""Every rule has rows that break it and rows that keep it (tests/rulebook); here they are tried."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import pytest

from envbuild.lock.ask import TOOLKIT_PARTS
from envbuild.matrix import RULES, check
from envbuild.model import Severity
from envbuild.plan import arch_list
from rulebook import BROKEN, KEPT
from rulebook.rows import (
    A100,
    CENTOS7,
    ERROR,
    FACTS,
    H200,
    INFO,
    MATRIX,
    TODAY,
    V100,
    WARNING,
    of_rule,
    vary,
)


@pytest.mark.parametrize(("rule", "severity", "row", "changes", "fix"), BROKEN)
def test_broken(rule: str, severity: Severity, row: str, changes: dict[str, Any], fix: str) -> None:
    found = of_rule(rule, row, changes)
    assert [finding.severity for finding in found] == [severity]
    assert fix in found[0].fix + found[0].message
    assert found[0].subject.startswith(f"{row}: ")
    if severity is ERROR:
        assert fix in found[0].fix, "an error names values that pass"
        assert found[0].source or "is empty" in found[0].message or "without CUDA" in found[0].message


@pytest.mark.parametrize(("rule", "row", "changes"), KEPT)
def test_kept(rule: str, row: str, changes: dict[str, Any]) -> None:
    assert of_rule(rule, row, changes) == []


def test_every_rule_is_tested_both_ways() -> None:
    rules = {rule.id for rule in RULES}
    assert rules == {case[0] for case in BROKEN} == {case[0] for case in KEPT}
    # A rule of errors has a case of one, and so on: its entry in the list says what is the worst it finds.
    order = list(Severity)
    for rule in RULES:
        worst = min((case[1] for case in BROKEN if case[0] == rule.id), key=order.index)
        assert worst is rule.severity, rule.id


def test_the_rules_are_all_of_them_in_order() -> None:
    ids = [rule.id for rule in RULES]
    numbered = [name for name in ids if name[1:].isdigit()]
    # The numbered ones first, then those with a word for a name.
    assert numbered == [f"R{number:02}" for number in range(1, 27)] == ids[:26]
    assert ids[26:] == sorted(set(ids[26:]))


@pytest.mark.parametrize("row", MATRIX.environments)
def test_shipped_rows_have_no_errors_or_warnings(row: str) -> None:
    assert [finding for finding in check(MATRIX.get(row), FACTS, today=TODAY) if finding.severity is not INFO] == []


def test_what_nobody_checked_stays_visible() -> None:
    said = {(f.subject, f.rule) for row in MATRIX.environments.values() for f in check(row, FACTS, today=TODAY)}
    assert {
        ("a100-cu118: nccl", "R11"),
        ("v100-cu113: torch.build", "R10"),
        ("b200-cu132: torch.torchvision", "R26"),
        ("h100-cu121: base.toolkit_image", "R21"),
        ("h100-cu121: nccl", "R12"),
    } <= said


def test_a_finding_says_how_well_its_fact_stands() -> None:
    [unverified] = of_rule("R11", A100, {"nccl": "2.14.3"})
    assert "unverified fact" in unverified.message and "pytorch/builder" in unverified.source
    [partial] = of_rule("R13", H200, CENTOS7)
    assert "partial fact" in partial.message
    [verified] = of_rule("R11", H200, {"nccl": "2.14.3"})
    assert "fact" not in verified.message and verified.source.startswith("wheel METADATA")


def test_all_objections_to_a_row_come_at_once() -> None:
    row = vary(H200, {"gcc.version": "16.1", "nccl": "2.14.3", "gpus": ["v100", "h200"], "python": "3.9"})
    errors = [f.rule for f in check(row, FACTS, today=TODAY) if f.severity is ERROR]
    assert errors[:5] == ["R01", "R09", "R10", "R11", "R20"]


def test_several_objections_of_one_rule() -> None:
    found = of_rule("R21", "a100-cu117", {"waivers": []})
    assert [(f.subject.split()[1], f.severity) for f in found] == [
        ("base.image", WARNING),
        ("base.toolkit_image", WARNING),
        ("base.toolkit_image", WARNING),
    ]
    assert "focal: 2025-05-29" in found[0].message and "CUDA 11.7 images of NVIDIA: 2023-05-31" in found[2].message


def test_what_the_rules_take_for_granted_of_other_rooms() -> None:
    # R10: the list of architectures that a Plan is made with covers the row's GPUs.
    for row in MATRIX.environments.values():
        if row.gpus:
            changed = vary(row.name, {"env": {"TORCH_CUDA_ARCH_LIST": arch_list(row, FACTS)}})
            assert [
                f for f in check(changed, FACTS, today=TODAY) if f.rule in ("R08", "R10") and f.severity is ERROR
            ] == []
    # R18: the wheels bring the compiler and curand's headers.
    assert {"nvcc", "curand"} <= set(TOOLKIT_PARTS)


def days(changes: dict[str, Any], today: str) -> list[tuple[str, Severity, str]]:
    found = check(vary(V100, changes), FACTS, today=datetime.date.fromisoformat(today))
    return [(f.rule, f.severity, f.message) for f in found if f.rule in ("R21", "WAIVER")]


JAMMY = {"family": "ubuntu", "base.image": "ubuntu:22.04", "cuda.toolkit": "none", "waivers": []}


@pytest.mark.parametrize(
    ("today", "severity"),
    [("2027-03-02", None), ("2027-03-03", INFO), ("2027-06-01", INFO), ("2027-06-02", WARNING)],
)
def test_the_day_decides_about_ends_of_support(today: str, severity: Severity | None) -> None:
    # Ubuntu 22.04: 2027-06-01.
    assert [found[1] for found in days(JAMMY, today)] == ([severity] if severity else [])


def waiver(rule: str = "R21", key: str = "base.image", until: str = "2027-01-31") -> dict[str, str]:
    return {"rule": rule, "key": key, "reason": "a good one", "until": until}


CENTOS_ONLY = {"cuda.toolkit": "none"}


@pytest.mark.parametrize("key", ["base.image", "base", ""])
@pytest.mark.parametrize("today", ["2026-11-30", "2027-01-31"])
def test_a_waiver_makes_a_warning_an_info(key: str, today: str) -> None:
    [(rule, severity, message)] = days({**CENTOS_ONLY, "waivers": [waiver(key=key)]}, today)
    assert (rule, severity) == ("R21", INFO)
    assert message.endswith("; waived until 2027-01-31: a good one")


def test_a_waiver_that_ran_out_is_an_error_and_the_warning_is_back() -> None:
    found = days({**CENTOS_ONLY, "waivers": [waiver()]}, "2027-02-01")
    assert [found[:2] for found in found] == [("R21", WARNING), ("WAIVER", ERROR)]
    assert "ended on 2027-01-31: a good one" in found[1][2]
    # A newer one beside it does what it says; the old one has to go.
    both = [waiver(), waiver(until="2028-01-31")]
    assert [f[:2] for f in days({**CENTOS_ONLY, "waivers": both}, "2027-02-01")] == [("R21", INFO), ("WAIVER", ERROR)]


@pytest.mark.parametrize(
    ("one", "said"),
    [
        (waiver(key="base.toolkit_image"), "waives nothing: the rule does not object there"),
        (waiver(rule="R25", key=""), "the waiver of R25 waives nothing"),
        (waiver(rule="R27", key=""), "there is no rule R27"),
        (waiver(rule="R02", key=""), "R02 is an error here, and errors cannot be waived"),
        (waiver(rule="R02", key="deepspeed.version"), "R02 at deepspeed.version is an error here"),
    ],
)
def test_a_waiver_that_does_nothing_is_a_warning(one: dict[str, str], said: str) -> None:
    changes = {**CENTOS_ONLY, "torch.version": "2.1.0", "waivers": [one, waiver()]}
    row = vary(V100, changes)
    [about] = [f for f in check(row, FACTS, today=TODAY) if f.rule == "WAIVER"]
    assert about.severity is WARNING and said in about.message and about.fix
    assert any(f.rule == "R02" and f.severity is ERROR for f in check(row, FACTS, today=TODAY))


def test_check_takes_the_real_day_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    class Day(datetime.date):
        @classmethod
        def today(cls) -> Day:
            return cls(2031, 1, 1)

    monkeypatch.setattr("envbuild.matrix.rules.datetime.date", Day)
    assert [f.rule for f in check(vary(V100, {}), FACTS) if f.severity is ERROR] == ["WAIVER", "WAIVER"]


def test_findings_know_their_place() -> None:
    row = vary(A100, {"gcc.version": "12.3", "deepspeed.version": "0.11.1"})
    found = {f.rule: f for f in check(row, FACTS, MATRIX, today=datetime.date(2030, 1, 1))}
    lines = Path(found["R01"].file or "").read_text(encoding="utf-8").splitlines()

    def line_of(text: str) -> int:
        start = lines.index("  a100-cu118:")
        return next(number for number in range(start, len(lines)) if lines[number].startswith(text)) + 1

    assert (found["R01"].line, found["R01"].column) == (line_of('      version: "11.4"'), 16)
    # Nothing pins pydantic, so the place is the list that would.
    assert found["R17"].line == line_of("    pins: ")
    assert found["WAIVER"].line == line_of("        until: ")
