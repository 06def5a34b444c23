"""The same for Podman, with a storage of its own: every test of the engine that is not about Docker's own API."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from envbuild import store
from envbuild.engines import ContainerSpec, DockerEngine, PodmanEngine, sweep
from envbuild.judge import archive
from integration.test_engine import (  # noqa: F401 (these are the tests)
    mine,
    sleeper,
    test_a_build_tells_its_steps_and_the_second_one_is_cached,
    test_a_failing_step_is_named_with_its_last_lines_and_tags_nothing,
    test_a_program_that_is_not_there_is_a_result_and_what_the_engine_cannot_make_is_an_error,
    test_a_proof_that_the_search_for_canaries_can_find_one,
    test_a_registry_that_never_answers_costs_only_its_time,
    test_a_secret_reaches_the_step_and_nothing_else,
    test_a_strict_container_is_as_strict_as_it_says,
    test_an_export_is_a_tar_with_the_config_and_every_layer,
    test_an_interrupted_build_ends_at_once_and_leaves_no_tag,
    test_an_interrupted_run_leaves_no_container,
    test_leftovers_of_a_killed_run_are_swept_and_a_living_runs_are_not,
    test_names_move_and_go,
    test_out_of_memory_is_told_apart_from_a_crash,
    test_streams_stay_apart_and_lines_come_live,
    test_time_out_kills_and_keeps_what_was_said,
)
from integration.test_engine import request as build_request
from proving import Cli

if TYPE_CHECKING:
    from conftest import CanaryBase


@pytest.fixture
def engine(podman: PodmanEngine) -> PodmanEngine:
    """In place of Docker."""
    return podman


@pytest.fixture(scope="session")
def base(podman: PodmanEngine, docker: DockerEngine, canary_base: CanaryBase) -> str:
    """The small Debian, brought over as an archive: it is the same image."""
    name = canary_base.used.reference
    with docker.save(name) as stream:
        podman.load(iter(lambda: stream.read(1 << 20), b""))
    theirs, ours = docker.image(name), podman.image(name)
    assert theirs is not None
    assert ours is not None
    assert (ours.id, ours.diff_ids, ours.labels) == (theirs.id, theirs.diff_ids, theirs.labels)
    return name


def test_an_images_identity_is_its_config_whichever_format_it_is_kept_in(
    engine: PodmanEngine, base: str, tag: str, tmp_path: Path
) -> None:
    """Podman has two formats; the config of each is exported as it is, so that its digest stays the image's id."""
    engine.build(build_request(tmp_path, tag, f"FROM {base}\nRUN echo {tag} >/made\n"), log=tmp_path / "log")
    root = tmp_path / "root.tar"
    with tarfile.open(root, "w") as tar:
        tar.add(tmp_path / "log", "log")
    imported = f"{tag}-imported"
    assert engine.import_root(root, imported, ('LABEL "a"="b c"', 'CMD ["sh"]')) == engine.image(imported).id  # type: ignore[union-attr]
    try:
        for name in (tag, imported):
            info = engine.image(name)
            assert info is not None
            with engine.save(name) as stream:
                read = archive.read(stream, lambda path: False)
            assert (read.identity.config_digest, read.identity.diff_ids) == (info.id, info.diff_ids)
        assert info.labels == (("a", "b c"),)
    finally:
        engine.untag(imported)


def test_locked_cache_mounts_of_many_steps_are_let_go(
    engine: PodmanEngine, base: str, tag: str, tmp_path: Path
) -> None:
    own = tag.rpartition(":")[2]
    mounts = " ".join(f"--mount=type=cache,id={own}-{name},target=/c{name},sharing=locked" for name in "ab")
    text = f"FROM {base}\nRUN {mounts} touch /ca/x; rm -rf /cb/* /cb/.[a-z]*\nRUN {mounts} test -e /ca/x\n"
    engine.build(build_request(tmp_path, tag, text), log=tmp_path / "log", timeout=60)


BUILDING = """
import sys
from pathlib import Path
from envbuild.engines import BuildRequest, Run, connect
folder, base, tag, seconds = Path(sys.argv[1]), *sys.argv[2:]
with Run(folder / "runs", folder / "contexts") as run:
    run.folder.mkdir(parents=True)
    dockerfile = run.folder / "Dockerfile"
    dockerfile.write_text(f"FROM {base} AS a\\nRUN echo {tag} > /x\\nFROM {base}\\nCOPY --from=a /x /x\\n"
                          f"RUN echo {run.id}; sleep {seconds}\\n")
    request = BuildRequest(context=run.folder, dockerfile=dockerfile, tag=tag, platform="linux/amd64", network="none",
                           labels=(("io.envbuild.test", "yes"),), owner=run.labels)
    connect(kind="podman").build(request, log=run.folder / "log", sink=lambda event: print(event, flush=True))
"""


def building(folder: Path, base: str, tag: str, seconds: int) -> tuple[subprocess.Popen[str], str]:
    """A run that is in the last step of its build, and its id."""
    argv = [sys.executable, "-c", BUILDING, str(folder), base, tag, str(seconds)]
    child = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    for line in child.stdout:
        if found := re.match(r"StepLine.*text='([0-9a-f]{16})'", line):
            return child, found[1]
    pytest.fail("the build did not get there")


def test_working_containers_of_a_killed_build_are_swept_and_a_living_ones_are_not(
    engine: PodmanEngine, base: str, tag: str, tmp_path: Path
) -> None:
    dead, killed = building(tmp_path, base, f"{tag}-dead", 15)
    clients = [int(pid) for pid in Path(f"/proc/{dead.pid}/task/{dead.pid}/children").read_text().split()]
    for pid in (dead.pid, *clients):
        os.kill(pid, signal.SIGKILL)
    dead.communicate()
    alive, living = building(tmp_path, base, tag, 5)
    try:
        assert len(mine(engine, killed)) >= 2 and len(mine(engine, living)) >= 2
        removed = sweep(engine, tmp_path / "runs", tmp_path / "contexts")
        assert removed and all(killed in line for line in removed)
        assert mine(engine, killed) == [] and len(mine(engine, living)) >= 2
    finally:
        alive.communicate(timeout=60)
    assert alive.returncode == 0 and mine(engine, living) == []
    assert engine.image(tag) is not None and engine.image(f"{tag}-dead") is None


def test_only_the_image_says_what_it_is_and_what_the_build_cache_keeps_does_not(
    engine: PodmanEngine, base: str, tag: str, tmp_path: Path
) -> None:
    text = f"FROM {base} AS a\nRUN echo {tag} >/a\nFROM {base}\nCOPY --from=a /a /a\nRUN echo >/b\n"
    said = f'{tag} {{"a": "b\\\\c $HOME"}} \'#'
    engine.build(
        replace(build_request(tmp_path, tag, text), labels=(("io.envbuild.test.said", said),)), log=tmp_path / "log"
    )
    assert [each.repo_tags for each in engine.every_image() if ("io.envbuild.test.said", said) in each.labels] == [
        (tag,)
    ]


def test_what_async_io_waits_with_is_not_refused(engine: PodmanEngine) -> None:
    """Podman 4.3's own filter refuses io_pgetevents, and offload to NVMe would hang in it."""
    argv = engine.run_line(ContainerSpec(image="i"))
    own = [word.removeprefix("seccomp=") for word in argv if word.startswith("seccomp=")]
    path = own[0] if own else engine._said["host"]["security"]["seccompProfilePath"]
    rules = json.loads(Path(path).read_text())["syscalls"]
    assert [rule["action"] for rule in rules if "io_pgetevents" in rule["names"]] == ["SCMP_ACT_ALLOW"]


def test_the_bill_of_an_image_is_the_same_on_either_engine(
    podman: PodmanEngine, base: str, cli: Cli, tmp_path: Path
) -> None:
    bills = []
    for kind in ("docker", "podman"):
        done = cli("sbom", base, "--engine", kind, "-o", str(tmp_path / kind))
        assert done.returncode == 0, done.stderr
        bills.append((tmp_path / kind).read_bytes())
        shutil.rmtree(store.cache() / "sbom")
    assert bills[0] == bills[1] and b"pkg:deb/" in bills[0]


def test_the_command_says_what_podman_is_and_takes_it_when_asked(podman: PodmanEngine, cli: Cli) -> None:
    done = cli("engine", "--engine", "podman", "--json")
    assert done.returncode == 0, done.stderr
    taken, *others = json.loads(done.stdout)["engines"]
    assert (taken["kind"], taken["taken"], taken["version"]) == ("podman", True, podman.info().version)
    assert taken["storage"] == podman.info().storage_driver
    assert Path(podman.info().root).is_dir(), "whose disk is looked at before a build"
    assert [each["taken"] for each in others] == [False] * len(others)
    assert any(each["kind"] == "docker" and each["answers"] for each in others)
