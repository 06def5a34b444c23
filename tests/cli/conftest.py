"""The command as a user types it: a process of its own, an empty store, and no engine that answers."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).parents[2]
# Another checkout than the installed one brings its own program.
ENVBUILD = os.environ.get("ENVBUILD_TEST_PROGRAM") or str(Path(sys.executable).with_name("envbuild"))
SETTINGS = ("ENVBUILD_", "DOCKER_", "PIP_", "UV_", "PYTHON", "NO_COLOR", "CI", "COLUMNS", "TERMINAL_WIDTH", "XDG_")


@dataclass(frozen=True)
class Done:
    """A command that ended: its exit code, its result and its narration."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The one document that stdout is."""
        return json.loads(self.out)


class Cli:
    """Runs the command in a folder, with variables of its own and nothing of the user's settings."""

    def __init__(self, home: Path, cwd: Path) -> None:
        self.cwd = cwd
        kept = {name: value for name, value in os.environ.items() if not name.startswith(SETTINGS)}
        self.env = {
            **kept,
            "HOME": str(home),
            "ENVBUILD_HOME": str(home / "store"),
            "DOCKER_HOST": f"unix://{home}/no-engine.sock",
            "COLUMNS": "200",
        }

    def argv(self, *arguments: str) -> list[str]:
        return [ENVBUILD, *arguments]

    def __call__(self, *arguments: str, cwd: Path | None = None, stdin: Any = subprocess.DEVNULL, **env: str) -> Done:
        done = subprocess.run(
            self.argv(*arguments), cwd=cwd or self.cwd, env={**self.env, **env}, stdin=stdin, capture_output=True,
            timeout=60,
        )  # fmt: skip
        result = Done(done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace"))
        both = result.err + result.out
        assert "Traceback" not in both, both
        assert "\x1b" not in both, "colour is for terminals"
        return result


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The shipped rows, with the locks that are committed, in a folder that may be spoiled."""
    root = tmp_path / "project"
    for row in ("cpu", "h200-cu130"):
        (root / "images" / row).mkdir(parents=True)
        shutil.copy(REPOSITORY / "images" / row / "lock.json", root / "images" / row)
    shutil.copy(REPOSITORY / "matrix.yaml", root)
    return root


@pytest.fixture
def cli(project: Path, tmp_path: Path) -> Cli:
    """The command, started in the project's folder."""
    home = tmp_path / "home"
    home.mkdir()
    return Cli(home, project)
