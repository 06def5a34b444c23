"""Builds and proofs as jobs of a real Slurm with two nodes on this machine; both use this machine's engine.

What is a stand-in: both nodes are one host. What is not: Slurm, its queue and its signals, the jobs, the containers.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import slurm_world
from envbuild import evidence
from envbuild.engines import DockerEngine
from envbuild.engines.cleanup import RUN_LABEL
from envbuild.executors import RunFolder, every
from envbuild.lock import read, write
from envbuild.lock.ask import inputs_digest
from envbuild.matrix import load
from envbuild.pipeline.cluster import recover
from envbuild.profile import files
from proving import ENVBUILD, REGISTRY, REPOSITORY, surroundings, tags_of, wait_for
from slurm_world import World

TWINS = ("twin-a", "twin-b")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A Slurm of this module's own."""
    with slurm_world.running(tmp_path_factory.mktemp("slurm")) as made:
        yield made


class Login:
    """A login host: what it types, in an environment of its own."""

    def __init__(self, world: World, home: Path, shared: Path) -> None:
        self.world, self.home, self.shared = world, home, shared
        self.environ = {
            **surroundings(home), **world.environ,
            "ENVBUILD_EXECUTOR_KIND": "slurm", "ENVBUILD_EXECUTOR_FOLDER": str(shared),
        }  # fmt: skip

    def start(self, *arguments: str, project: Path = REPOSITORY, **more: str) -> subprocess.Popen[str]:
        """Begin a command."""
        return subprocess.Popen(
            [ENVBUILD, *arguments, "--project", str(project)], cwd=project, env={**self.environ, **more}, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def run(self, *arguments: str, **more: Any) -> tuple[int, str, str]:
        """Run a command to its end."""
        process = self.start(*arguments, **more)
        out, err = process.communicate(timeout=900)
        return process.returncode, out, err

    def last(self) -> RunFolder:
        """The newest run."""
        return next(every(self.shared))[0]


@pytest.fixture
def login(world: World, store_home: Path, tmp_path: Path) -> Iterator[Login]:
    """Somebody on the login host, with a shared folder of the test's own; the queue is empty before and after."""
    world.clear()
    yield Login(world, store_home, tmp_path / "shared")
    world.clear()


@pytest.fixture
def twins(tmp_path: Path, docker: DockerEngine) -> Iterator[Path]:
    """A project with two rows that are the row cpu under other names: their layers are built already."""
    folder = tmp_path / "project"
    document = yaml.safe_load((REPOSITORY / "matrix.yaml").read_text())
    row = document["environments"]["cpu"]
    (tmp_path / "project").mkdir()
    matrix = folder / "matrix.yaml"
    matrix.write_text(yaml.safe_dump({**document, "environments": dict.fromkeys(TWINS, row)}))
    lock = read(REPOSITORY / "images" / "cpu" / "lock.json")
    for name in TWINS:
        env = load(matrix).get(name)
        changes = {"environment": name, "base": None, "inputs": inputs_digest(env, lock.platform)}
        write(folder / "images" / name / "lock.json", lock.model_copy(update=changes))
    yield folder
    for name in TWINS:
        for repository in (f"{REGISTRY}/envbuild/{name}", f"envbuild/{name}"):
            for tag in tags_of(docker, repository):
                docker.untag(tag)


def containers(docker: DockerEngine, login: Login) -> list[str]:
    """Containers that the nodes of this test's cluster have left or run; others may use the engine, too."""
    own = {path.stem for path in login.shared.glob("nodes/*/runs/*.lock")}
    return [each.id for each in docker.containers(RUN_LABEL) if dict(each.labels)[RUN_LABEL] in own]


def heard(process: subprocess.Popen[str], text: str, limit: float = 300) -> None:
    wait_for(process, text, limit)


def image(proven: dict[str, Any]) -> str:
    return str(proven["tags"][0])


def test_a_full_queue_a_killed_session_and_a_node_that_fails(
    login: Login, world: World, proven: dict[str, Any], docker: DockerEngine
) -> None:
    blockers = world.busy()
    world.wait(lambda: list(world.states().values()).count("RUNNING") == 2)
    session = login.start("smoke", image(proven), "--force")
    heard(session, "it waits: Resources: every node that would do is taken")
    session.kill()
    session.communicate()
    code, out, _ = login.run("jobs", "--json")
    (run,) = json.loads(out)["jobs"]
    assert code == 0 and run["command"] == "smoke" and run["tasks"][0]["state"].startswith("waits: Resources")
    # The number of its job was never written down, as after a kill a moment earlier.
    folder = login.last()
    known = folder.load()
    lost = tuple(each.model_copy(update={"job": None}) for each in known.submissions)
    folder.save(known.model_copy(update={"submissions": lost}))
    world.ask("scancel", *blockers)

    before = time.time()
    session = login.start("attach", run["run"][-4:], "--json")
    heard(session, "[inspect] import its modules")
    attempt = folder.attempt(0, 1)
    assert attempt.node is not None
    first = attempt.node.node
    world.ask("scontrol", "update", f"nodename={first}", "state=down", "reason=a test")
    heard(session, "it is back in the queue")
    heard(session, f"{first} failed, or was taken away; attempt 2 of 2")
    heard(session, "[smoke]")
    out, err = session.communicate(timeout=900)
    assert session.returncode == 0, err
    document = json.loads(out)
    assert document["schema"] == "envbuild.smoke/1" and document["level"] == "cpu" and not document["reused"]
    assert document["node"] == next(node for node in slurm_world.NODES if node != first)
    ended = attempt.ended
    assert ended is None or ended.how == "told", "the first attempt came to nothing"
    # The node's evidence is in this host's store, and counts for the image here.
    path = Path(document["evidence"])
    assert path.is_relative_to(login.home / "evidence") and path.stat().st_mtime >= before
    assert evidence.read(path).level.value == "cpu"
    assert (login.shared / "nodes" / document["node"] / "evidence").is_dir()
    assert login.run("jobs", "--json")[1].count('"run"') == 0
    assert '"done"' in login.run("jobs", "--all", "--json")[1]
    # Coming back to what has ended needs no Slurm, and shows the same.
    again = login.run("attach", run["run"], "--json", PATH="/nowhere")
    assert json.loads(again[1]) == document
    world.wait(lambda: not containers(docker, login), 60)


def test_two_rows_on_two_nodes_at_once(login: Login, twins: Path, docker: DockerEngine) -> None:
    code, out, err = login.run("build", *TWINS, "--json", project=twins)
    assert code == 0, err
    images = json.loads(out)["images"]
    assert [each["environment"] for each in images] == list(TWINS) and {each["status"] for each in images} == {"built"}
    assert {each["node"] for each in images} == set(slurm_world.NODES)
    spans = []
    for number in range(2):
        attempt = login.last().attempt(number, 1)
        assert attempt.node is not None and attempt.ended is not None
        spans.append((attempt.node.began, attempt.ended.ended))
    (one, two) = spans
    assert max(one[0], two[0]) < min(one[1], two[1]), "they ran at the same time"
    assert "twin-a: [smoke]" in err and "twin-b: [smoke]" in err
    for each in images:
        assert each["tags"] and docker.image(each["tags"][0]) is not None
        assert Path(each["evidence"]).is_relative_to(login.home / "evidence")
    # This host knows the images as what a build of the row gave: it goes on where the nodes left off.
    local = login.run("build", "twin-a", "--executor", "local", "--json", project=twins)
    assert json.loads(local[1])["images"][0]["status"] == "up to date", local[2]


def test_an_interruption_cancels_the_array_and_nothing_is_tagged(
    login: Login, world: World, twins: Path, docker: DockerEngine
) -> None:
    session = login.start("build", *TWINS, "--json", project=twins, ENVBUILD_EXECUTOR_AT_ONCE="1")
    heard(session, "twin-a: [smoke]")
    world.wait(lambda: containers(docker, login), 30)
    session.send_signal(signal.SIGTERM)
    out, err = session.communicate(timeout=180)
    assert session.returncode == 130, err
    first, second = json.loads(out)["images"]
    assert (first["status"], second["status"]) == ("interrupted", "not begun") and "cancelling run" in err
    assert not containers(docker, login)
    for name in TWINS:
        assert not tags_of(docker, f"{REGISTRY}/envbuild/{name}")
    assert set(world.states().values()) <= {"CANCELLED", "COMPLETED", "FAILED"}
    ended = login.last().attempt(0, 1).ended
    assert ended is not None and ended.how == "told"


def test_an_all_reduce_over_two_nodes(login: Login, proven: dict[str, Any], docker: DockerEngine) -> None:
    line = ("smoke", image(proven), "--nodes", "2", "--json")
    plan = json.loads(login.run(*line, "--dry-run")[1])["plan"]
    assert "exec docker run" in plan["files"]["rank.sh"] and "--nodes=2" in plan["submissions"][0]["argv"]
    code, out, err = login.run(*line, ENVBUILD_SLURM_INTERFACE="lo")
    assert code == 0, err
    document = json.loads(out)
    assert document["findings"] == [] and [each["rank"] for each in document["ranks"]] == [0, 1]
    assert {each["node"] for each in document["ranks"]} == set(slurm_world.NODES)
    assert "[all-reduce] 2 ranks on 2 nodes" in err
    # An image that no node has: what the engine said, not a guess about the network.
    code, _, err = login.run("smoke", "slurm.invalid/no/such:1", "--row", "cpu", "--nodes", "2")
    # 125 is docker's own; 143 where srun ended the other rank before its docker had said the same.
    assert code == 5 and re.search("srun ended with exit code (125|143); rank", err) and "slurm.invalid" in err


# As little as makes a measurement; a rank for itself spins on no core of its neighbour's.
SHORT = ("--steps", "4", "--warmup", "1")


def test_a_measurement_and_a_comparison_come_back_from_a_node(
    login: Login, proven: dict[str, Any], tmp_path: Path
) -> None:
    config, path = tmp_path / "mine" / "ds.json", tmp_path / "m.json"
    config.parent.mkdir()
    # Without offload DeepSpeed would compile its Adam for the CPU first, for a minute.
    zero = {"stage": 1, "offload_optimizer": {"device": "cpu"}}
    config.write_text(json.dumps({"train_micro_batch_size_per_gpu": 3, "zero_optimization": zero}))
    line = ("--ds-config", str(config), "--pass", "timing", "--threads", "1", "-o", str(path), "--detach")
    code, out, err = login.run("profile", image(proven), *SHORT, *line)
    assert code == 0, err
    # Gone before a node reads it: what was typed is what counts.
    config.unlink()
    code, shown, err = login.run("attach", out.strip())
    assert code == 0 and shown.rstrip().endswith(str(path)) and "[profile]" in err, err
    measured = files.read(path)
    (launch,) = measured.launches
    assert [each.name for each in launch.nodes] == [measured_on(login)] and len(launch.ranks) == 2
    assert measured.origin.made is not None and measured.origin.made.ds_config is not None
    assert measured.origin.made.ds_config["train_micro_batch_size_per_gpu"] == 3
    assert measured.key.row == "cpu" and (measured.key.image or "").startswith("sha256:")

    line = ("--rounds", "1", "--json")
    code, out, err = login.run("compare", image(proven), image(proven), *SHORT, *line)
    document = json.loads(out)
    assert code == 5 and document["comparison"]["verdict"] == "inconclusive", err
    assert document["node"] == measured_on(login) and "1 of 2 launches" in err
    sides = [files.read(Path(each)) for each in document["measurements"]]
    assert [[each.name for launch in side.launches for each in launch.nodes] for side in sides] == [
        [document["node"]] * 2
    ] * 2, "a timing and a parity launch of each, on one node"
    assert "inconclusive" in login.run("jobs", "--all")[1]


def measured_on(login: Login) -> str:
    attempt = login.last().attempt(0, 1)
    assert attempt.node is not None
    return attempt.node.node


def test_a_training_over_two_nodes_is_one_measurement(login: Login, proven: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "m.json"
    line = ("--nodes", "2", *SHORT, "--threads", "1", "--straggle", "150@1", "-o", str(path))
    code, out, err = login.run("profile", image(proven), *line, ENVBUILD_SLURM_INTERFACE="lo")
    assert code == 0, err
    assert err.index("[all-reduce] 2 ranks on 2 nodes") < err.index("[profile]"), "first they add"
    measured = files.read(path)
    assert (measured.key.nodes, measured.key.world_size, measured.key.row) == (2, 2, "cpu")
    assert (measured.key.image or "").startswith("sha256:")
    for launch in measured.launches:
        assert {each.name for each in launch.nodes} == set(slurm_world.NODES)
        assert [(rank.rank, rank.node) for rank in launch.ranks] == [(0, 0), (1, 1)]
        # Both nodes are one machine here, with one clock: the bounds hold, and are small.
        ahead, error = launch.nodes[1].clock_ahead, launch.nodes[1].clock_error
        assert ahead is not None and error is not None and abs(ahead) <= error < 0.2
        assert {(each.kind, each.node) for each in launch.samples.series} >= {("cpu_percent", 0), ("cpu_percent", 1)}
    assert {row.group_size for rank in measured.launches[0].ranks for row in rank.collectives} == {2}
    slow = measured.launches[0].nodes[1].name
    code, out, err = login.run("bottleneck", str(path))
    assert code == 0 and f"rank 1 (node {slow}) is slower than the others" in out, out + err
    assert "--executor slurm --nodes 2" in out


def test_what_slurm_refuses_and_what_is_not_there(login: Login, world: World) -> None:
    code, _, err = login.run("smoke", "cpu", ENVBUILD_SLURM_PARTITION="nowhere")
    assert code == 3 and "invalid partition" in err.lower() and "sinfo lists them" in err
    code, out, _ = login.run("smoke", "cpu", "--json", ENVBUILD_SLURM_OPTIONS="--nodelist=n9")
    assert code == 3 and json.loads(out)["schema"] == "envbuild.error/1"
    code, _, err = login.run("smoke", "cpu", PATH="/nowhere")
    assert code == 3 and "sbatch was not found" in err
    assert not list((login.shared / "runs").glob("*")), "what was not taken leaves nothing"
    # Above the partition's limit Slurm takes a job, and never starts it.
    session = login.start("smoke", "cpu", ENVBUILD_SLURM_TIME="2-0")
    heard(session, "warning: it waits: PartitionTimeLimit: its time is above the partition's limit")
    session.send_signal(signal.SIGTERM)
    _, err = session.communicate(timeout=180)
    assert session.returncode == 130 and not any(state == "PENDING" for state in world.states().values())


def test_a_program_that_nodes_do_not_find_and_a_run_that_is_cancelled_from_elsewhere(
    login: Login, world: World
) -> None:
    code, _, err = login.run("smoke", "cpu", ENVBUILD_EXECUTOR_ENVBUILD="/nowhere/envbuild")
    assert code == 3 and "/nowhere/envbuild: not found" in err and "[executor] envbuild names it" in err
    world.busy()
    code, out, _ = login.run("smoke", "cpu", "--detach")
    run = out.strip()
    assert code == 0 and recover(login.last(), login.last().load()).id == run
    session = login.start("attach", run)
    heard(session, "it waits")
    code, out, _ = login.run("cancel", run)
    assert (code, out) == (0, f"{run}: cancelled cpu\n")
    out, err = session.communicate(timeout=180)
    assert session.returncode == 130 and "was cancelled" in out, err
    assert "has ended already" in login.run("cancel", run)[2]
