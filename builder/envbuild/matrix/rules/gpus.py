"""Rules about GPUs: what the toolkit, the ops and torch itself are compiled for."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from envbuild.facts import Facts, Gpu
from envbuild.facts.versions import cuda_of_build, neighbours, parse
from envbuild.matrix.merge import close
from envbuild.matrix.rules.problem import (
    MEASURED,
    Problem,
    compiling,
    either,
    gpu_ops,
    unchecked,
    unknown,
    unknown_torch,
)
from envbuild.model import Cuda, Environment, Mark, Severity

ARCH_LIST = "TORCH_CUDA_ARCH_LIST"


def architectures_for_toolkit(env: Environment, facts: Facts) -> Iterator[Problem]:
    """R08: the toolkit compiles for what the ops are compiled for.

    CUDA 13 does not for DeepSpeed's default list. The Plan sets TORCH_CUDA_ARCH_LIST from the row's GPUs, so
    what is left to go wrong is a row without GPUs, or one that sets the variable itself.
    """
    cuda = compiling(env)
    if cuda is None or not gpu_ops(env, facts):
        return
    default, own = facts.deepspeed.default_architectures, env.env.get(ARCH_LIST)
    if own is not None:
        yield from _own_architectures(env, facts, cuda, own.replace(";", " ").split())
    elif not env.gpus:
        refused = [sm for sm in default.sm if facts.compiles(cuda.version, sm) is False]
        if refused:
            yield Problem(
                key=("gpus",),
                message=f"without GPUs DeepSpeed compiles for {', '.join(default.sm)}, "
                f"and CUDA {cuda.version} cannot for {', '.join(refused)}",
                fix="name the row's GPUs, such as gpus: [h200]",
                facts=(default,),
            )


def _own_architectures(env: Environment, facts: Facts, cuda: Cuda, listed: list[str]) -> Iterator[Problem]:
    key = ("env", ARCH_LIST)
    gpus = [facts.gpus[name] for name in env.gpus if name in facts.gpus]
    ours = ";".join(sorted({gpu.sm for gpu in gpus}, key=parse))
    fix = either("remove the variable: it is set from the row's GPUs", f"set it to {ours}" if ours else "")
    if not listed:
        yield Problem(key=key, message=f"{ARCH_LIST} is empty, and DeepSpeed cannot read that", fix=fix)
    for sm in (part.removesuffix("+PTX") for part in listed):
        compiles = facts.compiles(cuda.version, sm)
        if compiles is None:
            yield unknown(key, f"architecture {sm}", f"that CUDA {cuda.version} compiles for it")
        elif not compiles:
            message = f"{ARCH_LIST} asks for {sm}, which CUDA {cuda.version} cannot compile"
            yield Problem(key=key, message=message, fix=fix, facts=(facts.architectures[sm],))


def gpus_for_toolkit(env: Environment, facts: Facts) -> Iterator[Problem]:
    """R09: the toolkit compiles for every GPU of the row."""
    cuda = compiling(env)
    if cuda is None:
        return
    for index, name in enumerate(env.gpus):
        key, gpu = ("gpus", index), facts.gpus.get(name)
        if gpu is None:
            yield unknown(key, f"GPU {name}", "its architecture", known=close(name, facts.gpus) or facts.gpus)
            continue
        compiles, toolkits = facts.compiles(cuda.version, gpu.sm), facts.toolkits_for(gpu.sm)
        if compiles is None:
            unjudged = f"that CUDA {cuda.version} compiles for {gpu.name}"
            yield unknown(key, f"architecture {gpu.sm} with that toolkit", unjudged, known=toolkits)
        elif not compiles:
            yield Problem(
                key=key,
                message=f"CUDA {cuda.version} does not compile for {gpu.name} (compute capability {gpu.sm})",
                fix=either(f"use CUDA {toolkits[0]} to {toolkits[-1]}" if toolkits else "", "remove the GPU"),
                facts=(gpu, facts.architectures[gpu.sm]),
            )


def machine_code_for_gpus(env: Environment, facts: Facts) -> Iterator[Problem]:
    """R10: torch's build and the ops hold machine code for every GPU of the row. PTX is not counted on in torch.

    Machine code runs on its own major version, from its own minor version on. The Plan's list of architectures has
    that of every GPU; a row that sets its own may leave one out.
    """
    if env.accelerator != "cuda" or cuda_of_build(env.torch.build) is None:
        return
    gpus = {index: facts.gpus[name] for index, name in enumerate(env.gpus) if name in facts.gpus}
    build = facts.torch_build(env.torch.version, env.torch.build)
    if build is None:
        yield unknown_torch(env, facts, "for which GPUs it has machine code")
    elif build.architectures is None:
        yield Problem(
            key=("torch", "build"),
            severity=Severity.INFO,
            message=f"for which GPUs torch {env.torch_version} has machine code is unknown to the facts, unverified",
            fix=MEASURED,
        )
    else:
        code = build.architectures
        lacking = [(index, gpu) for index, gpu in gpus.items() if not covered(gpu.sm, code.sm)]
        for index, gpu in lacking:
            yield Problem(
                key=("gpus", index),
                message=f"torch {env.torch_version} holds machine code for {', '.join(code.sm)}: none of it runs on "
                f"{gpu.name} (compute capability {gpu.sm})",
                fix=either(_torch_for(env, facts, gpu), "remove the GPU"),
                facts=(gpu, code),
            )
        if gpus and not lacking and code.mark is not Mark.VERIFIED:
            names = ", ".join(gpu.name for gpu in gpus.values())
            message = f"that torch {env.torch_version} has machine code for {names} was not checked"
            yield unchecked(("torch", "build"), message, code)
    own = env.env.get(ARCH_LIST)
    if own and gpu_ops(env, facts):
        yield from _left_out(own.replace(";", " ").split(), gpus)


def _left_out(listed: list[str], gpus: dict[int, Gpu]) -> Iterator[Problem]:
    read = [re.fullmatch(r"(\d+\.\d+)([a-z]?)(\+PTX)?", entry) for entry in listed]
    if not all(read):
        return  # R08 has said that it does not know one of them
    exact = {entry[1] for entry in read if entry and entry[2]}
    plain = [entry[1] for entry in read if entry and not entry[2]]
    ptx = [entry[1] for entry in read if entry and entry[3]]
    for gpu in gpus.values():
        translated = any(_numbers(sm) <= _numbers(gpu.sm) for sm in ptx)
        if not (gpu.sm in exact or covered(gpu.sm, plain) or translated):
            yield Problem(
                key=("env", ARCH_LIST),
                message=f"{ARCH_LIST} asks for {', '.join(listed)}: no op would run on {gpu.name} "
                f"(compute capability {gpu.sm})",
                fix=either("remove the variable: it is set from the row's GPUs", f"add {gpu.sm}"),
                facts=(gpu,),
            )


def _torch_for(env: Environment, facts: Facts, gpu: Gpu) -> str:
    """The nearest torch releases with a build that runs on a GPU, as a fix."""
    fitting: dict[str, str] = {}
    for version, torch in facts.versions.items():
        for name, build in torch.builds.items():
            if build.architectures and covered(gpu.sm, build.architectures.sm):
                fitting.setdefault(version, f"{version}+{name}")
    own = fitting.get(env.torch.version)
    near = [own] if own else [fitting[version] for version in neighbours(env.torch.version, fitting)]
    return f"use torch {' or '.join(near)}" if near else ""


def covered(sm: str, compiled: Iterable[str]) -> bool:
    """Whether machine code for one of the compute capabilities runs on a GPU: its own major, no newer minor."""
    major, minor = _numbers(sm)
    return any((own := _numbers(other))[0] == major and own[1] <= minor for other in compiled)


def _numbers(sm: str) -> tuple[int, int]:
    major, minor = sm.split(".")
    return int(major), int(minor)
