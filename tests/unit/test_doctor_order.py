"""Roots before echoes, whatever the order in which the checks found them."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envbuild.doctor.order import Group, flat, groups
from envbuild.doctor.view import Check
from envbuild.model import Finding, Severity

ERROR, WARNING, INFO = Severity.ERROR, Severity.WARNING, Severity.INFO


def check(name: str, *explains: str) -> Check:
    return Check(name=name, title=name, look=lambda view: (), explains=explains)


def found(rule: str, severity: Severity = ERROR, subject: str = "it", **more: str) -> Finding:
    return Finding(rule=rule, severity=severity, subject=subject, message=f"{rule} is broken", **more)


def told(grouped: tuple[Group, ...]) -> list[tuple[str, list[str]]]:
    return [(group.root.rule, [echo.rule for echo in group.echoes]) for group in grouped]


def test_an_error_comes_before_what_it_explains_and_takes_it_along() -> None:
    checks = (check("imports"), check("libstdcxx", "imports.deepspeed"))
    grouped = groups([found("imports.deepspeed"), found("imports.torch"), found("libstdcxx.shadowed")], checks)
    assert told(grouped) == [("libstdcxx.shadowed", ["imports.deepspeed"]), ("imports.torch", [])]
    assert grouped[0].echoes[0].explained_by == "libstdcxx.shadowed"
    assert [each.rule for each in flat(grouped)] == ["libstdcxx.shadowed", "imports.deepspeed", "imports.torch"]


def test_a_name_is_a_check_and_not_the_beginning_of_another() -> None:
    checks = (check("nccl", "shm"), check("shm"), check("shmem"))
    assert told(groups([found("shmem"), found("shm.small"), found("nccl")], checks)) == [
        ("nccl", ["shm.small"]),
        ("shmem", []),
    ]
    # Of two checks whose names fit, the longer one found it.
    nested = (check("cuda", "imports"), check("cuda.wheels"), check("imports"))
    assert told(groups([found("cuda.wheels.two"), found("imports")], nested))[0] == ("cuda.wheels.two", [])


def test_only_errors_explain() -> None:
    checks = (check("toolkit", "imports"), check("imports"))
    assert told(groups([found("toolkit", WARNING), found("imports")], checks)) == [("imports", []), ("toolkit", [])]


def test_a_chain_ends_at_its_root() -> None:
    checks = (check("imports"), check("ops", "imports"), check("compilers", "ops"))
    grouped = groups([found("imports"), found("ops", WARNING), found("compilers")], checks)
    # The warning between the two is no error, and explains nothing.
    assert told(grouped) == [("compilers", ["ops"]), ("imports", [])]
    grouped = groups([found("imports"), found("ops"), found("compilers")], checks)
    assert told(grouped) == [("compilers", ["imports", "ops"])]
    assert {echo.explained_by for echo in grouped[0].echoes} == {"compilers"}


def test_a_circle_ends_at_the_check_that_comes_first_and_its_victim_is_no_root() -> None:
    checks = (check("imports"), check("a", "b"), check("b", "a", "imports"))
    assert told(groups([found("imports"), found("b"), found("a")], checks)) == [("a", ["imports", "b"])]


def test_a_rule_never_explains_itself() -> None:
    checks = (check("ops", "ops"),)
    both = [found("ops.undefined", subject="cpu_adam"), found("ops.undefined", subject="async_io")]
    assert [len(group.echoes) for group in groups(both, checks)] == [0, 0]


def test_what_a_check_says_itself_counts_only_with_the_cause_there() -> None:
    checks = (check("a"), check("b"))
    echo = found("b", explained_by="a")
    assert told(groups([echo, found("a")], checks)) == [("a", ["b"])]
    alone = groups([echo], checks)
    assert alone[0].root.explained_by == "", "it stands for itself"


def test_by_severity_then_who_explains_most_then_by_the_list() -> None:
    checks = (check("one"), check("two", "echo"), check("three"), check("echo"))
    grouped = groups(
        [found("three", INFO), found("broken-check.x", WARNING), found("three", WARNING), found("one"), found("two"),
         found("echo")], checks,
    )  # fmt: skip
    assert [(each.root.rule, each.root.severity) for each in grouped] == [
        ("two", ERROR), ("one", ERROR), ("three", WARNING), ("broken-check.x", WARNING), ("three", INFO),
    ]  # fmt: skip


def test_the_same_finding_twice_is_told_once() -> None:
    assert len(groups([found("a"), found("a")], (check("a"),))) == 1


_NAMES = ("a", "b", "c", "d", "e")


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.lists(st.sampled_from(_NAMES), max_size=4), min_size=5, max_size=5),
    st.lists(st.tuples(st.sampled_from(_NAMES), st.sampled_from(list(Severity)), st.sampled_from("xy")), max_size=8),
    st.randoms(use_true_random=False),
)
def test_every_finding_once_each_echo_under_an_error_and_no_matter_who_came_first(
    explains: list[list[str]], said: list[tuple[str, Severity, str]], chance: random.Random
) -> None:
    checks = tuple(check(name, *others) for name, others in zip(_NAMES, explains, strict=True))
    findings = [found(rule, severity, subject) for rule, severity, subject in dict.fromkeys(said)]
    grouped = groups(findings, checks)
    shuffled = list(findings)
    chance.shuffle(shuffled)
    assert groups(shuffled, checks) == grouped
    key = lambda each: (each.rule, each.severity, each.subject)  # noqa: E731
    assert sorted(map(key, flat(grouped))) == sorted(map(key, findings))
    for group in grouped:
        assert group.root.explained_by == "" and (group.root.severity is ERROR or not group.echoes)
        assert all(echo.explained_by == group.root.rule and echo.rule != group.root.rule for echo in group.echoes)


@pytest.mark.parametrize("severity", list(Severity))
def test_findings_of_no_known_check_are_told_too(severity: Severity) -> None:
    assert told(groups([found("R16", severity)], ())) == [("R16", [])]
