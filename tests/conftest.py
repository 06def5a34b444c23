"""Fixtures of the tests with a real engine: one image is built and proven for the whole run.

The store is the run's own; the engine's build cache is whatever it is. Where no engine answers these tests fail: a skip
would pass for a success.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from envbuild.engines import DockerEngine, connect
from envbuild.errors import EngineError
from proving import ENVBUILD, REGISTRY, REPOSITORY, Cli, surroundings, tags_of, wait_for

# `make test` says the same of the same tree, every time. New examples are looked for by `make search`.
settings.register_profile("fixed", derandomize=True)
settings.register_profile("search", derandomize=False, print_blob=True)
settings.load_profile("fixed")

# A shell that runs something in the background lets it ignore Ctrl-C, and so would each command that a test interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def store_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A store for the whole session, away from the user's."""
    home = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ENVBUILD_HOME", str(home))
        yield home


@pytest.fixture(scope="session")
def docker() -> Iterator[DockerEngine]:
    """The Docker Engine that answers. A user's test runs have it one at a time: they share names in it."""
    try:
        found = connect(kind="docker")
    except EngineError as error:
        pytest.fail(f"{error.message}\n{error.hint}", pytrace=False)
    assert isinstance(found, DockerEngine)
    place = hashlib.sha256(found.endpoint.encode()).hexdigest()[:12]
    with (Path(tempfile.gettempdir()) / f"envbuild-tests-{os.getuid()}-{place}.lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"another test run uses the engine {found.endpoint}: waiting for its end", file=sys.__stderr__)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield found


@pytest.fixture(scope="session")
def engine(docker: DockerEngine) -> DockerEngine:
    """The engine under test."""
    return docker


@pytest.fixture(scope="session")
def cli(store_home: Path) -> Cli:
    """Run the command as a user does, from the repository unless told otherwise."""

    def call(*arguments: str, cwd: Path = REPOSITORY) -> subprocess.CompletedProcess[str]:
        argv = [ENVBUILD, *arguments]
        if cwd != REPOSITORY and "--project" not in arguments:
            argv[2:2] = ["--project", str(REPOSITORY)]
        return subprocess.run(argv, cwd=cwd, env=surroundings(store_home), capture_output=True, text=True, timeout=1500)

    return call


@pytest.fixture(scope="session")
def start(store_home: Path) -> Callable[..., subprocess.Popen[str]]:
    """Start the command and leave it running."""

    def call(*arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [ENVBUILD, *arguments], cwd=REPOSITORY, env=surroundings(store_home), text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    return call


@pytest.fixture(scope="session")
def proven(cli: Cli, engine: DockerEngine, start: Callable[..., subprocess.Popen[str]]) -> dict[str, object]:
    """The `cpu` row, built and tagged, after a first attempt that was killed in the middle of the build."""
    for tag in tags_of(engine, f"{REGISTRY}/envbuild/cpu"):
        engine.untag(tag)
    killed = start("build", "cpu", "-v")
    wait_for(killed, "[build]")
    killed.kill()
    killed.communicate()
    assert tags_of(engine, f"{REGISTRY}/envbuild/cpu") == set()

    done = cli("build", "cpu", "--json")
    assert done.returncode == 0, done.stderr
    image: dict[str, object] = json.loads(done.stdout)["images"][0]
    # The killed run's folder was found and removed.
    assert "removed a leftover" in done.stderr
    return image
