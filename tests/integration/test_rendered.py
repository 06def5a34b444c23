"""Every Dockerfile that can be rendered is one: the engine's own BuildKit parses it, hadolint has nothing to say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from envbuild import facts, matrix, plan, project
from envbuild.engines import BuildRequest, DockerEngine
from envbuild.errors import EnvbuildError
from envbuild.model import Environment, Lock
from envbuild.render import render, write

PROJECT = project.find(None, Path(__file__).parent)
ROWS = matrix.load(PROJECT.matrix)
HADOLINT = Path(sys.executable).with_name("hadolint")
# Families that no shipped row is of, and the C compiler of the distribution itself.
SYNTHETIC = {
    "rhel8": {"family": "rhel8", "python": "3.9", "gcc": {"version": "8.5", "package": "gcc"}},
    "rhel9": {"family": "rhel9", "python": "3.12", "gcc": {"version": "12.2", "package": "gcc-toolset-12-gcc"}},
}


def row(name: str) -> Environment:
    """A shipped row, or ``rhel8-cu118`` as one of another family."""
    if name not in SYNTHETIC:
        return ROWS.get(name)
    document = ROWS.get("rhel8-cu118").model_dump(mode="json")
    return Environment.model_validate({**document, "name": name, **SYNTHETIC[name]})


def context(name: str, folder: Path) -> Path:
    """What would be built, but for the wheels: a lock is made up, for rows that no machine here could lock."""
    env = row(name)
    groups = {"pip": "tools", "torch": "torch", "numpy": "deps", "deepspeed": "ops", "cuda-toolkit": "toolkit"}
    document = {
        "environment": env.name, "platform": "linux/amd64", "python": env.python, "resolver": "uv 1",
        "inputs": f"sha256:{'a' * 64}",
        "packages": [
            {"name": wheel, "version": "1.0", "group": group, "hashes": [f"sha256:{'c' * 64}"]}
            for wheel, group in groups.items()
        ],
    }  # fmt: skip
    made = plan.make(env, Lock.model_validate(document), facts.load(PROJECT.facts))
    write(render(made, PROJECT.templates), folder)
    return folder


@pytest.mark.parametrize("name", [*ROWS.environments, *SYNTHETIC])
def test_buildkit_understands_every_line(name: str, engine: DockerEngine, tmp_path: Path) -> None:
    """It parses all of a file before it misses a stage."""
    folder = context(name, tmp_path / "context")
    wanted = BuildRequest(
        context=folder, dockerfile=folder / "Dockerfile", tag=f"envbuild-test/{name}:never", target="no-such-stage",
        platform="linux/amd64",
    )  # fmt: skip
    log = tmp_path / "log"
    with pytest.raises(EnvbuildError):
        engine.build(wanted, log=log, timeout=60)
    said = log.read_text()
    assert "no-such-stage" in said and "parse error" not in said, said


def test_hadolint_has_nothing_to_say(tmp_path: Path) -> None:
    files = [context(name, tmp_path / name) / "Dockerfile" for name in (*ROWS.environments, *SYNTHETIC)]
    config = Path(__file__).parents[2] / ".hadolint.yaml"
    done = subprocess.run([HADOLINT, "--config", config, *files], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout
