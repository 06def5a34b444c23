"""The scripts of every row that has a lock, read by the shells and by shellcheck; and env.sh, sourced by them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from envbuild import facts, lock, plan, render
from envbuild.matrix import load
from envbuild.pipeline.provision import glibc_of
from envbuild.project import find

PROJECT = find(None, Path(__file__))
MATRIX = load(PROJECT.matrix)
FACTS = facts.load()
SHELLCHECK = str(Path(sys.executable).with_name("shellcheck"))
LOCKED = sorted(
    path.parent.name for path in PROJECT.images.glob("*/lock.json") if json.loads(path.read_text()).get("packages")
)
SHELLS = [name for name in ("dash", "bash", "zsh", "busybox") if shutil.which(name)]


def planned(row: str) -> plan.Plan:
    return plan.make(MATRIX.get(row), lock.read(PROJECT.images / row / "lock.json"), FACTS)


def script(row: str) -> bytes:
    return render.provision(planned(row), PROJECT.templates, glibc=glibc_of(MATRIX.get(row), FACTS))


def clean(text: bytes, *options: str) -> None:
    done = subprocess.run(
        [SHELLCHECK, "--shell=sh", *options, "-"],
        input=text,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout.decode()
    for shell in (["dash"], ["bash", "--posix"]):
        done = subprocess.run([*shell, "-n"], input=text, stderr=subprocess.PIPE, timeout=60)
        assert done.returncode == 0, done.stderr.decode()


@pytest.mark.parametrize("row", LOCKED)
def test_the_script_is_what_every_shell_reads(row: str) -> None:
    clean(script(row))


@pytest.mark.parametrize("row", LOCKED)
def test_what_apptainer_runs_is_what_every_shell_reads(row: str) -> None:
    text = render.apptainer(planned(row), PROJECT.templates).decode()
    parts = re.split(r"^%(\w+)[^\n]*\n", text, flags=re.MULTILINE)
    for name, body in zip(parts[1::2], parts[2::2], strict=True):
        if name in ("setup", "post", "environment", "test"):
            # Apptainer adds the first line, and exports what is set for it.
            clean(f"#!/bin/sh\n{body}".encode(), "--exclude=SC2154" if name == "setup" else "--severity=warning")


@pytest.mark.parametrize("shell", SHELLS)
def test_env_sh_comes_and_goes_in_every_shell(shell: str, tmp_path: Path) -> None:
    """Two prefixes, sourced twice and one after the other: what was there before is there again."""
    source = script("cpu").decode()
    body = source[source.index("write_env() {") :].partition("\nENVBUILD_ENV\n}\n")[0] + "\nENVBUILD_ENV\n}\n"
    files = []
    for name in ("one", "two"):
        prefix = tmp_path / name
        prefix.mkdir()
        head = f"prefix={prefix}; row=cpu; venv=$prefix/venv; state=$prefix/envbuild; cc=/c-{name}; cxx=/x-{name}\n"
        made = subprocess.run(["sh", "-euc", head + body + "write_env"], capture_output=True, text=True, check=True)
        (prefix / "env.sh").write_text(made.stdout)
        clean(made.stdout.encode())
        files.append(prefix / "env.sh")
    one, two = files
    text = f"""set -u
    export CC='my cc' ; unset CXX DS_ACCELERATOR; before=$PATH
    . {one}; . {one}
    [ "$CC $CXX $DS_ACCELERATOR" = '/c-one /x-one cpu' ] || echo wrong one
    [ "$PATH" = "{one.parent}/venv/bin:{one.parent}/bin:$before" ] || echo "path $PATH"
    PATH=$PATH:/later
    . {two}
    [ "$CC $CXX $VIRTUAL_ENV" = "/c-two /x-two {two.parent}/venv" ] || echo wrong two
    . {two}
    sh -euc '. {two}; envbuild_deactivate; [ "$CC" = "my cc" ] || echo child'
    envbuild_deactivate
    [ "$CC/${{CXX-none}}/${{DS_ACCELERATOR-none}}/${{VIRTUAL_ENV-none}}" = 'my cc/none/none/none' ] || echo "left $CC"
    [ "$PATH" = "$before:/later" ] || echo "path $PATH"
    env | grep -i envbuild || :
    """
    argv = [shell, "sh", "-c", text] if shell == "busybox" else [shell, "-c", text]
    env = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(tmp_path)}
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr, done.returncode) == ("", "", 0)
