"""The rule about NVIDIA's driver, which no image brings along."""

from __future__ import annotations

import re
from collections.abc import Iterator

from envbuild.facts import Facts
from envbuild.facts.versions import cuda_of_build, parse
from envbuild.matrix.rules.bases import cuda_of_image
from envbuild.matrix.rules.problem import Problem, either, unknown
from envbuild.matrix.tree import KeyPath
from envbuild.model import Environment, Severity

_KEY: KeyPath = ("driver",)


def driver_for_row(env: Environment, facts: Facts) -> Iterator[Problem]:
    """R16: the oldest driver that the row is meant for runs its toolkit, its torch and its GPUs, and its base image
    lets it in.

    A cuda-compat package in the image makes up for an older driver, on datacenter GPUs and for a toolkit that does not
    come from wheels.
    """
    versions = [env.cuda.version if env.cuda else None, cuda_of_build(env.torch.build)]
    wanted = sorted({version for version in versions if version}, key=parse)
    if env.accelerator != "cuda" or not wanted:
        return
    strange = [version for version in wanted if version.split(".")[0] not in facts.drivers]
    floors = [floor for version in wanted if (floor := facts.driver_floor(version, env.gpus))]
    if strange:
        key: KeyPath = ("cuda", "version") if env.cuda and env.cuda.version in strange else ("torch", "build")
        yield unknown(key, f"CUDA {strange[-1]}", "the driver that it needs", known=facts.drivers)
    elif env.driver is None:
        floor = max(floors, key=lambda each: parse(each.floor))
        yield Problem(
            key=_KEY,
            severity=Severity.INFO,
            message=f"the row names no driver; CUDA {wanted[-1]} on its GPUs needs {floor.floor} or newer",
            fix=f'driver: "{floor.floor}"',
            facts=(floor,),
        )
    else:
        floor = max(floors, key=lambda each: parse(each.floor))
        if parse(env.driver) < parse(floor.floor):
            rescued = _compat(env, facts, wanted[-1])
            names = [facts.gpus[name].name if name in facts.gpus else name for name in env.gpus]
            yield Problem(
                key=_KEY,
                severity=Severity.INFO if rescued else Severity.ERROR,
                message=f"CUDA {wanted[-1]} on {', '.join(names) or 'a GPU'} needs driver {floor.floor} or newer, "
                f"the row is meant for {env.driver}" + (f"; {rescued} makes up for that" if rescued else ""),
                fix=either(f'driver: "{floor.floor}"', "an older CUDA"),
                facts=(floor,),
            )
    yield from _let_in(env, facts)


def _compat(env: Environment, facts: Facts, cuda: str) -> str:
    """The package that makes up for an old driver; empty when there is none, or when it may not."""
    if not (env.cuda and env.cuda.toolkit == "image" and set(env.gpus) <= set(facts.datacenter.gpus)):
        return ""
    for package in env.packages:
        found = re.fullmatch(r"cuda-compat-([0-9]+)-[0-9]+", package)
        if found and int(found[1]) >= int(cuda.split(".")[0]):
            return package
    return ""


def _let_in(env: Environment, facts: Facts) -> Iterator[Problem]:
    """What the base image's own NVIDIA_REQUIRE_CUDA says of the driver; the toolkit's image is never run."""
    cuda = cuda_of_image(env.base.image)
    if cuda is None:
        return
    required = facts.required_drivers.get(cuda)
    if required is None:
        yield Problem(
            key=("base", "image"),
            severity=Severity.INFO,
            message=f"which drivers {env.base.image} lets in (NVIDIA_REQUIRE_CUDA) is unknown to the facts, unverified",
            fix="before a run it is read in the image; a plain system image asks for nothing",
        )
    elif env.driver and parse(env.driver) < parse(required.since):
        branch = int(env.driver.split(".")[0])
        if branch not in required.branches:
            yield Problem(
                key=("base", "image"),
                severity=Severity.WARNING,
                message=f"NVIDIA_REQUIRE_CUDA of {env.base.image} refuses driver {env.driver}: it lets in "
                f"{', '.join(map(str, required.branches))} and {required.since} or newer",
                fix=either(
                    "use a plain system image: torch's wheels bring the CUDA libraries",
                    f'driver: "{required.since}"',
                ),
                facts=(required,),
            )
