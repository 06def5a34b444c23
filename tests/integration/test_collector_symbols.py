"""Symbols by the hash table, and AVX-512 by its bytes: held against readelf and against what a compiler was told."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from envbuild.collector import symbols, wide

_CODE = """
#include <stddef.h>
extern int _ZN3c103OldC1Ev(void);
extern int ncclCommRegister(void);
extern int maybe(void) __attribute__((weak));
int ncclSend(void) { return 1; }
int call(void) { return _ZN3c103OldC1Ev() + ncclCommRegister() + (maybe ? maybe() : 0); }
void add(float *a, const float *b, size_t n) { for (size_t i = 0; i < n; i++) a[i] = a[i] * b[i] + b[i]; }
"""


def build(target: Path, code: str = _CODE, *flags: str) -> str:
    target.parent.mkdir(parents=True, exist_ok=True)
    argv = ["gcc", "-shared", "-fPIC", "-O3", *flags, "-o", str(target), "-xc", "-"]
    subprocess.run(argv, input=code, text=True, check=True, timeout=60, capture_output=True)
    return str(target)


def readelf(path: str) -> tuple[set[str], set[str]]:
    """Defined and (strongly) undefined dynamic symbols."""
    out = subprocess.run(
        ["readelf", "--dyn-syms", "--wide", path], text=True, check=True, timeout=120, capture_output=True
    )
    defined, undefined = set(), set()
    for line in out.stdout.splitlines():
        parts = line.split()
        if len(parts) >= 8 and parts[0].rstrip(":").isdigit():
            name = parts[7].partition("@")[0]
            if parts[6] != "UND":
                defined.add(name)
            elif parts[4] != "WEAK":
                undefined.add(name)
    return defined, undefined


def _natives() -> list[str]:
    """Some of this machine's own libraries, of several linkers and languages."""
    import pydantic_core

    found = [next(Path(pydantic_core.__file__).parent.glob("*.so"))]
    found += [Path(folder) / name for folder in ("/lib/x86_64-linux-gnu", "/lib64")
              for name in ("libc.so.6", "libm.so.6", "libstdc++.so.6")]  # fmt: skip
    return [str(path) for path in found if path.is_file()]


@pytest.mark.parametrize("style", ["gnu", "both"])
def test_every_symbol_is_found_as_readelf_has_it(tmp_path: Path, style: str) -> None:
    for path in [build(tmp_path / "op.so", _CODE, f"-Wl,--hash-style={style}"), *_natives()]:
        defined, undefined = readelf(path)
        assert defined
        with symbols.Symbols(path) as file:
            assert set(file.undefined()) == undefined
            assert {name for name in defined if not file.defines(name)} == set()
            assert not file.defines("no_such_symbol") and not any(map(file.defines, undefined - defined))


def test_what_torch_and_nccl_do_not_have(tmp_path: Path) -> None:
    op = build(tmp_path / "op.so")
    assert {"_ZN3c103OldC1Ev", "ncclCommRegister"} <= set(symbols.undefined(op))
    lib = tmp_path / "torch" / "lib"
    build(lib / "libc10.so", "int x;")
    assert symbols.absent(symbols.undefined(op), str(lib)) == ["_ZN3c103OldC1Ev"]
    build(lib / "libtorch_python.so", "int _ZN3c103OldC1Ev(void) { return 0; }")
    assert symbols.absent(symbols.undefined(op), str(lib)) == []
    old, new = build(tmp_path / "old.so", "int ncclSend;"), build(tmp_path / "new.so", "int ncclCommRegister;")
    assert symbols.nccl_lacks([op], [old, new, "/nowhere"]) == {old: ["ncclCommRegister"]}
    # A library that cannot be read may be the one that has it.
    (lib / "libtorch_python.so").write_bytes(b"\x7fELF")
    assert symbols.absent(symbols.undefined(op), str(lib)) is None
    assert symbols.absent(["_ZN3c103OldC1Ev"], str(tmp_path / "nowhere")) is None


def test_avx512_shows_in_the_bytes(tmp_path: Path) -> None:
    def measured(*flags: str) -> float:
        with Path(build(tmp_path / "op.so", _CODE, *flags)).open("rb") as stream:
            found = wide.wide(stream)
        assert isinstance(found, float)
        return found

    assert measured("-march=x86-64-v4", "-mprefer-vector-width=512") > 200 > 10 > measured("-march=x86-64-v3")


def test_no_damage_breaks_the_reader(tmp_path: Path) -> None:
    whole = Path(build(tmp_path / "op.so")).read_bytes()
    target = tmp_path / "damaged.so"
    for at in range(0, 1024, 7):
        target.write_bytes(whole[:at])
        assert symbols.undefined(str(target)) == []
        target.write_bytes(whole[:at] + b"\xff" * 8 + whole[at + 8 :])
        symbols.absent(symbols.undefined(str(target)), str(tmp_path))
        symbols.nccl_lacks([str(target)], [str(target)])
    assert symbols.undefined(sys.executable) is not None


def test_what_a_library_without_versions_lacks(tmp_path: Path) -> None:
    script = tmp_path / "map"
    script.write_text("V_1 { global: one; two; };")
    (tmp_path / "real").mkdir()
    code, soname = "int one(void) { return 1; } int two(void) { return 2; }", "-Wl,-soname,libv.so.1"
    real = build(tmp_path / "real/libv.so.1", code, f"-Wl,--version-script={script}", soname)
    calls = "int one(void); int two(void); int other(void); int call(void) { return one() + two() + other(); }"
    asker = build(tmp_path / "asker.so", calls, "-Wl,--no-as-needed", "-xnone", real)
    with symbols.Symbols(asker) as each:
        assert sorted(each.versioned("libv.so.1")) == ["one", "two"]
        assert each.versioned("libc.so.6") == []
    stub = build(tmp_path / "libv.so.1", "int one(void) { return 1; }", soname)
    whole = build(tmp_path / "whole/libv.so.1", code, soname)

    def file(path: str, **changes: object) -> dict[str, object]:
        asks = [["libv.so.1", "V_1", False]] if path == asker else []
        return {"kind": "shared", "soname": "libv.so.1", "versioned": False, "requires": asks, **changes}

    files = {asker: file(asker, soname=None), stub: file(stub), whole: file(whole), real: file(real, versioned=True)}
    assert symbols.unversioned_lack(files) == {stub: ["two"]}
    Path(stub).write_bytes(b"")
    assert symbols.unversioned_lack(files) == {}
