"""What upstream says that a row stands on without saying it: one small function for each, one list."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from envbuild.facts import Fact, Facts
from envbuild.facts.versions import within
from envbuild.model import Environment


@dataclass(frozen=True, slots=True, kw_only=True)
class Standpoint:
    """One fact of upstream's, with how far it was checked and who says so."""

    name: str
    value: str
    mark: str
    source: str


# Name, value, and the fact that says so.
_Said = tuple[str, str, Fact]


def upstream(env: Environment, facts: Facts) -> tuple[Standpoint, ...]:
    """What the facts know about the things that a row is made of, in the order of the list."""
    return tuple(
        Standpoint(
            name=name, value=value, mark=fact.mark.value,
            source=f"{fact.source} ({fact.date})" + (f"; {fact.note}" if fact.note else ""),
        )
        for look in _LOOKS
        for name, value, fact in look(env, facts)
    )  # fmt: skip


def _architectures(env: Environment, facts: Facts) -> Iterator[_Said]:
    build = facts.torch_build(env.torch.version, env.torch.build)
    if build and build.architectures:
        yield (
            "torch's machine code",
            ", ".join(f"sm_{sm.replace('.', '')}" for sm in build.architectures.sm),
            (build.architectures),
        )
    if build and build.nccl:
        yield "torch's NCCL", build.nccl, build


def _companions(env: Environment, facts: Facts) -> Iterator[_Said]:
    known = facts.versions.get(env.torch.version)
    for name in ("torchvision", "torchaudio"):
        companion = getattr(known, name) if known else None
        if companion:
            yield f"{name} for it", companion.version, companion


def _pythons(env: Environment, facts: Facts) -> Iterator[_Said]:
    known = facts.versions.get(env.torch.version)
    if known:
        yield "Pythons of torch", f"{known.python_min} to {known.python_max or 'unknown'}", known


def _libraries(env: Environment, facts: Facts) -> Iterator[_Said]:
    need = facts.torch_libraries(env.torch.version, env.torch.build, env.platforms[0])
    if need:
        symbols = [f"GLIBC_{need.glibc}", need.glibcxx and f"GLIBCXX_{need.glibcxx}",
                   need.cxxabi and f"CXXABI_{need.cxxabi}"]  # fmt: skip
        yield "torch needs", f"{', '.join(filter(None, symbols))}; {need.cxx11_abi} string ABI", need
    release = facts.release_of_image(env.family, env.base.image)
    if release:
        yield "glibc of the base", release.glibc, release


def _support(env: Environment, facts: Facts) -> Iterator[_Said]:
    """Ends of support, where the facts know them: of the base's release, and of the CUDA images."""
    release = facts.release_of_image(env.family, env.base.image)
    name = next((name for name, each in facts.releases.items() if each is release), "")
    ends = [("base supported until", facts.lifetimes.releases.get(name))]
    if env.cuda and env.cuda.toolkit == "image":
        images, version = facts.lifetimes.cuda_images, env.cuda.version
        ends.append(("toolkit images until", images.get(version) or images.get(version.split(".")[0])))
    for what, fact in ends:
        if fact:
            yield what, str(fact.end), fact


def _toolkit(env: Environment, facts: Facts) -> Iterator[_Said]:
    toolkit = facts.toolkits.get(env.cuda.version) if env.cuda else None
    if toolkit:
        yield "newest GCC of nvcc", str(toolkit.max_gcc), toolkit


def _gpus(env: Environment, facts: Facts) -> Iterator[_Said]:
    for gpu in (facts.gpus[name] for name in env.gpus if name in facts.gpus):
        span = facts.architectures.get(gpu.sm)
        if span:
            toolkits = f"CUDA {span.since or 'any'} to {span.until or 'newest'}"
            yield f"{gpu.name}", f"compute capability {gpu.sm}, {toolkits}", span


def _driver(env: Environment, facts: Facts) -> Iterator[_Said]:
    floor = facts.driver_floor(env.cuda.version, env.gpus) if env.cuda else None
    if floor:
        yield "oldest driver", floor.floor, floor


def _deepspeed(env: Environment, facts: Facts) -> Iterator[_Said]:
    for entry in facts.deepspeed.pydantic:
        if within(env.deepspeed.version, entry.since, entry.through):
            yield "pydantic of DeepSpeed", entry.specifier, entry
    tolerated = facts.tolerates(env.deepspeed.version, env.cuda.version) if env.cuda else None
    if tolerated:
        yield "CUDA it tolerates", ", ".join(tolerated.cuda), tolerated


_LOOKS: tuple[Callable[[Environment, Facts], Iterator[_Said]], ...] = (
    _architectures, _companions, _pythons, _libraries, _toolkit, _gpus, _driver, _deepspeed, _support,
)  # fmt: skip
