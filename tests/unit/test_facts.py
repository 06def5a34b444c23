"""The facts are whole, agree with one another, and are looked up by number and not by text."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from pydantic import BaseModel

from envbuild import facts
from envbuild.facts.versions import cuda_of_build, neighbours, parse, starts_with, within
from envbuild.model import Mark

FACTS = facts.load()


def entries(value: object) -> Iterator[facts.Fact]:
    if isinstance(value, facts.Fact):
        yield value
    if isinstance(value, BaseModel):
        yield from entries([getattr(value, name) for name in type(value).model_fields])
    elif isinstance(value, dict):
        yield from entries(list(value.values()))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from entries(item)


def test_every_fact_names_an_origin_outside_the_project() -> None:
    found = list(entries(FACTS))
    assert len(found) > 100
    for fact in found:
        assert re.match(
            r"wheel (METADATA|file names|file lists|torch)|ELF members|host_config\.h|DeepSpeed (tag|sdist)|NVIDIA"
            r"|measured by running|pytorch/(builder|pytorch)|(Debian|Ubuntu|CentOS|Enterprise Linux) .*package"
            r"|GCC manual|CentOS project|Rocky Linux wiki|Red Hat documentation|no primary source"
            r"|nvidia-smi of|half of what NVIDIA"
            r"|Hugging Face's model API|Keras Hub's preset|general\.parameter_count of|model card of|transformers'"
            r"|BigScience 2022",
            fact.source,
        ), fact
    # What was not checked carries a note that says what is missing, or a distribution package as second-hand source.
    assert all(fact.note or "package" in fact.source for fact in found if fact.mark is not Mark.VERIFIED)


def test_a_newer_system_has_a_newer_library() -> None:
    by_glibc = sorted(FACTS.releases, key=lambda name: parse(FACTS.releases[name].glibc))
    libraries = [parse(FACTS.runtimes[name].glibcxx) for name in by_glibc]
    assert libraries == sorted(libraries)


def test_symbol_versions_belong_to_the_gcc_that_first_gave_them() -> None:
    known = {"GLIBCXX_3.4.9": "4.2.0", "GLIBCXX_3.4.29": "11.1.0", "GLIBCXX_3.4.32": "13.2.0", "CXXABI_1.3.8": "4.9.0"}
    assert {symbol: FACTS.gcc_of_symbol(symbol) for symbol in known} == known
    assert FACTS.gcc_of_symbol("GLIBCXX_3.4.99") is FACTS.gcc_of_symbol("CXXABI_FLOAT128") is None
    newest = ("4.8.5", "10.2.1", "12.2.0", "13.1.1", "14.2.0", "99.1")
    found = [FACTS.symbol_of_gcc(gcc) for gcc in newest]
    assert found == [*(f"GLIBCXX_3.4.{number}" for number in (19, 28, 30, 31, 33)), None]
    # What was measured of whole libraries agrees with the history.
    for runtime in FACTS.runtimes.values():
        for family, version in (("GLIBCXX", runtime.glibcxx), ("CXXABI", runtime.cxxabi)):
            assert FACTS.gcc_of_symbol(f"{family}_{version}") is not None


def test_gcc_floors_grow_with_torch() -> None:
    floors = [FACTS.gcc_floor(torch) for torch in ("2.0.1", "2.1.0", "2.12.1", "2.13.0", "2.15.0")]
    assert [floor.gcc if floor else None for floor in floors] == [None, "9.4", "9.4", "11.3", "11.3"]


def test_load_reads_once() -> None:
    assert facts.load() is facts.load()


def test_the_facts_agree_with_one_another() -> None:
    assert {gpu.sm for gpu in FACTS.gpus.values()} <= set(FACTS.architectures)
    assert set(FACTS.datacenter.gpus) | set(FACTS.driver_floors) <= set(FACTS.gpus)
    assert {toolkit.split(".")[0] for toolkit in FACTS.toolkits} == set(FACTS.drivers)
    # The end of an image is that of the driver branch that its toolkit came with, so that has to be known too.
    bundled = {version.rpartition(".")[0] for version in FACTS.bundled_drivers}
    assert set(FACTS.lifetimes.cuda_images) | set(FACTS.required_drivers) <= bundled
    assert set(FACTS.releases) <= set(FACTS.lifetimes.releases) and set(FACTS.releases) <= set(FACTS.runtimes)
    by_version = sorted(FACTS.toolkits, key=parse)
    limits = [FACTS.toolkits[version].max_gcc for version in by_version]
    assert limits == sorted(limits), "a newer nvcc accepts no older compilers"
    for name, op in FACTS.deepspeed.ops.items():
        assert set(op.implies) <= set(FACTS.deepspeed.ops)
        assert op.module.startswith("deepspeed.") and op.builder.endswith("Builder"), name
        assert set(op.build_packages) == set(op.run_packages), name
    variables = [op.build_variable for op in FACTS.deepspeed.ops.values()]
    assert len(set(variables)) == len(variables)
    for version, torch in FACTS.versions.items():
        for build in torch.builds:
            assert FACTS.torch_libraries(version, build, "linux/amd64"), f"torch {version}+{build} needs some glibc"


@pytest.mark.parametrize(
    ("version", "build", "platform", "glibc", "abi"),
    [
        ("1.12.1", "cu113", "linux/amd64", "2.17", "old"),
        ("2.3.0", "cu121", "linux/amd64", "2.17", "old"),
        ("2.6.0", "cu124", "linux/amd64", "2.17", "old"),
        ("2.6.0", "cu126", "linux/amd64", "2.28", "new"),
        ("2.6.0", "cpu", "linux/arm64", "2.28", "new"),
        ("2.10.0", "cu128", "linux/amd64", "2.28", "new"),
    ],
)
def test_torch_libraries(version: str, build: str, platform: str, glibc: str, abi: str) -> None:
    found = FACTS.torch_libraries(version, build, platform)
    assert found and (found.glibc, found.cxx11_abi) == (glibc, abi)


def test_what_the_facts_do_not_know_is_none() -> None:
    assert FACTS.torch_libraries("2.16.0", "cu132", "linux/amd64") is None
    assert FACTS.torch_build("2.99.0", "cu130") is None
    assert FACTS.torch_build("2.11.0", "cu126") is None
    assert FACTS.compiles("12.8", "8.8") is None
    assert (FACTS.compiles("11.7", "8.9"), FACTS.compiles("11.8", "8.9")) == (False, True)
    assert FACTS.compiles("14.0", "9.0") is None, "an open end does not reach toolkits that nobody looked at"
    assert FACTS.release_of_suite("debian", "forky") is None
    assert FACTS.packages_of("debian", "docker.io/library/debian:sid") is None
    assert FACTS.driver_floor("14.0") is None


@pytest.mark.parametrize(
    ("family", "image", "glibc"),
    [
        ("debian", "docker.io/library/debian:bookworm-slim", "2.36"),
        ("debian", "mirror.example/debian:12.5", "2.36"),
        ("debian", "python:3.11-slim-bookworm", "2.36"),
        ("debian", "debian:1", None),
        ("debian", "debian:120", None),
        ("ubuntu", "nvidia/cuda:11.8.0-devel-ubuntu22.04", "2.35"),
        ("ubuntu", "ubuntu:20.04", "2.31"),
        ("debian", "ubuntu:22.04", None),
        ("centos7", "centos:7", "2.17"),
        ("rocky8", "nvidia/cuda:11.8.0-devel-rockylinux8", "2.28"),
    ],
)
def test_release_of_image(family: str, image: str, glibc: str | None) -> None:
    release = FACTS.release_of_image(family, image)
    assert (release.glibc if release else None) == glibc


def test_toolkit_ranges() -> None:
    assert FACTS.toolkits_for("7.0")[-1] == "12.9", "Volta ends before CUDA 13"
    assert FACTS.toolkits_for("9.0")[0] == "11.8"
    assert FACTS.compiles("11.7", "9.0") is False
    assert FACTS.compiles("12.2", "9.0") is True, "between two toolkits that were looked at"


def test_driver_floor_is_the_higher_of_toolkit_and_gpu() -> None:
    floors = [FACTS.driver_floor("12.8", gpus) for gpus in ((), ("h100",), ("b200",))]
    assert [floor.floor for floor in floors if floor] == ["525", "525", "570.133.20"]
    assert [floor.floor for floor in [FACTS.driver_floor("13.0", ("b200",))] if floor] == ["580"]


def test_tolerated_cuda_grows_with_deepspeed() -> None:
    assert not FACTS.tolerates("0.14.2", "12.4")
    assert FACTS.tolerates("0.14.3", "12.4")
    assert FACTS.tolerates("0.8.3", "11.8")
    assert not FACTS.tolerates("0.19.8", "12.7") and not FACTS.tolerates("0.19.8", "13.0")


def test_ops_know_what_they_need() -> None:
    ops = FACTS.deepspeed.ops
    assert ops["deepspeed_shm_comm"].build_variable == "DS_BUILD_SHM_COMM"
    assert set(ops["deepspeed_shm_comm"].since) == {"cpu"}
    assert ops["async_io"].build_packages["debian"] == ("libaio-dev",)
    assert ops["async_io"].run_packages["debian"] == ("libaio1",)
    assert [ops["cpu_adam"].needs_nvcc("cuda", version) for version in ("0.14.2", "0.14.3")] == [True, False]
    assert [ops["cpu_adam"].needs_toolkit("cuda", version) for version in ("0.19.7", "0.19.8")] == [True, False]
    assert [ops["cpu_adam"].needs_curand("cuda", version) for version in ("0.14.2", "0.14.3")] == [True, False]
    assert not ops["cpu_adam"].needs_curand("cpu", "0.14.2") and not ops["fused_adam"].needs_curand("cuda", "0.14.2")
    assert [ops["async_io"].needs_toolkit("cuda", version) for version in ("0.14.5", "0.15.0")] == [False, True]
    assert ops["fused_adam"].needs_nvcc("cuda", "0.19.8") and not ops["fused_adam"].needs_nvcc("cpu", "0.19.8")
    asked = ("async_io", "cpu_adam", "a_new_one")
    assert FACTS.deepspeed.with_implied(asked, "0.19.8") == (*asked, "pin_memory")
    assert FACTS.deepspeed.with_implied(asked, "0.19.4") == asked


def test_versions_compare_as_numbers() -> None:
    assert within("2.10.0", "2.9.1", None) and not within("2.9.1", "2.10", None)
    assert within("2.13", "2.13.0", "2.13.0")
    assert within("2.13.0rc1", None, "2.13.0") and not within("2.13.0rc1", "2.13.0", None)
    assert starts_with("2.18.1", "2.18") and starts_with("2.18", "2.18") and not starts_with("2.180.1", "2.18")
    assert neighbours("2.10.5", ["2.9.1", "2.11.0", "2.2.0", "2.10.0"]) == ["2.10.0", "2.11.0"]
    assert [cuda_of_build(build) for build in ("cu92", "cu118", "cu130", "cpu")] == ["9.2", "11.8", "13.0", None]
