"""Rules about compiling with a CUDA toolkit. A row with ``toolkit: none`` compiles no GPU code."""

from __future__ import annotations

from collections.abc import Iterator

from envbuild.facts import Facts
from envbuild.facts.versions import cuda_of_build, parse, within
from envbuild.matrix.merge import close
from envbuild.matrix.rules.problem import Problem, either, unknown
from envbuild.model import Cuda, Environment, Severity

_ARCH_LIST = "TORCH_CUDA_ARCH_LIST"
_SKIP_CHECK = "DS_SKIP_CUDA_CHECK"


def gcc_for_nvcc(env: Environment, facts: Facts) -> Iterator[Problem]:
    """R01: the GCC major is at most what nvcc's host_config.h accepts."""
    cuda = _compiling(env)
    if cuda is None:
        return
    known = facts.toolkits.get(cuda.version)
    if known is None:
        what = f"CUDA {cuda.version}"
        yield unknown(("cuda", "version"), what, "which GCC it accepts", known=facts.toolkits, near=cuda.version)
        return
    major = int(env.gcc.version.split(".")[0])
    if major > known.max_gcc:
        newer = sorted((v for v, t in facts.toolkits.items() if t.max_gcc >= major), key=parse)
        yield Problem(
            key=("gcc", "version"),
            message=f"nvcc of CUDA {cuda.version} accepts GCC {known.max_gcc} at most, the row has {env.gcc.version}",
            fix=either(
                f"use GCC {known.max_gcc} (package gcc-{known.max_gcc})",
                f"CUDA {newer[0]} or newer for GCC {major}" if newer else "",
            ),
            facts=(known,),
        )


def deepspeed_for_cuda13(env: Environment, facts: Facts) -> Iterator[Problem]:
    """R05: GPU code compiled by CUDA 13 or newer needs a DeepSpeed that hands -std=c++20 to nvcc."""
    cuda, minimum, ops = _compiling(env), facts.deepspeed.minimums.cuda13, _gpu_ops(env, facts)
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


def toolkit_is_torchs(env: Environment, facts: Facts) -> Iterator[Problem]:
    """R06: the toolkit's version is torch's, or DeepSpeed tolerates the pair.

    DeepSpeed compares the two whenever it compiles an op on the CUDA accelerator. From 0.9.3 on
    ``DS_SKIP_CUDA_CHECK=1`` switches that off; nothing then promises that the result works.
    """
    if env.accelerator != "cuda":
        return
    torch_cuda = cuda_of_build(env.torch.build)
    if torch_cuda is None:
        want = f"cu{env.cuda.version.replace('.', '')}" if env.cuda else "one for CUDA"
        message = f"torch {env.torch_version} is built without CUDA, and the row's accelerator is cuda"
        yield Problem(key=("torch", "build"), message=message, fix=f"use the build {want}")
        return
    cuda = _compiling(env)
    if cuda is None or cuda.version == torch_cuda:
        return
    same_major = cuda.version.split(".")[0] == torch_cuda.split(".")[0]
    version = env.deepspeed.version
    if same_major and facts.tolerates(version, cuda.version) and facts.tolerates(version, torch_cuda):
        return
    skip = facts.deepspeed.minimums.skip_cuda_check
    skipped = env.env.get(_SKIP_CHECK) == "1" and within(version, skip.version, None)
    entries = [e for e in facts.deepspeed.tolerated_cuda if cuda.version in e.cuda or torch_cuda in e.cuda]
    yield Problem(
        key=("cuda", "version"),
        severity=Severity.WARNING if skipped else Severity.ERROR,
        message=f"the toolkit is CUDA {cuda.version}, torch {env.torch_version} is built with {torch_cuda}, and "
        f"DeepSpeed {version} does not tolerate that{f'; {_SKIP_CHECK}=1 lets it through' if skipped else ''}",
        fix=either(
            f"use the toolkit {torch_cuda}",
            f"torch's build cu{cuda.version.replace('.', '')}",
            _tolerating(facts, cuda.version, torch_cuda) if same_major else "",
        ),
        facts=tuple(entries) or (facts.deepspeed.newest,),
    )


def architectures_for_toolkit(env: Environment, facts: Facts) -> Iterator[Problem]:
    """R08: the toolkit compiles for what the ops are compiled for.

    CUDA 13 does not for DeepSpeed's default list. The Plan sets TORCH_CUDA_ARCH_LIST from the row's GPUs, so
    what is left to go wrong is a row without GPUs, or one that sets the variable itself.
    """
    cuda = _compiling(env)
    if cuda is None or not _gpu_ops(env, facts):
        return
    default, own = facts.deepspeed.default_architectures, env.env.get(_ARCH_LIST)
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
    key = ("env", _ARCH_LIST)
    gpus = [facts.gpus[name] for name in env.gpus if name in facts.gpus]
    ours = ";".join(sorted({gpu.sm for gpu in gpus}, key=parse))
    fix = either("remove the variable: it is set from the row's GPUs", f"set it to {ours}" if ours else "")
    if not listed:
        yield Problem(key=key, message=f"{_ARCH_LIST} is empty, and DeepSpeed cannot read that", fix=fix)
    for sm in (part.removesuffix("+PTX") for part in listed):
        compiles = facts.compiles(cuda.version, sm)
        if compiles is None:
            yield unknown(key, f"architecture {sm}", f"that CUDA {cuda.version} compiles for it")
        elif not compiles:
            message = f"{_ARCH_LIST} asks for {sm}, which CUDA {cuda.version} cannot compile"
            yield Problem(key=key, message=message, fix=fix, facts=(facts.architectures[sm],))


def gpus_for_toolkit(env: Environment, facts: Facts) -> Iterator[Problem]:
    """R09: the toolkit compiles for every GPU of the row."""
    cuda = _compiling(env)
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


def _compiling(env: Environment) -> Cuda | None:
    """The row's toolkit, if it compiles anything."""
    return env.cuda if env.accelerator == "cuda" and env.cuda and env.cuda.toolkit != "none" else None


def _gpu_ops(env: Environment, facts: Facts) -> list[str]:
    known = facts.deepspeed.ops
    version = env.deepspeed.version
    return [op for op in env.deepspeed.ops if op in known and known[op].needs_nvcc(env.accelerator, version)]


def _tolerating(facts: Facts, *versions: str) -> str:
    """The first DeepSpeed that tolerates all versions, as a fix; empty when none does."""
    since = []
    for version in versions:
        entry = next((e for e in facts.deepspeed.tolerated_cuda if version in e.cuda), None)
        if entry is None:
            return ""
        since.append(entry.since or "0")
    return f"DeepSpeed {max(since, key=parse)} or newer"
