"""The rules that a row is held to: small functions, one list. What they know is in the facts."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from envbuild.facts import Facts
from envbuild.matrix.load import Matrix
from envbuild.matrix.rules import ops, packages, toolkit, wheels
from envbuild.matrix.rules.problem import Problem, qualification
from envbuild.model import Environment, Finding

Judge = Callable[[Environment, Facts], Iterable[Problem]]


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule with the number it is cited by."""

    id: str
    judge: Judge


RULES: tuple[Rule, ...] = (
    Rule("R01", toolkit.gcc_for_nvcc),
    Rule("R05", toolkit.deepspeed_for_cuda13),
    Rule("R06", toolkit.toolkit_is_torchs),
    Rule("R08", toolkit.architectures_for_toolkit),
    Rule("R09", toolkit.gpus_for_toolkit),
    Rule("R11", wheels.nccl_is_torchs),
    Rule("R13", wheels.glibc_of_base),
    Rule("R17", wheels.pydantic_for_deepspeed),
    Rule("R20", wheels.python_of_torch),
    Rule("R23", wheels.deepspeed_on_cpu),
    Rule("OPS", ops.ops_exist),
    Rule("PKG", packages.python_of_distribution),
)


def check(env: Environment, facts: Facts, matrix: Matrix | None = None) -> list[Finding]:
    """Everything the rules have against a row, in the order of the rules.

    Args:
        matrix: The file the row comes from; with it the findings say where.
    """
    return [_finding(rule, problem, env, matrix) for rule in RULES for problem in rule.judge(env, facts)]


def _finding(rule: Rule, problem: Problem, env: Environment, matrix: Matrix | None) -> Finding:
    place = matrix.place(env, problem.key) if matrix else None
    return Finding(
        rule=rule.id,
        severity=problem.severity,
        subject=f"{env.name}: {'.'.join(map(str, problem.key))}",
        message=problem.message + qualification(problem.facts),
        fix=problem.fix,
        source="; ".join(dict.fromkeys(fact.source for fact in problem.facts)),
        file=place.file if place else None,
        line=place.line if place else None,
        column=place.column if place else None,
    )
