"""Rules about the C++ that torch's headers are written in, and that DeepSpeed and the compiler have to speak."""

from __future__ import annotations

from collections.abc import Iterator

from envbuild.facts import Facts
from envbuild.facts.versions import parse, within
from envbuild.matrix.rules.problem import Problem, compiling, either, gpu_ops
from envbuild.model import Environment, Severity


def deepspeed_for_cxx17(env: Environment, facts: Facts) -> Iterator[Problem]:
    """R02: torch's headers are C++17 from 2.1 on, and so are the ops of DeepSpeed from some release on."""
    minimum = facts.deepspeed.minimums.cxx17
    if within(env.torch.version, minimum.torch_since, None) and not within(
        env.deepspeed.version, minimum.version, None
    ):
        yield Problem(
            key=("deepspeed", "version"),
            message=f"DeepSpeed {env.deepspeed.version} compiles its ops as C++14, and the headers of torch "
            f"{env.torch.version} are C++17",
            fix=either(f"use DeepSpeed {minimum.version} or newer", f"a torch older than {minimum.torch_since}"),
            facts=(minimum,),
        )


def deepspeed_for_cxx20(env: Environment, facts: Facts) -> Iterator[Problem]:
    """R03: torch wants C++20 from 2.12 on, and cannot do without it from 2.15 on."""
    minimum, torch = facts.deepspeed.minimums.cxx20, env.torch.version
    if within(torch, minimum.torch_since, None) and not within(env.deepspeed.version, minimum.version, None):
        required = minimum.torch_required is not None and within(torch, minimum.torch_required, None)
        yield Problem(
            key=("deepspeed", "version"),
            severity=Severity.ERROR if required else Severity.WARNING,
            message=f"DeepSpeed {env.deepspeed.version} compiles its ops as C++17, and torch {torch} "
            + ("cannot be compiled against without C++20" if required else "wants C++20"),
            fix=either(f"use DeepSpeed {minimum.version} or newer", f"a torch older than {minimum.torch_since}"),
            facts=(minimum,),
        )


def gcc_for_torch(env: Environment, facts: Facts) -> Iterator[Problem]:
    """R04: the compiler is as new as the one that torch itself needs, which stands for what its headers need."""
    floor = facts.gcc_floor(env.torch.version)
    if floor is not None and parse(env.gcc.version) < parse(floor.gcc):
        yield Problem(
            key=("gcc", "version"),
            severity=Severity.WARNING,
            message=f"torch {env.torch.version} is built with GCC {floor.gcc} or newer, the ops of this row with "
            f"{env.gcc.version}",
            fix=either(f"use GCC {floor.gcc} or newer", f"a torch older than {floor.torch_since}"),
            facts=(floor,),
        )


def deepspeed_for_cuda13(env: Environment, facts: Facts) -> Iterator[Problem]:
    """R05: GPU code compiled by CUDA 13 or newer needs a DeepSpeed that hands -std=c++20 to nvcc."""
    cuda, minimum, ops = compiling(env), facts.deepspeed.minimums.cuda13, gpu_ops(env, facts)
    if cuda is None or not ops or not within(cuda.version, minimum.cuda_since, None):
        return
    if not within(env.deepspeed.version, minimum.version, None):
        older = sorted((v for v in facts.toolkits if not within(v, minimum.cuda_since, None)), key=parse)
        yield Problem(
            key=("deepspeed", "version"),
            message=f"DeepSpeed {env.deepspeed.version} does not ask nvcc for C++20, which the headers of "
            f"CUDA {cuda.version} need ({', '.join(ops)})",
            fix=either(f"use DeepSpeed {minimum.version} or newer", f"CUDA {older[-1]} or older"),
            facts=(minimum,),
        )
