"""GPU code from the headers of real fatbins, compared with what NVIDIA's cuobjdump says of the same files."""

from __future__ import annotations

import contextlib
import io
import re
import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envbuild.elf import gpucode
from envbuild.elf.gpucode import (
    Coverage,
    GpuCode,
    Kernels,
    coverage,
    cubin_runs_on,
    ptx_runs_on,
    read_gpu_code,
)
from envbuild.elf.sections import ElfError, read_sections

FIXTURES = Path(__file__).parent / "data" / "gpucode"


def read(name: str) -> GpuCode:
    with (FIXTURES / f"{name}.so").open("rb") as file:
        return read_gpu_code(file)


def listed(name: str, kind: str) -> set[str]:
    """The architectures in cuobjdump's listing: ``PTX file    1: x.1.sm_90a.ptx`` is 9.0a."""
    text = (FIXTURES / f"{name}.txt").read_text()
    return {
        f"{sm[:-1]}.{sm[-1]}{suffix}" for sm, suffix in re.findall(rf"^{kind} file.*\.sm_(\d+)([af]?)\.", text, re.M)
    }


@pytest.mark.parametrize("name", ["compressed", "containers", "plain"])
def test_the_lists_are_those_of_cuobjdump(name: str) -> None:
    code = read(name)
    # cuobjdump does not tell a family's cubin (code=sm_100f) from a plain one; its PTX it does.
    assert {cubin.removesuffix("f") for cubin in code.cubins} == listed(name, "ELF")
    assert set(code.ptx) == listed(name, "PTX")
    assert code.entries == len((FIXTURES / f"{name}.txt").read_text().splitlines())
    assert not code.problems and not code.relocatable


def test_what_was_compiled_for_what_is_kept_by_container() -> None:
    assert read("containers").kernels == (
        Kernels(cubins=("8.0", "9.0a", "10.0"), ptx=("9.0",), count=1),
        Kernels(cubins=("8.6", "10.0f", "10.3a"), ptx=("10.0f", "10.3a"), count=1),
    )
    assert read("containers").cubins == ("8.0", "8.6", "9.0a", "10.0", "10.0f", "10.3a")


def test_relocatable_code_is_counted_and_serves_no_gpu() -> None:
    code = read("relocatable")
    assert code.relocatable == 4 == len(listed("relocatable", "ELF")) + len(listed("relocatable", "PTX"))
    assert (code.cubins, code.ptx, code.entries) == ((), (), 0)
    assert not coverage(code, "8.0").complete


def test_a_library_without_gpu_code_has_none() -> None:
    data = (FIXTURES / "plain.so").read_bytes().replace(b".nv_fatbin\0", b".other_sec\0")
    code = read_gpu_code(io.BytesIO(data))
    assert code == GpuCode(cubins=(), ptx=(), entries=0, relocatable=0, kernels=(), problems=())
    assert coverage(code, "9.0") == Coverage(cubin=0, ptx_only=0, nothing=0) and not coverage(code, "9.0").complete


@pytest.mark.parametrize(
    ("name", "runs", "does_not"),
    [
        ("8.0", ("8.0", "8.6", "8.9"), ("7.5", "9.0")),
        ("8.6", ("8.6", "8.9"), ("8.0",)),
        ("9.0a", ("9.0",), ("8.0", "10.0")),
        ("10.0", ("10.0", "10.3"), ("11.0", "12.0")),
        ("10.0a", ("10.0",), ("10.3", "11.0")),
        ("10.0f", ("10.0", "10.3"), ("11.0", "12.0")),
        ("12.0f", ("12.0", "12.1"), ("10.0",)),
    ],
)
def test_which_gpus_execute_a_cubin(name: str, runs: tuple[str, ...], does_not: tuple[str, ...]) -> None:
    assert [gpu for gpu in runs + does_not if cubin_runs_on(name, gpu)] == list(runs)


@pytest.mark.parametrize(
    ("name", "runs", "does_not"),
    [
        ("8.6", ("8.6", "8.9", "9.0", "10.0", "12.1"), ("8.0", "7.5")),
        ("9.0a", ("9.0",), ("8.0", "10.0")),
        ("10.0f", ("10.0", "10.3"), ("9.0", "12.0")),
    ],
)
def test_for_which_gpus_a_driver_compiles_ptx(name: str, runs: tuple[str, ...], does_not: tuple[str, ...]) -> None:
    assert [gpu for gpu in runs + does_not if ptx_runs_on(name, gpu)] == list(runs)


def test_a_gpu_is_served_when_every_container_has_a_cubin_for_it() -> None:
    code = read("containers")
    assert coverage(code, "10.0") == Coverage(cubin=2, ptx_only=0, nothing=0) and coverage(code, "10.0").complete
    assert coverage(code, "8.9").complete
    # Only the first container knows of Hopper: half the kernels of this library would be missing there.
    assert coverage(code, "9.0") == Coverage(cubin=1, ptx_only=0, nothing=1)
    assert coverage(code, "12.0") == Coverage(cubin=0, ptx_only=1, nothing=1)
    assert coverage(read("compressed"), "12.0") == Coverage(cubin=0, ptx_only=1, nothing=0)
    assert not coverage(read("compressed"), "12.0").complete
    with pytest.raises(ValueError, match="not a compute capability"):
        coverage(code, "sm_90")


# --- damage

WHOLE = (FIXTURES / "containers.so").read_bytes()
(SECTION,) = read_sections(io.BytesIO(WHOLE)).named(".nv_fatbin")
SECOND = WHOLE.index(struct.pack("<I", 0xBA55ED50), SECTION.offset + 4)


def changed(at: int, data: bytes) -> GpuCode:
    return read_gpu_code(io.BytesIO(WHOLE[:at] + data + WHOLE[at + len(data) :]))


@pytest.mark.parametrize(
    ("at", "data", "problem"),
    [
        (SECOND, b"XXXX", "no container of GPU code"),
        (SECOND + 4, b"\x02\x00", "no container of GPU code"),  # another version of the format
        (SECOND + 8, b"\xff" * 8, "no container of GPU code"),  # longer than the section
        (SECOND + 8, struct.pack("<Q", 40), "in the middle of an entry"),
        (SECOND + 16, b"\x07", "unknown kind"),
        (SECOND + 16 + 4, bytes(4), "larger than its container"),  # a header of no size would be read for ever
        (SECOND + 16 + 8, b"\xff" * 8, "larger than its container"),
        (SECOND + 16 + 28, bytes(4), "unknown kind"),  # architecture 0
    ],
)
def test_damage_is_told_and_what_came_before_is_kept(at: int, data: bytes, problem: str) -> None:
    code = changed(at, data)
    (said,) = code.problems
    assert said.startswith(".nv_fatbin: ") and problem in said
    assert code.kernels == read("containers").kernels[:1]


def test_work_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A section of nothing but zeros, and one of nothing but entries."""
    zeros = b"\0" * 10_000
    table = bytearray(WHOLE)
    (offset,) = struct.unpack_from("<Q", WHOLE, 40)
    names = [section.name for section in read_sections(io.BytesIO(WHOLE)).sections]
    struct.pack_into("<QQ", table, offset + 64 * names.index(".nv_fatbin") + 24, len(WHOLE), len(zeros))
    assert "zeros where" in read_gpu_code(io.BytesIO(bytes(table) + zeros)).problems[0]
    monkeypatch.setattr(gpucode, "_MAX_ENTRIES", 8)
    assert read("containers").problems == (".nv_fatbin: more than 8 entries",)


def test_a_file_without_a_section_table_is_refused() -> None:
    with pytest.raises(ElfError, match="no section table"):
        read_gpu_code(io.BytesIO(WHOLE[:40] + bytes(8) + WHOLE[48:]))


@settings(max_examples=200, deadline=None)
@given(
    changes=st.lists(st.tuples(st.integers(0, SECTION.size - 1), st.integers(0, 255)), max_size=6),
    cut=st.integers(0, len(WHOLE)),
)
def test_any_damage_gives_an_answer_or_an_elf_error(changes: list[tuple[int, int]], cut: int) -> None:
    data = bytearray(WHOLE)
    for place, value in changes:
        data[SECTION.offset + place] = value
    for image in (data, data[:cut]):
        with contextlib.suppress(ElfError):
            read_gpu_code(io.BytesIO(bytes(image)))
