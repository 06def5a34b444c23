"""The rules that a row is held to: small functions, one list. What they know is in the facts.

docs/rules.md lists them for readers; a test keeps it complete.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from envbuild.facts import Facts
from envbuild.matrix.load import Matrix
from envbuild.matrix.rules import (
    deepspeed,
    driver,
    gpus,
    language,
    lifetimes,
    ops,
    packages,
    running,
    system,
    toolkit,
    wheels,
)
from envbuild.matrix.rules.problem import Problem, qualification
from envbuild.matrix.rules.waivers import WAIVER, apply, dated
from envbuild.model import Environment, Finding, Severity

Judge = Callable[[Environment, Facts], Iterable[Problem]]
ERROR, WARNING, INFO = Severity.ERROR, Severity.WARNING, Severity.INFO


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule with the number it is cited by.

    Attributes:
        title: What it holds a row to, in one line.
        severity: The heaviest of its objections.
        later: Ids of the gate's findings that look at the same thing before a run, or in the finished image.
    """

    id: str
    title: str
    severity: Severity
    judge: Judge
    later: tuple[str, ...] = ()


RULES: tuple[Rule, ...] = (
    Rule("R01", "nvcc accepts the row's GCC", ERROR, toolkit.gcc_for_nvcc, ("content.gcc", "content.compiler")),
    Rule("R02", "DeepSpeed speaks C++17 where torch's headers do (2.1)", ERROR, language.deepspeed_for_cxx17),
    Rule("R03", "DeepSpeed speaks C++20 where torch wants it (2.12)", ERROR, language.deepspeed_for_cxx20),
    Rule("R04", "GCC is as new as torch itself needs it", WARNING, language.gcc_for_torch),
    Rule("R05", "DeepSpeed hands C++20 to the nvcc of CUDA 13", ERROR, language.deepspeed_for_cuda13),
    Rule("R06", "the toolkit is torch's CUDA, or DeepSpeed tolerates it", ERROR, toolkit.toolkit_is_torchs),
    Rule("R07", "a build without a GPU would notice what R06 objects to", WARNING, toolkit.mismatch_is_seen),
    Rule("R08", "the toolkit compiles for the architectures asked for", ERROR, gpus.architectures_for_toolkit),
    Rule("R09", "the toolkit compiles for every GPU of the row", ERROR, gpus.gpus_for_toolkit),
    Rule(
        "R10",
        "torch and the ops hold machine code for every GPU of the row",
        ERROR,
        gpus.machine_code_for_gpus,
        ("content.sm", "content.arch"),
    ),
    Rule("R11", "the NCCL is the one that torch's build carries", ERROR, wheels.nccl_is_torchs, ("content.nccl",)),
    Rule("R12", "no table pairs CUDA with NCCL: torch's build decides", WARNING, wheels.nccl_has_no_table),
    Rule("R13", "the bases' glibc is new enough for torch", ERROR, system.glibc_of_base, ("content.glibc",)),
    Rule(
        "R14",
        "the bases' libstdc++ has the symbol versions that torch asks for",
        ERROR,
        system.symbols_of_base,
        ("content.symbols",),
    ),
    Rule(
        "R15",
        "the compiler can write torch's C++ string ABI",
        ERROR,
        system.string_abi_of_compiler,
        ("content.abi",),
    ),
    Rule("R16", "the driver is new enough, and the base lets it in", ERROR, driver.driver_for_row, ("gate.driver",)),
    Rule("R17", "pins leave the pydantic that DeepSpeed works with", ERROR, deepspeed.pydantic_for_deepspeed),
    Rule("R18", "the toolkit has nvcc, and curand's headers where needed", ERROR, toolkit.toolkit_has_the_parts),
    Rule(
        "R19",
        "the CPU baseline fits the platforms and can be verified",
        WARNING,
        running.baseline_can_be_held,
        ("content.isa",),
    ),
    Rule("R20", "torch has a wheel for the row's Python", ERROR, wheels.python_of_torch, ("content.python",)),
    Rule("R21", "bases and CUDA images are supported", WARNING, lifetimes.bases_are_supported),
    Rule("R22", "a failed collective ends its process", WARNING, running.hanging_collectives_end),
    Rule("R23", "DeepSpeed can use the CPU accelerator", ERROR, deepspeed.deepspeed_on_cpu),
    Rule("R24", "nothing starts deepspeed with --zero-offload", ERROR, running.no_zero_offload_flag),
    Rule("R25", "DeepSpeed loads its own checkpoints with this torch", WARNING, deepspeed.checkpoints_can_be_loaded),
    Rule(
        "R26",
        "torchvision and torchaudio belong to the row's torch",
        ERROR,
        wheels.companions_of_torch,
        ("content.pip",),
    ),
    Rule("INDEX", "the index has that build of torch", ERROR, wheels.index_has_the_build),
    Rule("OPS", "DeepSpeed has the ops, and they can be compiled", ERROR, ops.ops_exist, ("content.op.missing",)),
    Rule("PINS", "pins hold back what an old torch is too old for", WARNING, deepspeed.limits_for_old_torch),
    Rule("PKG", "the distribution has the row's Python", ERROR, packages.python_of_distribution, ("content.python",)),
    Rule("TRITON", "DeepSpeed can be imported without a GPU, to compile its ops", ERROR, deepspeed.import_without_gpu),
    Rule("WHEELS", "a toolkit from wheels is one that can be used", ERROR, toolkit.wheels_make_a_toolkit),
)


def check(
    env: Environment, facts: Facts, matrix: Matrix | None = None, *, today: datetime.date | None = None
) -> list[Finding]:
    """Everything the rules have against a row, in the order of the rules; then what is to be said of its waivers.

    Args:
        matrix: The file the row comes from; with it the findings say where.
        today: The day that ends of support and waivers are held against; the real one without it.
    """
    day = today or datetime.date.today()
    found = [
        (rule.id, problem)
        for rule in RULES
        for each in rule.judge(env, facts)
        if (problem := dated(each, day)) is not None
    ]
    if env.waivers:
        found = apply(found, env, day, known=[rule.id for rule in RULES])
    return [_finding(rule, problem, env, matrix) for rule, problem in found]


def _finding(rule: str, problem: Problem, env: Environment, matrix: Matrix | None) -> Finding:
    place = matrix.place(env, problem.key) if matrix else None
    return Finding(
        rule=rule,
        severity=problem.severity,
        subject=f"{env.name}: {'.'.join(map(str, problem.key))}",
        message=problem.message + qualification(problem.facts) + problem.waived,
        fix=problem.fix,
        source="; ".join(dict.fromkeys(fact.source for fact in problem.facts)),
        file=place.file if place else None,
        line=place.line if place else None,
        column=place.column if place else None,
    )


__all__ = ["RULES", "WAIVER", "Rule", "check"]
