"""What a cluster is told: the line that submits an array and the script that a node runs, byte for byte."""

from __future__ import annotations

import dataclasses
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from envbuild.executors import slurm
from envbuild.executors.ranks import Launch, again, gpus_of, rank, srun
from envbuild.judge.suite import probes_folder
from envbuild.matrix import load
from envbuild.pipeline.measured import read_lines
from envbuild.pipeline.profile_wish import profiler_folder
from envbuild.project import find
from envbuild.site.cluster import Share, SlurmSection

SHELLCHECK = str(Path(sys.executable).with_name("shellcheck"))
MATRIX = load(find(None, Path(__file__)).matrix)
FOLDER = Path("/shared/envbuild/runs/20261130-101502-3f9a")
SITE = SlurmSection(
    partition="gpu",
    account="team",
    time="2:00:00",
    options=("--mem=64G",),
    gpus={"h100": Share(gres="gpu:h100:8", constraint="ib&nvme", options=("--exclusive",))},
    rows={"cpu": Share(partition="cpu", time="5")},
)


def line(row: str, *tasks: int, site: SlurmSection = SITE, most: int | None = None) -> list[str]:
    wanted = slurm.resources(site, MATRIX.get(row))
    argv = slurm.sbatch(
        "envbuild-3f9a", tasks, wanted, site=site, log=FOLDER / "job-0-%a.log", script=FOLDER / "job-0.sh", most=most
    )
    return list(argv)


def test_the_line_of_a_gpus_row() -> None:
    assert line("h100-cu121", 0, 2, 3, most=2) == [
        "sbatch", "--parsable", "--job-name=envbuild-3f9a", "--array=0,2,3%2",
        "--output=/shared/envbuild/runs/20261130-101502-3f9a/job-0-%a.log", "--open-mode=append", "--requeue",
        "--signal=B:USR1@90", "--partition=gpu", "--account=team", "--gres=gpu:h100:8", "--constraint=ib&nvme",
        "--time=2:00:00", "--mem=64G", "--exclusive", "/shared/envbuild/runs/20261130-101502-3f9a/job-0.sh",
    ]  # fmt: skip


def test_the_line_of_a_row_with_its_own_share_and_of_a_site_that_says_nothing() -> None:
    assert [word for word in line("cpu", 1) if word.startswith(("--pa", "--gres", "--time", "--signal"))] == [
        "--parsable", "--signal=B:USR1@30", "--partition=cpu", "--time=5",
    ]  # fmt: skip
    assert line("cpu", 0, site=SlurmSection()) == [
        "sbatch", "--parsable", "--job-name=envbuild-3f9a", "--array=0",
        "--output=/shared/envbuild/runs/20261130-101502-3f9a/job-0-%a.log", "--open-mode=append", "--requeue",
        "--signal=B:USR1@90", "/shared/envbuild/runs/20261130-101502-3f9a/job-0.sh",
    ]  # fmt: skip


SCRIPT = """\
#!/bin/sh
# One task of a run of envbuild's; $SLURM_ARRAY_TASK_ID is its number in run.json.
. /etc/profile.d/modules.sh
module load podman
exec '/shared/my venv/bin/envbuild' node '/shared/it'"'"'s/runs/1'
"""


def test_the_script_of_a_node() -> None:
    setup = (". /etc/profile.d/modules.sh", "module load podman")
    assert slurm.script(Path("/shared/it's/runs/1"), ("/shared/my venv/bin/envbuild",), setup) == SCRIPT
    done = subprocess.run(
        [SHELLCHECK, "--exclude=SC1091", "-"], input=SCRIPT.encode(), capture_output=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout.decode()


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (slurm.squeue(["12"]), "squeue --noheader --array --states=all --format=%i|%T|%r|%N --jobs=12"),
        (slurm.squeue_by_name("envbuild-1"), "squeue --noheader --states=all --format=%F --name=envbuild-1"),
        (slurm.sacct(["12"]), "sacct --noheader --parsable2 --allocations --format=JobID,State,NodeList --jobs=12"),
        (slurm.scancel(["12", "13"]), "scancel 12 13"),
    ],
)
def test_what_slurm_is_asked(argv: tuple[str, ...], said: str) -> None:
    assert " ".join(argv) == said


