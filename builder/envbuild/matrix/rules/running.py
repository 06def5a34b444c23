"""Rules about how the finished image runs: on which CPUs, and with which variables."""

from __future__ import annotations

from collections.abc import Iterator

from envbuild.facts import Facts
from envbuild.facts.versions import within
from envbuild.matrix.commandline import zero_offload
from envbuild.matrix.rules.problem import Problem, either
from envbuild.matrix.tree import KeyPath
from envbuild.model import Environment, Severity


def baseline_can_be_held(env: Environment, facts: Facts) -> Iterator[Problem]:
    """R19: the ops are compiled for ``cpu_baseline`` in place of the build machine's CPU, and disassembly shows it.

    A row always has one (x86-64-v3 by default); what can go wrong is one that does not fit the platforms, and one
    that says less than a reader may think.
    """
    baseline, key = env.cpu_baseline, ("cpu_baseline",)
    x86 = baseline.startswith("x86-64")
    flags = facts.deepspeed.native_flags
    own = "linux/amd64" if x86 else "linux/arm64"
    others = [platform for platform in env.platforms if platform != own]
    if others:
        yield Problem(
            key=key,
            severity=Severity.WARNING,
            message=f"{baseline} is no baseline for {', '.join(others)}: the ops could not be compiled for it there",
            fix=either(
                f"platforms: [{own}]",
                f"a row of its own for {', '.join(others)} with cpu_baseline: {'armv8-a' if x86 else 'x86-64-v3'}",
            ),
            facts=(flags,),
        )
    elif not x86:
        yield Problem(
            key=key,
            severity=Severity.WARNING,
            message=f"that the ops keep to {baseline} cannot be verified: only x86-64 code is disassembled",
            fix="build on the oldest CPU that the row is meant for, and let it train there",
            facts=(flags,),
        )
    elif baseline == "x86-64-v4":
        yield Problem(
            key=key,
            severity=Severity.INFO,
            message="x86-64-v4 is AVX-512: machines without it cannot run the ops",
            fix="cpu_baseline: x86-64-v3 where such machines are to be served",
            facts=(flags,),
        )
    elif baseline == "x86-64-v2":
        yield Problem(
            key=key,
            severity=Severity.INFO,
            message="x86-64-v2 has no AVX: the CPU optimizer runs without vectors",
            fix="cpu_baseline: x86-64-v3 unless CPUs from before 2013 are to be served",
            facts=(flags,),
        )


def hanging_collectives_end(env: Environment, facts: Facts) -> Iterator[Problem]:
    """R22: torch ends a process whose collective failed, and its variable has the name that this torch reads."""
    named = facts.nccl_error_handling
    renamed = within(env.torch.version, named.renamed_in, None)
    for name in (named.variable, named.old):
        value = env.env.get(name)
        key: KeyPath = ("env", name)
        if value is None:
            continue
        if value.strip() == "0":
            yield Problem(
                key=key,
                severity=Severity.WARNING,
                message=f"{name}=0: a collective that fails is not noticed, and the other ranks wait for it",
                fix=either("remove it (the default is 3)", f"{named.variable if renamed else named.old}: 1"),
                facts=(named,),
            )
        elif (name == named.old) == renamed:
            right = named.variable if renamed else named.old
            yield Problem(
                key=key,
                severity=Severity.WARNING,
                message=f"torch {env.torch.version} reads {right} in place of {name}",
                fix=f"{right}: {value}",
                facts=(named,),
            )


def no_zero_offload_flag(env: Environment, facts: Facts) -> Iterator[Problem]:
    """R24: no variable of the row puts ``--zero-offload`` on a command line: DeepSpeed's launcher does not know it."""
    for name, value in env.env.items():
        word = zero_offload(value.split())
        if word:
            yield Problem(
                key=("env", name),
                message=f"{name} holds {word}, which DeepSpeed's launcher refuses (exit code 2)",
                fix="remove it, and set zero_optimization.offload_optimizer in the ds_config",
                facts=(facts.deepspeed.launcher,),
            )
