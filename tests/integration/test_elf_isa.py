"""Instruction sets of code that a real compiler made, compared with what objdump says of the same files."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from envbuild.elf.isa import Dispatch, Guard, Isa, read_isa

# What DeepSpeed's ops do, in small: a loop that the compiler vectorizes, a kernel for a newer CPU, a check.
SOURCE = r"""
#include <immintrin.h>
#include <cstdint>
#include <cstring>
extern "C" void scale(float* x, float f, int n) { for (int i = 0; i < n; i++) x[i] = x[i] * f + 1.0f; }
extern "C" int bits(uint64_t x) { return __builtin_popcountll(x) + __builtin_clzll(x) + __builtin_ctzll(x | 1); }
extern "C" int many(int x) {
    switch (x) { case 0: return 7; case 1: return 3; case 2: return 9; case 3: return 1; case 4: return 8; }
    return x;
}
#ifdef KERNEL
__attribute__((target("avx512bw"), noinline)) void kernel(char* to, const char* from, int n) {
    #pragma omp parallel for
    for (int i = 0; i < n; i += 64) {
        __m512i v = _mm512_loadu_si512(from + i);
        _mm512_storeu_si512(to + i, _mm512_adds_epi8(v, _mm512_set1_epi8(3)));
    }
}
extern "C" void entry(char* to, const char* from, int n) { kernel(to, from, n); }
#endif
#ifdef CHECK
int level() { return __builtin_cpu_supports("avx512bw") ? 2 : 0; }
#endif
"""
DISPATCH = Dispatch(check="level", guards=(Guard(functions=("kernel",), extensions=("AVX", "AVX512F", "AVX512BW")),))
Compile = Callable[..., Path]
# Names of registers that only an EVEX prefix, or an opmask instruction, can say.
_AVX512 = re.compile(r"%zmm|%k[0-7]|%[xy]mm(1[6-9]|2\d|3[01])")


@pytest.fixture(scope="module")
def compile_(tmp_path_factory: pytest.TempPathFactory) -> Compile:
    folder = tmp_path_factory.mktemp("ops")
    source = folder / "op.cpp"
    source.write_text(SOURCE)

    def call(*options: str, march: str = "x86-64-v3") -> Path:
        made = folder / ("_".join([march, *options]).replace("/", "") + ".so")
        argv = ["g++", "-shared", "-fPIC", "-O3", "-fopenmp", f"-march={march}", *options, "-o", str(made), str(source)]
        subprocess.run(argv, check=True, timeout=120)
        return made

    return call


def read(path: Path) -> Isa:
    with path.open("rb") as file:
        found = read_isa(file)
    assert isinstance(found, Isa)
    assert not found.gaps and not found.truncated
    return found


def objdump(path: Path) -> list[tuple[str, str]]:
    """Every instruction as (function, text)."""
    done = subprocess.run(
        ["objdump", "-d", "--no-show-raw-insn", str(path)], check=True, capture_output=True, text=True, timeout=120
    )
    function, found = "", []
    for line in done.stdout.splitlines():
        head = re.match(r"[0-9a-f]+ <(.+)>:$", line)
        if head:
            function = head[1]
        elif re.match(r"\s+[0-9a-f]+:\t", line):
            found.append((function, line.split("\t", 1)[1]))
    return found


def counts(isa: Isa, prefix: str) -> Counter[str]:
    found: Counter[str] = Counter()
    for use in isa.uses:
        if use.extension.startswith(prefix):
            found[use.function] += use.count
    return found


@pytest.mark.parametrize("march", ["x86-64", "x86-64-v2", "x86-64-v3", "x86-64-v4"])
def test_the_level_is_the_one_that_the_compiler_was_told(compile_: Compile, march: str) -> None:
    path = compile_("-mprefer-vector-width=512", march=march)
    isa = read(path)
    assert isa.level == march
    assert isa.beyond(march) == ()
    assert counts(isa, "AVX512") == Counter(function for function, text in objdump(path) if _AVX512.search(text))
    vector = Counter(function for function, text in objdump(path) if re.match(r"v[a-z]|k[a-z]+[bwdq] ", text))
    general = ("BMI1", "BMI2", "LZCNT", "MOVBE", "POPCNT", "SSE3", "SSSE3", "SSE4.1", "SSE4.2", "CMPXCHG16B")
    assert sum(use.count for use in isa.uses if use.extension not in general) == vector.total()


@pytest.mark.parametrize("march", ["x86-64-v4", "sapphirerapids"])
def test_an_op_compiled_for_a_newer_cpu_is_refused_whatever_it_asks(compile_: Compile, march: str) -> None:
    path = compile_("-DKERNEL", "-DCHECK", "-mprefer-vector-width=512", march=march)
    beyond = {use.function for use in read(path).beyond("x86-64-v3", DISPATCH)}
    wanted = {function for function, text in objdump(path) if _AVX512.search(text)}
    assert "scale" in beyond and {function for function in wanted if "kernel" not in function} <= beyond


def test_a_kernel_behind_a_check_passes_where_upstream_is_known_to_ask(compile_: Compile) -> None:
    path = compile_("-DKERNEL", "-DCHECK")
    isa = read(path)
    kernels = {use.function for use in isa.beyond("x86-64-v3")}
    assert kernels == {function for function, text in objdump(path) if _AVX512.search(text)}
    assert len(kernels) == 1 and "_omp_fn" in next(iter(kernels))
    assert isa.beyond("x86-64-v3", DISPATCH) == ()
    assert "_Z5levelv" in isa.tests_cpu and "__cpu_indicator_init" in isa.tests_cpu
    # The kernel is inlined, or its name is gone: nothing says any more what the check guards.
    stripped = path.with_suffix(".stripped")
    subprocess.run(["strip", "--strip-all", "-o", str(stripped), str(path)], check=True, timeout=60)
    assert read(stripped).beyond("x86-64-v3", DISPATCH)


def test_a_kernel_without_a_check_is_refused(compile_: Compile) -> None:
    unasked = read(compile_("-DKERNEL"))
    assert unasked.tests_cpu == ()
    assert unasked.beyond("x86-64-v3", DISPATCH) == unasked.beyond("x86-64-v3") != ()


def test_a_kernel_that_the_facts_do_not_name_is_refused(compile_: Compile) -> None:
    isa = read(compile_("-DKERNEL", "-DCHECK", "-Dkernel=another"))
    assert isa.beyond("x86-64-v3", DISPATCH) == isa.beyond("x86-64-v3") != ()


def test_undecodable_code_is_told(compile_: Compile) -> None:
    path = compile_()
    data = path.read_bytes()
    table = subprocess.run(["readelf", "-sW", str(path)], check=True, capture_output=True, text=True, timeout=60)
    found_at = re.search(r"([0-9a-f]+) +\d+ FUNC .* many$", table.stdout, re.M)
    assert found_at
    address = int(found_at[1], 16)
    changed = path.with_suffix(".changed")
    changed.write_bytes(data[:address] + b"\x06" + data[address + 1 :])  # the text is mapped where it lies in the file
    with changed.open("rb") as file:
        found = read_isa(file)
    assert isinstance(found, Isa)
    assert [(gap.function, gap.address, gap.count) for gap in found.gaps] == [("many", address, 1)]
