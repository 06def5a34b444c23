"""The scripts of a bundle, read by the shells of Enterprise Linux and others, and by shellcheck."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from envbuild.bundle import scripts
from envbuild.bundle.scripts import files
from offline_made import sh

REPOSITORY = Path(__file__).parents[2]
FOLDER = Path(scripts.__file__).parent
SHELLCHECK = str(Path(sys.executable).with_name("shellcheck"))
SHELLS = ("dash", "bash")
SCRIPTS = sorted(files())


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_shell_reads_it(name: str) -> None:
    done = subprocess.run([SHELLCHECK, "-x", "-P", FOLDER, FOLDER / name], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout
    for shell in SHELLS:
        assert sh("-n", FOLDER / name, shell=shell).stderr == ""


@pytest.mark.parametrize("name", [name for name in SCRIPTS if "/" not in name])
@pytest.mark.parametrize("shell", SHELLS)
def test_help_tells_exit_codes_and_examples(name: str, shell: str) -> None:
    done = sh(FOLDER / name, "--help", shell=shell)
    assert done.returncode == 0 and "Exit codes: 0 " in done.stdout and "Examples:" in done.stdout
    # A console has 80 columns.
    assert all(len(line) <= 80 for line in done.stdout.splitlines())
    wrong = sh(FOLDER / name, "--no-such-option", shell=shell)
    assert wrong.returncode == 2 and "see --help" in wrong.stderr


def test_what_lies_beside_them_names_every_exit_code() -> None:
    said = scripts.readme().decode("ascii")
    assert all(len(line) <= 80 for line in said.splitlines())
    told = {int(code) for code in re.findall(r"^ {1,3}([0-9]{1,3})  ", said, re.MULTILINE)}
    text = "".join(files()[name].decode() for name in SCRIPTS)
    used = {int(code) for code in re.findall(r"\b(?:stop|failed|lacks|exit) ([0-9]{2,3})\b", text)}
    # What a command says of itself (99) never leaves the installer.
    assert used - told == set() and {0, 2, 10, 70, 130} <= told
    for page in ("docs/offline.md",):
        table = {int(code) for code in re.findall(r"^\| ([0-9]+) \|", (REPOSITORY / page).read_text(), re.MULTILINE)}
        assert used <= table


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
