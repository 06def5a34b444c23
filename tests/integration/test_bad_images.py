"""Images that are not there, hold no Python, are for another machine, or are not envbuild's; and bare interpreters."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from envbuild.engines import BuildRequest, DockerEngine

pytestmark = pytest.mark.integration

ENVBUILD = str(Path(sys.executable).with_name("envbuild"))
REPOSITORY = Path(__file__).parents[2]


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str


Cli = Callable[..., Done]


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    """The command, with a store of the test's own."""

    def call(*arguments: str) -> Done:
        env = {**os.environ, "ENVBUILD_HOME": str(tmp_path / "store"), "NO_COLOR": "1", "CUDA_VISIBLE_DEVICES": ""}
        done = subprocess.run([ENVBUILD, *arguments], cwd=REPOSITORY, env=env, capture_output=True, text=True,
                              timeout=200)  # fmt: skip
        assert "Traceback" not in done.stderr, done.stderr
        assert not list((tmp_path / "store").glob("evidence/**/*.json")), "no evidence of what did not pass"
        return Done(done.returncode, done.stdout, done.stderr)

    return call


def imported(engine: DockerEngine, folder: Path, tag: str, *changes: str) -> None:
    """An image of one file that is no program."""
    (folder / "file").write_text("not a program\n")
    (folder / "file").chmod(0o755)
    with tarfile.open(folder / "root.tar", "w") as tar:
        tar.add(folder / "file", "opt/venv/bin/file")
    engine.import_root(folder / "root.tar", tag, changes)


@pytest.mark.parametrize("arguments", [("smoke", "no-such/image:1"), ("promote", "no-such/image:1", "--row", "cpu")])
def test_an_image_that_is_not_there(cli: Cli, arguments: tuple[str, ...]) -> None:
    done = cli(*arguments)
    assert done.code == 5 and "no-such/image:1" in done.err and "docker images" in done.err


def test_an_image_that_envbuild_did_not_build_says_nothing_of_itself(
    engine: DockerEngine, tag: str, cli: Cli, tmp_path: Path
) -> None:
    imported(engine, tmp_path, tag)
    done = cli("smoke", tag)
    assert done.code == 2 and "--row ENV" in done.err
    held = cli("smoke", tag, "--row", "cpu", "--json")
    assert held.code == 5
    found = json.loads(held.out)["findings"]
    assert any("python" in finding["message"] for finding in found), "there is none in it"
    assert all(finding["fix"] for finding in found)


def test_an_image_for_another_machine_is_not_started(engine: DockerEngine, tag: str, cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text("FROM scratch\nCOPY Dockerfile /\nLABEL io.envbuild.environment=cpu\n")
    wanted = BuildRequest(context=tmp_path, dockerfile=tmp_path / "Dockerfile", tag=tag, platform="linux/arm64")
    engine.build(wanted, log=tmp_path / "log")
    done = cli("smoke", tag)
    assert done.code == 5 and "linux/arm64" in done.err and "linux/amd64" in done.err
    assert "[inspect]" not in done.err


def test_an_interpreter_without_torch_fails_and_says_what_to_install(cli: Cli) -> None:
    done = cli("smoke", "--python", sys.executable, "--json")
    assert done.code == 5
    found = {finding["rule"]: finding for finding in json.loads(done.out)["findings"]}
    assert found.keys() == {"host.torch", "host.deepspeed"}
    assert "No module named 'torch'" in found["host.torch"]["message"]
    assert f"{sys.executable} -m pip install torch" in found["host.torch"]["fix"]


@pytest.mark.parametrize("path", ["/no/such/python", "/bin/ls", "/etc/passwd", "/"])
def test_a_path_that_is_no_interpreter(cli: Cli, path: str) -> None:
    done = cli("smoke", "--python", path)
    assert done.code == 2 and f"--python {path}" in done.err


@pytest.mark.parametrize(
    "arguments",
    [
        ("smoke",),
        ("smoke", "cpu", "--python", sys.executable),
        ("smoke", "cpu", "--accelerator", "cpu"),
        ("smoke", "--python", sys.executable, "--accelerator", "tpu"),
        ("smoke", "--python", sys.executable, "--host", "unix:///x"),
        ("smoke", "cpu", "--gpus", "first"),
        ("build", "cpu", "--gpus", "first"),
        ("smoke", "cpu", "--minutes", "nan", "--long"),
    ],
)
def test_options_that_exclude_one_another(cli: Cli, arguments: tuple[str, ...]) -> None:
    assert cli(*arguments).code == 2
