"""The compiler wrapper with real compilers: levels of the x86-64 psABI by name, and where the name is not known."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

WRAPPER = Path(__file__).parents[2] / "templates/files/compiler"


def macros(wrapper: Path, real: str, level: str) -> list[str]:
    """What a compiler defines when a builder asks for this machine's own instructions."""
    env = {**os.environ, "ENVBUILD_CC": real, "ENVBUILD_CXX": real, "ENVBUILD_MARCH": level}
    argv = ["sh", str(wrapper), "-march=native", "-dM", "-E", "-x", "c", "/dev/null"]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=True, timeout=60)
    return sorted(done.stdout.splitlines())


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="hardware: the levels are those of x86-64")
@pytest.mark.parametrize("level", ["x86-64-v2", "x86-64-v3", "x86-64-v4"])
def test_a_compiler_that_does_not_know_a_levels_name_gets_the_same_instructions(level: str, tmp_path: Path) -> None:
    wrapper = tmp_path / "c++"
    shutil.copy(WRAPPER, wrapper)
    gcc = shutil.which("gcc")
    assert gcc, "make compiler installs it"
    old = tmp_path / "old-gcc"
    # GCC 9 and 10 end so, too: "bad value for -march= switch".
    old.write_text(f'#!/bin/sh\nfor word; do case "$word" in -march=x86-64-v*) exit 1 ;; esac; done\nexec {gcc} "$@"\n')
    old.chmod(0o755)
    by_name, spelled = macros(wrapper, gcc, level), macros(wrapper, str(old), level)
    assert by_name == spelled
    assert any("__AVX512VL__" in line for line in spelled) is (level == "x86-64-v4")
