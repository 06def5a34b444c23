"""Rules about what a DeepSpeed release needs besides a compiler."""

from __future__ import annotations

import re
from collections.abc import Iterator

from envbuild.facts import Facts
from envbuild.facts.versions import cuda_of_build, parse, within
from envbuild.matrix.rules.problem import Problem, either, unknown
from envbuild.matrix.tree import KeyPath
from envbuild.model import Environment, Severity


def pydantic_for_deepspeed(env: Environment, facts: Facts) -> Iterator[Problem]:
    """R17: the row's pins leave exactly the pydantic majors that its DeepSpeed works with."""
    version, newest = env.deepspeed.version, facts.deepspeed.newest
    if not within(version, None, newest.version):
        yield unknown(("deepspeed", "version"), f"DeepSpeed {version}", "the pydantic it needs", known=[newest.version])
        return
    fact = next((e for e in facts.deepspeed.pydantic if within(version, e.since, e.through)), None)
    if fact is None:
        return
    key, pin = _pin(env, "pydantic")
    wants_old, new = fact.specifier.startswith("<"), _admits(pin, "2")
    if wants_old == new:
        allows = "2 and newer" if wants_old else "only 1"
        yield Problem(
            key=key,
            message=f"DeepSpeed {version} works with pydantic{fact.specifier}, and "
            + (f"the pin pydantic{pin} allows {allows}" if pin else "nothing keeps newer ones away"),
            fix=either(f"pins: [pydantic{fact.specifier}]", "" if wants_old else f"drop the pin pydantic{pin}"),
            facts=(fact,),
        )


def limits_for_old_torch(env: Environment, facts: Facts) -> Iterator[Problem]:
    """PINS: what an old torch needs older releases of is kept back by the row's pins."""
    for fact in (facts.numpy, facts.setuptools):
        if not parse(env.torch.version) < parse(fact.torch_below):
            continue
        name, _, limit = fact.specifier.partition("<")
        key, pin = _pin(env, name)
        if _admits(pin, limit):
            yield Problem(
                key=key,
                severity=Severity.WARNING,
                message=f"torch {env.torch.version} needs {fact.specifier}, and "
                + (f"the pin {name}{pin} allows newer ones" if pin else "nothing keeps newer ones away"),
                fix=f"pins: [{fact.specifier}]",
                facts=(fact,),
            )


def _pin(env: Environment, name: str) -> tuple[KeyPath, str]:
    """Where the row restricts a package, and all its restrictions as one specifier."""
    places: list[tuple[KeyPath, str]] = [(("pins", i), pin) for i, pin in enumerate(env.pins)]
    places += [(("extras", i, "requirement"), extra.requirement) for i, extra in enumerate(env.extras)]
    found = []
    for key, requirement in places:
        match = re.match(r"([A-Za-z0-9._-]+?)(?:\[[^\]]*\])?((?:[~=!<>].*)?)$", requirement)
        if match and re.sub(r"[-_.]+", "-", match[1]).lower() == name:
            found.append((key, match[2]))
    return (found[0][0] if found else ("pins",)), ",".join(spec for _, spec in found if spec)


def _admits(specifier: str, limit: str) -> bool:
    """Whether a specifier leaves any release at or above a limit, which is a major.

    A specifier changes its mind only at the versions it names, so it is tried at those, right after them, at
    the next major (the end of ~=2.3 and ==2.*), and at both ends of the range in question.
    """
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    named = re.findall(r"[0-9]+(?:\.[0-9]+)*", specifier)
    points = [
        limit,
        f"{limit}.0.1",
        "9999",
        *named,
        *(f"{v}.0.0.1" for v in named),
        *(str(parse(v).major + 1) for v in named),
    ]
    try:
        allowed = SpecifierSet(specifier)
    except InvalidSpecifier:
        return True
    return any(allowed.contains(point) for point in points if parse(point).major >= int(limit))


def deepspeed_on_cpu(env: Environment, facts: Facts) -> Iterator[Problem]:
    """R23: DeepSpeed can use the CPU accelerator, and finds out about its cores.

    That fp16 cannot be used there is a fact too (``cpu_fp16``), but nothing in a row could ask for it.
    """
    if env.accelerator != "cpu":
        return
    version, minimum, numactl = env.deepspeed.version, facts.deepspeed.minimums.cpu, facts.deepspeed.cpu_numactl
    if not within(version, minimum.version, None):
        yield Problem(
            key=("deepspeed", "version"),
            message=f"DeepSpeed {version} cannot use the CPU accelerator over gloo",
            fix=f"use DeepSpeed {minimum.version} or newer",
            facts=(minimum,),
        )
    affected = within(version, numactl.since, None) and parse(version) < parse(numactl.before)
    if affected and numactl.package not in env.packages and numactl.variable not in env.env:
        yield Problem(
            key=("packages",),
            message=f"DeepSpeed {version} looks for numactl on the CPU accelerator and fails without it",
            fix=either(
                f"packages: [{numactl.package}]",
                f"set {numactl.variable} in env to the number of ranks of a node",
                f"DeepSpeed {numactl.before} or newer",
            ),
            facts=(numactl,),
        )


def checkpoints_can_be_loaded(env: Environment, facts: Facts) -> Iterator[Problem]:
    """R25: DeepSpeed says how torch is to load its checkpoints: from 2.6 on torch's own default refuses most."""
    minimum = facts.deepspeed.minimums.weights_only
    if within(env.torch.version, minimum.torch_since, None) and not within(
        env.deepspeed.version, minimum.version, None
    ):
        yield Problem(
            key=("deepspeed", "version"),
            severity=Severity.WARNING,
            message=f"torch {env.torch.version} loads weights only unless told otherwise, and DeepSpeed "
            f"{env.deepspeed.version} does not tell it: its checkpoints hold more than weights and do not load",
            fix=either(f"use DeepSpeed {minimum.version} or newer", f"a torch older than {minimum.torch_since}"),
            facts=(minimum,),
        )


def import_without_gpu(env: Environment, facts: Facts) -> Iterator[Problem]:
    """TRITON: DeepSpeed can be imported where there is no GPU, as its ops are compiled while an image is built.

    torch's CPU builds bring no triton, so nothing is asked of a driver there.
    """
    minimum = facts.deepspeed.minimums.import_without_gpu
    if (
        cuda_of_build(env.torch.build) is not None
        and within(env.torch.version, minimum.torch_since, None)
        and not within(env.deepspeed.version, minimum.version, None)
    ):
        yield Problem(
            key=("deepspeed", "version"),
            message=f"DeepSpeed {env.deepspeed.version} asks triton for a driver while it is imported, and the triton "
            f"of torch {env.torch.version} fails where there is none: the ops cannot be compiled in a container",
            fix=either(f"use DeepSpeed {minimum.version} or newer", f"a torch older than {minimum.torch_since}"),
            facts=(minimum,),
        )
