"""The scripts of a bundle, read by the shells of Enterprise Linux and others, and by shellcheck."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from envbuild.bundle import scripts
from envbuild.bundle.scripts import files
from offline_made import sh

FOLDER = Path(scripts.__file__).parent
SHELLCHECK = str(Path(sys.executable).with_name("shellcheck"))
SHELLS = ("dash", "bash")


@pytest.mark.parametrize("name", sorted(files()))
def test_every_shell_reads_it(name: str) -> None:
    done = subprocess.run([SHELLCHECK, "-x", "-P", FOLDER, FOLDER / name], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout
    for shell in SHELLS:
        assert sh("-n", FOLDER / name, shell=shell).stderr == ""


@pytest.mark.parametrize("name", [name for name in sorted(files()) if "/" not in name])
@pytest.mark.parametrize("shell", SHELLS)
def test_help_tells_exit_codes_and_examples(name: str, shell: str) -> None:
    done = sh(FOLDER / name, "--help", shell=shell)
    assert done.returncode == 0 and "Exit codes: 0 " in done.stdout and "Examples:" in done.stdout
    assert all(len(line) <= 120 for line in done.stdout.splitlines())
    wrong = sh(FOLDER / name, "--no-such-option", shell=shell)
    assert wrong.returncode == 2 and "see --help" in wrong.stderr


@pytest.mark.parametrize(
    "word",
    [
        "--nogpgcheck",
        "--nodeps",
        "--allowerasing",
        "--skip-broken",
        "--force",
        "--nosignature",
        "--trusted-host",
        "curl",
    ],
)
def test_no_script_forces_anything_or_fetches_anything(word: str) -> None:
    lines = [line for content in files().values() for line in content.decode().splitlines()]
    said = [line for line in lines if word in line and not line.lstrip().startswith("#")]
    assert said == []
