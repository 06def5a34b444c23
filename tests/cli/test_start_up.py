"""How the program starts: as a script or a module, with nobody else's code in its parsing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from envbuild import process

PLUGIN = """
from pathlib import Path
Path(__file__).with_name("loaded").touch()
plugin = None
"""


def test_the_module_is_the_program() -> None:
    said = subprocess.run([sys.executable, "-m", "envbuild", "--version"], capture_output=True, text=True, check=True)
    assert said.stdout.startswith("envbuild ")


def test_plugins_of_pydantic_in_the_environment_are_not_loaded(cli: Any, tmp_path: Path) -> None:
    folder = tmp_path / "site"
    info = folder / "intruder-1.dist-info"
    info.mkdir(parents=True)
    (folder / "intruder.py").write_text(PLUGIN)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: intruder\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[pydantic]\nintruder = intruder:plugin\n")
    assert cli("list", PYTHONPATH=str(folder)).code == 0
    assert not (folder / "loaded").exists()


def test_children_do_not_see_a_variable_that_is_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OURS", "1")
    monkeypatch.setenv("THEIRS", "1")
    monkeypatch.setattr("envbuild.process.child.own", {"OURS"})
    assert process.run(["sh", "-c", "echo ${OURS-hidden} ${THEIRS-hidden}"]).stdout.split() == ["hidden", "1"]
