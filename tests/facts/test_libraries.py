"""What torch's libraries ask of the system, and the compilers that made them.

libtorch_python.so and libc10.so of each release, in parts. They are two of the libraries that the facts speak of: what
they ask for can be less than the newest of all, and never more.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from envbuild import elf, facts
from envbuild.elf.versions import parse as numbers
from envbuild.facts import Facts
from envbuild.facts.refresh import torch
from envbuild.facts.upstream import Upstream
from envbuild.facts.versions import parse, within

from .conftest import FOLDER

RELEASES = list(facts.load([FOLDER]).versions)
LIBRARIES = ("libtorch_python.so", "libc10.so")
# Releases by the newest GCC in .comment (libtorch_python.so).
GCC = (("1.13.0", "2.6.0", "9.3.1"), ("2.7.0", "2.7.1", "11.2.1"), ("2.8.0", "2.15.0", "13.3.1"))
_GCC = re.compile(r"GCC: \([^)]*\) (\d+\.\d+\.\d+)")


@pytest.mark.parametrize("version", RELEASES)
def test_symbol_versions_abi_and_compiler(
    version: str, upstream: Upstream, known: Facts, tmp_path: Path, say: Any
) -> None:
    own = [file for file in torch.on_linux(upstream.files("torch")) if str(file.version) == version]
    wheel = torch.choose(own)
    asked: set[str] = set()
    abis: set[bool] = set()
    compilers: set[str] = set()
    for name in LIBRARIES:
        path = tmp_path / name
        path.write_bytes(upstream.member(wheel, rf"torch/lib/{re.escape(name)}", limit=400 << 20))
        with path.open("rb") as opened:
            read = elf.read(opened, name)
        asked |= {need.version for need in read.requires}
        abis |= {read.cxx11_abi} - {None}  # type: ignore[arg-type]
        if name == LIBRARIES[0]:
            compilers = {found[1] for text in read.comment if (found := _GCC.search(text))}
    build = known.versions[version].pypi
    assert build
    fact = known.torch_libraries(version, build.build, "linux/amd64")
    assert fact, f"no facts about the libraries of torch {version}"
    newest = {family: elf.highest(asked, family) for family in ("GLIBC", "GLIBCXX", "CXXABI")}
    for family, limit in (("GLIBC", fact.glibc), ("GLIBCXX", fact.glibcxx), ("CXXABI", fact.cxxabi)):
        found = newest[family]
        assert found and limit, (family, found, limit)
        assert numbers(found)[1] <= numbers(f"{family}_{limit}")[1], f"torch {version} asks for {found}"  # type: ignore[index]
    assert abis == {fact.cxx11_abi == "new"}
    expected = next((gcc for since, through, gcc in GCC if within(version, since, through)), None)
    gcc = max(compilers, key=parse)
    if expected:
        assert gcc == expected
    say(f"torch {version}", f"{', '.join(map(str, newest.values()))}, {fact.cxx11_abi} string ABI, GCC {gcc}")
