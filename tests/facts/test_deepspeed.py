"""DeepSpeed's thresholds: the release has it, and the one before has not."""

from __future__ import annotations

import re
from typing import Any

import pytest
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from envbuild.facts import Facts
from envbuild.facts.refresh import deepspeed
from envbuild.facts.upstream import Upstream

PATTERNS = (
    r"op_builder/(cpu/)?[^/]+\.py",
    r"accelerator/(cpu|real)_accelerator\.py",
    r"deepspeed/utils/numa\.py",
    r"requirements/requirements\.txt",
)
BUILDER = "op_builder/builder.py"
CPU = "accelerator/cpu_accelerator.py"
REAL = "accelerator/real_accelerator.py"
NUMA = "deepspeed/utils/numa.py"

# By the fact's name: the file that tells, and what it has from that release on.
THRESHOLDS = {
    "cxx17": (BUILDER, r"return \['-O3', '-std=c\+\+17'"),
    "cxx20": (BUILDER, r"'-std=c\+\+20' if \(TORCH_MAJOR, TORCH_MINOR\) >= \(2, 12\)"),
    "cuda13": (BUILDER, r"cuda_major >= 13:\s*std_lib = '-std=c\+\+20'"),
    "skip_cuda_check": (BUILDER, r"DS_SKIP_CUDA_CHECK"),
    "cpu": (CPU, r"_communication_backend_name = 'gloo'"),
}


class Archives:
    """The source archives of DeepSpeed, opened when asked for."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream
        self._files = deepspeed.archives(upstream)
        self.releases = list(self._files)

    def text(self, version: Version, path: str) -> str:
        found = self.all(version)
        return found.get(path, b"").decode("utf-8", errors="replace")

    def all(self, version: Version) -> dict[str, bytes]:
        # Whether one is there is the question here, so that none is asked for by itself.
        everything = f"(?:{'|'.join(PATTERNS)})"
        return self._upstream.sources(self._files[version], (everything,), every=True)

    def before(self, version: Version) -> Version:
        return self.releases[self.releases.index(version) - 1]


@pytest.fixture(scope="session")
def archives(upstream: Upstream) -> Archives:
    return Archives(upstream)


@pytest.mark.parametrize("name", THRESHOLDS)
def test_a_minimum_is_the_first_release_that_has_it(name: str, archives: Archives, known: Facts, say: Any) -> None:
    path, pattern = THRESHOLDS[name]
    first = Version(getattr(known.deepspeed.minimums, name).version)
    assert re.search(pattern, archives.text(first, path)), f"{first} has it not"
    earlier = archives.before(first)
    assert not re.search(pattern, archives.text(earlier, path)), f"{earlier} has it already"
    say(f"minimums.{name}", f"{first}, not yet {earlier}: {path}")


def test_the_cpu_accelerator_is_found_from_that_release_on(archives: Archives, known: Facts, say: Any) -> None:
    """Where torch sees no GPU, the accelerator of the CPU is chosen (and is no longer one for oneCCL alone)."""
    first = Version(known.deepspeed.minimums.cpu_detected.version)
    chooses = r"accelerator_name = \"cpu\""
    assert re.search(chooses, archives.text(first, REAL)) and "'gloo'" in archives.text(first, CPU)
    earlier = archives.before(first)
    assert "'gloo'" not in archives.text(earlier, CPU), f"{earlier} finds one that works already"
    say("minimums.cpu_detected", f"{first}, not yet {earlier}: {REAL}, {CPU}")


def test_numactl_is_needed_in_those_releases(archives: Archives, known: Facts, say: Any) -> None:
    fact = known.deepspeed.cpu_numactl
    first, end = Version(fact.since), Version(fact.before)

    def needs(version: Version) -> bool:
        asks = "get_numa_cores" in archives.text(version, CPU) and "LOCAL_SIZE" in archives.text(version, CPU)
        forgives = re.search(r"try:\s*output = subprocess\.check_output\(\['numactl'", archives.text(version, NUMA))
        return asks and not forgives

    assert fact.since == known.deepspeed.minimums.cpu.version, "older ones do not get as far"
    inside = [version for version in archives.releases if first <= version < end]
    assert [version for version in inside if not needs(version)] == []
    assert not needs(end)
    say("cpu_numactl", f"{first} to {inside[-1]}, no longer {end}: {CPU}, {NUMA}")


def test_pydantic_is_what_each_release_asks_for(archives: Archives, known: Facts, say: Any) -> None:
    entries = known.deepspeed.pydantic
    edges = {Version(edge) for entry in entries for edge in (entry.since, entry.through) if edge}
    for edge in sorted(edges):
        asked = deepspeed.pydantic_of(archives.all(edge)["requirements/requirements.txt"], str(edge))
        (entry,) = [each for each in entries if edge in map(Version, filter(None, (each.since, each.through)))]
        for version in ("1.10.13", "2.11.0"):
            assert asked.contains(version) == SpecifierSet(entry.specifier).contains(version), (edge, str(asked))
        say(f"pydantic at {edge}", str(asked))
    after = archives.releases[archives.releases.index(Version("0.11.1")) + 1]
    between = deepspeed.pydantic_of(archives.all(after)["requirements/requirements.txt"], str(after))
    assert between.contains("1.10.13") and between.contains("2.11.0"), f"{after} pins it still"


def test_every_op_is_in_the_registry_from_its_release_on(archives: Archives, known: Facts, say: Any) -> None:
    wrong: list[str] = []
    for name, op in known.deepspeed.ops.items():
        for accelerator, since in op.since.items():
            first = Version(since)
            folder = r"op_builder/cpu/[^/]+\.py" if accelerator == "cpu" else r"op_builder/[^/]+\.py"
            sources = {path: data for path, data in archives.all(first).items() if re.fullmatch(folder, path)}
            found = {each: (builder, variable) for each, builder, variable in deepspeed.builders(sources, str(first))}
            # The CPU's folder may hand on the builder of the one above.
            handed_on = any(f"import {op.builder}".encode() in data for data in sources.values())
            if found.get(name) != (op.builder, op.build_variable) and not handed_on:
                wrong.append(f"{name} ({accelerator}) in {first}: {found.get(name)}")
    assert wrong == []
    say("ops", f"{len(known.deepspeed.ops)} builders and build variables, in the releases that `since` names")


@pytest.mark.parametrize("name", ["toolkit_through", "nvcc_through"])
def test_cpu_ops_stop_asking_for_cuda(name: str, archives: Archives, known: Facts, say: Any) -> None:
    last = Version(getattr(known.deepspeed.ops["cpu_adam"], name))
    after = archives.releases[archives.releases.index(last) + 1]
    path = "op_builder/cpu_adam.py"
    pattern = r"custom_cuda_kernel\.cu" if name == "nvcc_through" else r"class CPUAdamBuilder\(TorchCPUOpBuilder\)"
    assert re.search(pattern, archives.text(last, path))
    assert not re.search(pattern, archives.text(after, path))
    say(f"cpu_adam.{name}", f"{last}, no longer {after}: {path}")
