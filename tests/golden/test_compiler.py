"""The compiler wrapper of the ops stage, with a compiler that only says how it was called."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

WRAPPER = Path(__file__).parents[2] / "templates/files/compiler"


def called(folder: Path, *argv: str, link: str | None = "async_io_op=aio") -> list[str]:
    wrapper, real = folder / "c++", folder / "real"
    shutil.copy(WRAPPER, wrapper)
    real.write_text('#!/bin/sh\nfor word in "$@"; do echo "$word"; done\n')
    real.chmod(0o755)
    env = {**os.environ, "ENVBUILD_CC": "false", "ENVBUILD_CXX": str(real), "ENVBUILD_MARCH": "x86-64-v3"}
    env.pop("ENVBUILD_LINK", None)
    if link is not None:
        env["ENVBUILD_LINK"] = link
    done = subprocess.run(["sh", wrapper, *argv], env=env, capture_output=True, text=True, check=True, timeout=30)
    return done.stdout.splitlines()


def test_the_build_machine_leaves_no_trace(tmp_path: Path) -> None:
    words = called(tmp_path, "-march=native", "-mtune=native", "-D__AVX512__", "-c", "a b.cpp")
    assert words == ["-march=x86-64-v3", "-D__AVX256__", "-c", "a b.cpp"]


@pytest.mark.parametrize(
    ("output", "link", "linked"),
    [
        ("build/ops/aio/async_io_op.cpython-311-x86_64-linux-gnu.so", "async_io_op=aio", ["-laio"]),
        ("build/ops/aio/async_io_op.so", "cpu_adam_op=x async_io_op=aio async_io_op=numa", ["-laio", "-lnuma"]),
        ("build/ops/adam/cpu_adam_op.so", "async_io_op=aio", []),
        ("build/ops/aio/async_io_op.so", None, []),
    ],
)
def test_what_a_builder_forgets_is_linked_behind_the_objects(
    output: str, link: str | None, linked: list[str], tmp_path: Path
) -> None:
    argv = ["-shared", "x.o", "-o", output]
    assert called(tmp_path, *argv, link=link) == [*argv, *linked]
