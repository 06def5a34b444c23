"""Rules about torch's wheels: the NCCL they carry, their Pythons, their companions, and who ships them."""

from __future__ import annotations

import re
from collections.abc import Iterator

from envbuild.facts import Facts
from envbuild.facts.versions import cuda_of_build, neighbours, starts_with, within
from envbuild.matrix.rules.problem import Problem, either, unchecked, unknown, unknown_torch
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
        yield unknown_torch(env, facts, "its NCCL")
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
        message = f"that torch {env.torch_version} carries NCCL {build.nccl} was not checked"
        yield unchecked(("nccl",), message, build)


def nccl_has_no_table(env: Environment, facts: Facts) -> Iterator[Problem]:
    """R12: nobody publishes which NCCL a CUDA version allows: what counts is the NCCL of the torch build.

    Said where a reader may look for such a table: where somebody claimed another NCCL for the row, or R11 objects. A
    wheel of NCCL for another CUDA major is one that torch would never load.
    """
    built = cuda_of_build(env.torch.build)
    if env.accelerator != "cuda" or built is None:
        return
    major, build = built.split(".")[0], facts.torch_build(env.torch.version, env.torch.build)
    for key, requirement in _requirements(env):
        found = re.match(r"nvidia[-_.]nccl[-_.]cu([0-9]+)", requirement, re.IGNORECASE)
        if found and found[1] != major:
            yield Problem(
                key=key,
                severity=Severity.WARNING,
                message=f"{found[0]} is for CUDA {found[1]}, and torch {env.torch_version} loads the one for {major}",
                fix=f"remove it: torch asks for its own nvidia-nccl-cu{major}",
                facts=(build,) if build else (),
            )
    if "nccl" in env.claimed or any(each.severity is not Severity.INFO for each in nccl_is_torchs(env, facts)):
        yield Problem(
            key=("nccl",),
            severity=Severity.INFO,
            message=f"no table says which NCCL goes with CUDA {built}: what counts is the one that torch "
            f"{env.torch_version} carries, built for CUDA {major}",
            fix="nothing to do beyond R11",
            facts=(build,) if build else (),
        )


def _requirements(env: Environment) -> Iterator[tuple[KeyPath, str]]:
    yield from ((("pins", index), pin) for index, pin in enumerate(env.pins))
    yield from ((("extras", index, "requirement"), extra.requirement) for index, extra in enumerate(env.extras))


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


def companions_of_torch(env: Environment, facts: Facts) -> Iterator[Problem]:
    """R26: torchvision and torchaudio, where the row has them, are the releases that belong to its torch."""
    known = facts.versions.get(env.torch.version)
    for name, version in (("torchvision", env.torch.torchvision), ("torchaudio", env.torch.torchaudio)):
        if version is None:
            continue
        key: KeyPath = ("torch", name)
        pair = getattr(known, name) if known else None
        if pair is None:
            message = f"which {name} belongs to torch {env.torch.version} is unknown to the facts, unverified"
            yield unchecked(key, message, fix="nothing to do: pip check of the finished image looks at it")
        elif pair.version != version:
            others = torches_of(facts, name, version)
            yield Problem(
                key=key,
                message=f"{name} {pair.version} belongs to torch {env.torch.version}, the row has {version}",
                fix=either(f'{name}: "{pair.version}"', f"torch {' or '.join(others)}" if others else ""),
                facts=(pair,),
            )
        elif pair.mark is not Mark.VERIFIED:
            message = f"that {name} {version} belongs to torch {env.torch.version} was not checked"
            yield unchecked(key, message, pair, fix=f"nothing to do, unless importing {name} fails in the image")


def torches_of(facts: Facts, name: str, version: str) -> list[str]:
    """The torch releases that a release of torchvision or torchaudio belongs to."""
    return [v for v, torch in facts.versions.items() if (own := getattr(torch, name)) and own.version == version]


def index_has_the_build(env: Environment, facts: Facts) -> Iterator[Problem]:
    """INDEX: PyPI ships one build of each torch; every other build comes from PyTorch's own index."""
    known = facts.versions.get(env.torch.version)
    shipped = known.pypi if known else None
    if env.torch.index == "pypi" and shipped and shipped.build != env.torch.build:
        yield Problem(
            key=("torch", "index"),
            message=f"PyPI ships torch {env.torch.version} as {shipped.build}, the row wants {env.torch.build}",
            fix=either("index: pytorch", f"build: {shipped.build}"),
            facts=(shipped,),
        )
