"""What the tests with a real engine share: the command as users start it, and the names of their images."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from envbuild.engines import DockerEngine

# Tags carry a registry prefix of the tests' own, so that nobody's images are touched. Two runs on one engine need two.
REGISTRY = os.environ.get("ENVBUILD_TEST_REGISTRY", "envbuild.test")
REPOSITORY = Path(__file__).parents[1]
ENVBUILD = str(Path(sys.executable).with_name("envbuild"))
Cli = Callable[..., subprocess.CompletedProcess[str]]


def surroundings(home: Path) -> dict[str, str]:
    """Variables for a command with a store of its own."""
    return {**os.environ, "ENVBUILD_HOME": str(home), "ENVBUILD_REGISTRY_NAME": REGISTRY, "NO_COLOR": "1"}


def tags_of(engine: DockerEngine, repository: str) -> set[str]:
    """Every tag of a repository."""
    return {tag for image in engine.images(f"{repository}:*") for tag in image.repo_tags if tag.startswith(repository)}


def wait_for(process: subprocess.Popen[str], text: str, limit: float = 120) -> None:
    """Read the narration until it holds ``text``."""
    assert process.stderr is not None
    deadline = time.monotonic() + limit
    seen = []
    while time.monotonic() < deadline:
        line = process.stderr.readline()
        if not line:
            break
        seen.append(line)
        if text in line:
            return
    pytest.fail(f"{text!r} did not appear in:\n{''.join(seen)}")
