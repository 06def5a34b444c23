"""Rules about what wheels ask for: NCCL, glibc, Python, pydantic, and DeepSpeed on the CPU accelerator."""

from __future__ import annotations

import re
from collections.abc import Iterator

from envbuild.facts import Facts, Release
from envbuild.facts.versions import cuda_of_build, neighbours, parse, starts_with, within
from envbuild.matrix.rules.problem import Problem, either, unknown
from envbuild.matrix.tree import KeyPath
from envbuild.model import Environment, Mark, Severity


def nccl_is_torchs(env: Environment, facts: Facts) -> Iterator[Problem]:
    """R11: the declared NCCL is the one that this torch build carries; the base image's is not used.

    The facts may know a series only (2.18): then every member of it passes, with a word of warning.
    """
    if env.accelerator != "cuda" or cuda_of_build(env.torch.build) is None:
        return
    build = facts.torch_build(env.torch.version, env.torch.build)
    if build is None or build.nccl is None:
        known = facts.versions.get(env.torch.version)
        yield unknown(
            ("torch", "build" if known else "version"),
            f"torch {env.torch_version}",
            "its NCCL",
            known=known.builds if known else facts.versions,
            near="" if known else env.torch.version,
        )
    elif env.nccl is None or not starts_with(env.nccl, build.nccl):
        exact = env.nccl is not None and starts_with(build.nccl, env.nccl)
        yield Problem(
            key=("nccl",),
            severity=Severity.WARNING if exact else Severity.ERROR,
            message=f"torch {env.torch_version} carries NCCL {build.nccl}, the row says {env.nccl or 'nothing'}",
            fix=f"write nccl: {build.nccl}",
            facts=(build,),
        )
    elif build.mark is Mark.UNVERIFIED:
        yield Problem(
            key=("nccl",),
            severity=Severity.INFO,
            message=f"that torch {env.torch_version} carries NCCL {build.nccl} was not checked",
            fix="nothing to do: the finished image is measured",
            facts=(build,),
        )


def glibc_of_base(env: Environment, facts: Facts) -> Iterator[Problem]:
    """R13: torch's wheel loads on the C library of every base that the row may be made from."""
    needs = [facts.torch_libraries(env.torch.version, env.torch.build, platform) for platform in env.platforms]
    known = [need for need in needs if need is not None]
    if len(known) < len(needs):
        version, ends = env.torch.version, [end for e in facts.libraries for end in (e.since, e.through)]
        yield unknown(("torch", "version"), f"torch {version}", "the glibc it needs", known=ends, near=version)
        return
    need = max(known, key=lambda entry: parse(entry.glibc))
    for key, name, release in _bases(env, facts):
        if release is None:
            yield unknown(key, f"the base {name} of family {env.family}", "its glibc", known=facts.releases)
        elif parse(release.glibc) < parse(need.glibc):
            older = [e.through for e in facts.libraries if parse(e.glibc) <= parse(release.glibc) and not e.build]
            newer = [n for n, r in facts.releases.items() if parse(r.glibc) >= parse(need.glibc)]
            yield Problem(
                key=key,
                message=f"{name} has glibc {release.glibc}, torch {env.torch_version} needs {need.glibc}",
                fix=either(
                    f"use a base with glibc {need.glibc} or newer ({', '.join(newer)})",
                    f"torch {max(older, key=parse)} or older" if older else "",
                ),
                facts=(release, need),
            )


def _bases(env: Environment, facts: Facts) -> Iterator[tuple[KeyPath, str, Release | None]]:
    """Every root that torch is imported in: the image and its stand-in, and the one that compiles the ops."""
    yield ("base", "image"), env.base.image, facts.release_of_image(env.family, env.base.image)
    if env.base.bootstrap:
        suite = env.base.bootstrap.suite
        yield ("base", "bootstrap", "suite"), suite, facts.release_of_suite(env.family, suite)
    if env.base.toolkit_image and env.cuda and env.cuda.toolkit == "image":
        image = env.base.toolkit_image
        yield ("base", "toolkit_image"), image, facts.release_of_image(env.family, image)


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
    wants_old, new = fact.specifier.startswith("<"), _admits_2(pin)
    if wants_old == new:
        allows = "2 and newer" if wants_old else "only 1"
        yield Problem(
            key=key,
            message=f"DeepSpeed {version} works with pydantic{fact.specifier}, and "
            + (f"the pin pydantic{pin} allows {allows}" if pin else "nothing keeps newer ones away"),
            fix=either(f"pins: [pydantic{fact.specifier}]", "" if wants_old else f"drop the pin pydantic{pin}"),
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


def _admits_2(specifier: str) -> bool:
    """Whether a specifier leaves any release 2 or newer.

    A specifier changes its mind only at the versions it names, so it is tried at those, right after them, at
    the next major (the end of ~=2.3 and ==2.*), and at both ends of the range in question.
    """
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    named = re.findall(r"[0-9]+(?:\.[0-9]+)*", specifier)
    points = ["2", "2.0.1", "9999", *named, *(f"{v}.0.0.1" for v in named), *(str(parse(v).major + 1) for v in named)]
    try:
        allowed = SpecifierSet(specifier)
    except InvalidSpecifier:
        return True
    return any(allowed.contains(point) for point in points if parse(point).major >= 2)


def python_of_torch(env: Environment, facts: Facts) -> Iterator[Problem]:
    """R20: torch has a wheel for the row's Python. DeepSpeed is source, but names the Pythons it means."""
    key: KeyPath = ("python",)
    torch, python, known = env.torch.version, env.python, facts.versions.get(env.torch.version)
    if known is None:
        unjudged = "for which Pythons it has wheels"
        yield unknown(("torch", "version"), f"torch {torch}", unjudged, known=facts.versions, near=torch)
    elif not within(python, known.python_min, known.python_max):
        others = [v for v, t in facts.versions.items() if within(python, t.python_min, t.python_max)]
        newest = f"to {known.python_max}" if known.python_max else "or newer"
        yield Problem(
            key=key,
            message=f"torch {torch} has no wheel for Python {python}",
            fix=either(
                f"use Python {known.python_min} {newest}",
                f"torch {' or '.join(neighbours(torch, others))}" if others else "",
            ),
            facts=(known,),
        )
    elif known.python_max is None and not any(
        t.python_max and within(python, t.python_min, t.python_max) for t in facts.versions.values()
    ):
        yield unknown(key, f"the newest Python of torch {torch}", f"that it has a wheel for {python}")
    named = facts.deepspeed.python_classifiers
    if not within(python, None, named.newest):
        yield Problem(
            key=key,
            severity=Severity.WARNING,
            message=f"DeepSpeed names Python {named.newest} as its newest, so {python} is unverified",
            fix=f"use Python {named.newest} or older",
            facts=(named,),
        )


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
