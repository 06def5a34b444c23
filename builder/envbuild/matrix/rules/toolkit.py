"""Rules about compiling with a CUDA toolkit. A row with ``toolkit: none`` compiles no GPU code."""

from __future__ import annotations

import re
from collections.abc import Iterator

from envbuild.facts import Facts
from envbuild.facts.versions import cuda_of_build, parse, within
from envbuild.matrix.rules.problem import Problem, compiling, either, unknown
from envbuild.model import Environment, Severity

_SKIP_CHECK = "DS_SKIP_CUDA_CHECK"


def gcc_for_nvcc(env: Environment, facts: Facts) -> Iterator[Problem]:
    """R01: the GCC major is at most what nvcc's host_config.h accepts."""
    cuda = compiling(env)
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
    cuda = compiling(env)
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


def mismatch_is_seen(env: Environment, facts: Facts) -> Iterator[Problem]:
    """R07: what R06 has against a row, DeepSpeed would say in a build too.

    Old releases compare versions only where a GPU is visible. None is while an image is built: it goes through.
    """
    fact, version = facts.deepspeed.unseen_gpu, env.deepspeed.version
    if not within(version, None, fact.through):
        return
    for problem in toolkit_is_torchs(env, facts):
        if problem.key == ("cuda", "version"):
            yield Problem(
                key=problem.key,
                severity=Severity.WARNING,
                message=f"DeepSpeed {version} compares the toolkit with torch only where a GPU is visible, so a build "
                f"does not stop at CUDA {env.cuda.version if env.cuda else ''} and torch {env.torch_version}",
                fix=problem.fix,
                facts=(fact,),
            )


def toolkit_has_the_parts(env: Environment, facts: Facts) -> Iterator[Problem]:
    """R18: nvcc is there for the ops that want a toolkit, and curand's headers for those whose GPU code includes them.

    The toolkit's wheels bring both (``lock.ask.TOOLKIT_PARTS``), NVIDIA's images do with ``-devel`` in their tag.
    """
    if env.accelerator != "cuda" or env.cuda is None:
        return
    version, known = env.deepspeed.version, facts.deepspeed.ops
    asked = [(name, known[name]) for name in env.deepspeed.ops if name in known]
    curand = {name: op for name, op in asked if op.needs_curand("cuda", version)}
    wanting = curand or {name: op for name, op in asked if op.needs_toolkit("cuda", version)}
    what = "curand's headers" if curand else "nvcc"
    newer = sorted({op.curand_through for op in curand.values() if op.curand_through}, key=parse)
    way = f"a DeepSpeed newer than {newer[-1]}" if newer else ""
    image = env.base.toolkit_image
    if env.cuda.toolkit == "none" and curand:
        yield Problem(
            key=("cuda", "toolkit"),
            message=f"DeepSpeed {version} compiles GPU code for {', '.join(curand)}: without a toolkit there are no "
            "headers of curand",
            fix=either("set cuda.toolkit to wheels or image", way),
            facts=tuple(curand.values()),
        )
    elif env.cuda.toolkit == "image" and image and wanting and (kind := without_compiler(image)):
        yield Problem(
            key=("base", "toolkit_image"),
            message=f"an image -{kind} has no {what}, which {', '.join(wanting)} of DeepSpeed {version} needs",
            fix=either(f"use {image.replace(f'-{kind}', '-devel', 1)}", way),
            facts=tuple(wanting.values()),
        )


def without_compiler(image: str) -> str:
    """``base`` or ``runtime`` for the tag of an image of NVIDIA's that has no compiler; empty for any other."""
    found = re.search(r"(?:^|/)nvidia/cuda:[^@]*-(base|runtime)(?:-|$)", image)
    return found[1] if found else ""


def _tolerating(facts: Facts, *versions: str) -> str:
    """The first DeepSpeed that tolerates all versions, as a fix; empty when none does."""
    since = []
    for version in versions:
        entry = next((e for e in facts.deepspeed.tolerated_cuda if version in e.cuda), None)
        if entry is None:
            return ""
        since.append(entry.since or "0")
    return f"DeepSpeed {max(since, key=parse)} or newer"


def wheels_make_a_toolkit(env: Environment, facts: Facts) -> Iterator[Problem]:
    """WHEELS: NVIDIA's wheels of that CUDA hold nvcc."""
    first = facts.nvcc_wheels
    if env.cuda is None or env.cuda.toolkit != "wheels" or within(env.cuda.version, first.since, None):
        return
    yield Problem(
        key=("cuda", "toolkit"),
        message=f"the wheels of CUDA {env.cuda.version} hold no nvcc",
        fix=either("set cuda.toolkit to image and name base.toolkit_image", f"CUDA {first.since} or newer"),
        facts=(first,),
    )