HEAD = """\
#!/bin/sh
# One rank of a run of envbuild's, on the node that Slurm chose for it.
set -eu
export RANK="$SLURM_PROCID" WORLD_SIZE="$SLURM_NTASKS" LOCAL_RANK="$SLURM_LOCALID"
export MASTER_ADDR="$SLURM_LAUNCH_NODE_IPADDR" MASTER_PORT="$((20000 + SLURM_JOB_ID % 10000))"
"""
# Docker is found as envbuild finds it; nobody else has endpoints.
FOUND = (
    '[ -n "${DOCKER_HOST-}" ] || [ -S /var/run/docker.sock ] || [ ! -S /run/envbuild/docker.sock ] || '
    "export DOCKER_HOST=unix:///run/envbuild/docker.sock\n"
)
TOLD = "--env RANK --env WORLD_SIZE --env LOCAL_RANK --env MASTER_ADDR --env MASTER_PORT --env SLURMD_NODENAME"
ENGINE = (
    "run --rm --network host --shm-size 1073741824 --cap-drop ALL --security-opt no-new-privileges --read-only "
    f"--tmpfs /tmp:rw,exec --env HOME=/tmp {TOLD} --volume /shared/run/inside:/run/envbuild-inside:ro"
)
# The last line of a rank, by container; with GPUs.
LINES = {
    "docker": f"docker {ENGINE} --ulimit memlock=-1 --gpus all --entrypoint python reg.example/e/h100:1 -I x.py",
    "podman": f"podman {ENGINE} --ulimit memlock=-1 --device nvidia.com/gpu=all --entrypoint python "
    "reg.example/e/h100:1 -I x.py",
    "pyxis": "python -I x.py",
    "enroot": f"enroot start --mount /shared/run/inside:/run/envbuild-inside {TOLD} "
    "reg.example/e/h100:1 python -I x.py",
    "apptainer": "apptainer exec --containall --nv --bind /shared/run/inside:/run/envbuild-inside:ro "
    '--env RANK="$RANK" --env WORLD_SIZE="$WORLD_SIZE" --env LOCAL_RANK="$LOCAL_RANK" '
    '--env MASTER_ADDR="$MASTER_ADDR" --env MASTER_PORT="$MASTER_PORT" --env SLURMD_NODENAME="$SLURMD_NODENAME" '
    "docker://reg.example/e/h100:1 python -I x.py",
}


def launch(container: str, *, gpus: bool = True, interface: str | None = None) -> Launch:
    return Launch(
        container=container, image="reg.example/e/h100:1", argv=("python", "-I", "x.py"),
        inside=Path("/shared/run/inside"), nodes=2, per_node=8, shm_bytes=1 << 30, gpus=gpus, interface=interface,
    )  # fmt: skip


