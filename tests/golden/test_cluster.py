"""What a cluster is told: the line that submits an array and the script that a node runs, byte for byte."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from envbuild.executors import slurm
from envbuild.matrix import load
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