@pytest.mark.parametrize("container", LINES)
def test_the_script_of_a_rank(container: str) -> None:
    text = rank(launch(container))
    assert text == f"{HEAD}{FOUND if container == 'docker' else ''}exec {LINES[container]}\n"
    done = subprocess.run([SHELLCHECK, "-"], input=text.encode(), capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout.decode()


def test_a_rank_on_the_cpu_and_over_an_interface_of_its_own() -> None:
    text = rank(launch("docker", gpus=False, interface="ib0"))
    assert "--gpus" not in text and "memlock" not in text
    named = rank(dataclasses.replace(launch("docker"), host="ssh://me@the farm"))
    assert f"{HEAD}export DOCKER_HOST='ssh://me@the farm'\nexec docker run" in named
    assert "export GLOO_SOCKET_IFNAME=ib0 NCCL_SOCKET_IFNAME=ib0\n" in text
    assert "--env GLOO_SOCKET_IFNAME --env NCCL_SOCKET_IFNAME --volume" in text


def test_the_line_that_starts_the_ranks() -> None:
    head = "srun --nodes=2 --ntasks-per-node=8 --kill-on-bad-exit=1 --output=ranks/%t.json --error=ranks/%t.txt"
    plain = head + "{} sh /r/rank.sh"
    assert " ".join(srun(launch("docker"), Path("/r/rank.sh"))) == plain.format("")
    mounts = "/shared/run/inside:/run/envbuild-inside:ro,/r/rank.sh:/r/rank.sh:ro"
    assert " ".join(srun(launch("pyxis"), Path("/r/rank.sh"))) == plain.format(
        f" --container-image=reg.example/e/h100:1 --container-mounts={mounts} --no-container-mount-home"
    )


@pytest.mark.parametrize("container", LINES)
def test_the_training_behind_it_meets_elsewhere_and_speaks_into_files_of_its_own(container: str) -> None:
    train = again(launch(container), ("python", "-I", "launch.py", "--join", "8"), said="said", ports=10000)
    head = HEAD.replace("20000", "10000") + (FOUND if container == "docker" else "")
    assert rank(train) == f"{head}exec {LINES[container].replace('-I x.py', '-I launch.py --join 8')}\n"
    line = " ".join(srun(train, Path("/r/train.sh")))
    assert "--output=said/%t.json --error=said/%t.txt" in line and line.endswith("sh /r/train.sh")


@pytest.mark.parametrize(
    ("gres", "gpus"),
    [("gpu:h100:8", 8), ("gpu:4", 4), ("gpu", 1), ("gpu:h100", 1), ("gpu:a100:2(S:0-1)", 2), ("nvme:1", 0), (None, 0)],
)
def test_how_many_gpus_a_node_gives(gres: str | None, gpus: int) -> None:
    assert gpus_of(gres) == gpus


PROGRAM = """\
import json, os, sys, time
said = dict(zip(sys.argv[1::2], sys.argv[2::2]))
names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "LOCAL_SIZE", "MASTER_ADDR", "MASTER_PORT",
         "GLOO_SOCKET_IFNAME")
time.sleep(0.7)
with open(said["--report"], "a") as file:
    env = {name: os.environ.get(name) for name in names}
    file.write(json.dumps({"kind": "rank", "env": env, "join": said["--join"]}))
    file.write("\\n")
"""


@pytest.mark.parametrize(("local", "interface"), [("0", None), ("1", "ib0")])
def test_one_program_starts_the_one_rank_that_the_cluster_says(
    tmp_path: Path, local: str, interface: str | None
) -> None:
    """The launcher for real, with a rank that does nothing but say who it is."""
    shutil.copytree(profiler_folder(), tmp_path / "profiler", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "profiler" / "rank.py").write_text(PROGRAM)
    place = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": local, "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "1234"}
    own = {**place, "SLURMD_NODENAME": "n2", **({"GLOO_SOCKET_IFNAME": interface} if interface else {})}
    env = {name: value for name, value in os.environ.items() if name != "GLOO_SOCKET_IFNAME"}
    done = subprocess.run(
        [sys.executable, "-I", tmp_path / "profiler" / "launch.py", "--probes", probes_folder(), "--config", "{}",
         "--accelerator", "cpu", "--join", "2", "--timeout", "60"],
        env={**env, **own}, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr + done.stdout
    lines = read_lines(done.stdout)
    assert [line["node"] for line in lines if line["kind"] == "launch"] == ["n2"]
    (rank,) = [line for line in lines if line["kind"] == "rank"]
    assert rank["env"] == {
        **place, "LOCAL_WORLD_SIZE": "2", "LOCAL_SIZE": "2", "GLOO_SOCKET_IFNAME": interface,
    } and rank["join"] == "2"  # fmt: skip
    (end,) = [line for line in lines if line["kind"] == "end"]
    assert [each["rank"] for each in end["ranks"]] == [3]
    samples = [line for line in lines if line["kind"] == "sample"]
    assert samples and all(each["ranks"][0]["rank"] == 3 for each in samples)
    # The node is sampled once, by its first rank's program.
    whole = [each["host_memory_bytes"] is not None for each in samples]
    assert all(whole) if local == "0" else not any(whole)
