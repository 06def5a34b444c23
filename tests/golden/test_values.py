"""Values of variables on their way to the ranks: no command line and no file that stays has them."""

from __future__ import annotations

import datetime
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from envbuild import process
from envbuild.executors import queue, ranks, values
from envbuild.judge.suite import probes_folder
from envbuild.pipeline import cluster, node
from envbuild.pipeline.profile_wish import profiler_folder
from envbuild.pipeline.works import Work
from envbuild.site.cluster import ExecutorSection, SlurmSection

SECRET = "hunter2-horse"

RANK = """\
import json, os, sys
said = dict(zip(sys.argv[1::2], sys.argv[2::2]))
names = ("HF_TOKEN", "OMP_NUM_THREADS", "ENVBUILD_VALUES")
lines = open("/proc/{}/cmdline".format(os.getppid())).read() + open("/proc/self/cmdline").read()
with open(said["--report"], "a") as file:
    json.dump({"kind": "rank", "env": [os.environ.get(name) for name in names], "seen": "hunter" in lines}, file)
    file.write("\\n")
"""


def launched(folder: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """The launcher for real, with a rank that says what it has."""
    if not (folder / "profiler").is_dir():
        shutil.copytree(profiler_folder(), folder / "profiler", ignore=shutil.ignore_patterns("__pycache__"))
        (folder / "profiler" / "rank.py").write_text(RANK)
    return subprocess.run(
        [sys.executable, "-I", folder / "profiler" / "launch.py", "--probes", probes_folder(), "--config", "{}",
         "--ranks", "1", "--env", "HF_TOKEN", "--env", "OMP_NUM_THREADS", "--timeout", "60"],
        env={**os.environ, **env}, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


def test_a_rank_has_its_variables_and_nobody_else_sees_them(tmp_path: Path) -> None:
    done = launched(tmp_path, ENVBUILD_VALUES=json.dumps({"HF_TOKEN": SECRET, "OMP_NUM_THREADS": "3"}))
    assert done.returncode == 0, done.stderr
    own, *_ = [json.loads(line) for line in done.stdout.splitlines() if '"kind": "rank"' in line]
    assert own["env"] == [SECRET, "3", None] and not own["seen"]
    others = [line for line in done.stdout.splitlines() if '"kind": "rank"' not in line]
    assert len(others) > 1 and SECRET not in "".join(others) + done.stderr
    lost = launched(tmp_path)
    assert lost.returncode != 0 and "ENVBUILD_VALUES has no value for HF_TOKEN, OMP_NUM_THREADS" in lost.stderr


def test_a_run_of_a_cluster_has_them_in_one_file_for_as_long_as_they_are_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue, "need", lambda: None)
    monkeypatch.setattr(queue, "submit", lambda argv, on_line: "7")
    monkeypatch.setattr(queue, "cancel", lambda jobs: None)
    site = SimpleNamespace(executor=ExecutorSection(folder=tmp_path), slurm=SlurmSection())
    bench: Any = SimpleNamespace(site=site, sink=lambda event: None)
    seen = tmp_path / "seen.json"
    program = tmp_path / "program"
    program.write_text(f'#!/bin/sh\nprintf "%s %s" "$ENVBUILD_VALUES" "$*" > {seen}\n')
    program.chmod(0o755)
    work = Work(name="x", argv=("profile", "--env=HF_TOKEN", "x"), values={"HF_TOKEN": SECRET})
    now = datetime.datetime(2026, 11, 30, tzinfo=datetime.timezone.utc)

    def begun() -> tuple[Any, Any, Path]:
        planned = cluster.plan(bench, "profile", [work], program=(str(program),), now=now)
        assert SECRET not in json.dumps(planned.as_dict()) and '{"HF_TOKEN": "***"}' in json.dumps(planned.as_dict())
        run = cluster.begin(bench, planned)
        return planned.folder, run, values.path_of(planned.folder.path, 0)

    folder, run, file = begun()
    assert file.stat().st_mode & 0o777 == 0o600 and json.loads(file.read_text()) == {"HF_TOKEN": SECRET}
    others = [path for path in folder.path.rglob("*") if path.is_file() and path != file]
    assert others and not any(SECRET in path.read_text() for path in others)
    job = {"SLURM_ARRAY_TASK_ID": "0", "SLURM_ARRAY_JOB_ID": "7", "SLURMD_NODENAME": "n1"}
    assert node.carry_out(folder, job) == 0
    assert seen.read_text() == f'{{"HF_TOKEN": "{SECRET}"}} profile --env=HF_TOKEN x'
    assert not file.exists()
    # Told to end: the scheduler may begin it once more, unless somebody has cancelled it.
    folder, run, file = begun()

    def interrupted(*argv: Any, **more: Any) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(process, "record", interrupted)
    with pytest.raises(KeyboardInterrupt):
        node.carry_out(folder, job)
    assert file.exists()
    with pytest.raises(KeyboardInterrupt):
        node.carry_out(folder, {**job, "SLURM_RESTART_COUNT": "1"})
    assert not file.exists()
    folder, run, file = begun()
    cluster.cancel(folder, run)
    assert not file.exists()


@pytest.mark.parametrize("container", ["docker", "podman", "pyxis", "enroot", "apptainer"])
def test_ranks_on_several_nodes_read_them_from_that_file(container: str, tmp_path: Path) -> None:
    file = tmp_path / "it's" / "0-values.json"
    file.parent.mkdir()
    file.write_text('{"A": "b"}')
    first = ranks.Launch(
        container=container, image="i", argv=("c",), inside=Path("/in"), nodes=2, per_node=1, shm_bytes=1, host="x"
    )
    launch = ranks.again(first, ("c",), said="s", ports=1, values=file)
    text = ranks.rank(launch)
    assert "ENVBUILD_VALUES" not in ranks.rank(first)
    if container == "pyxis":
        assert f"{file}:{file}:ro" in " ".join(ranks.srun(launch, Path("/s")))
    elif container == "apptainer":
        assert "--env ENVBUILD_VALUES" not in text and 'export APPTAINERENV_ENVBUILD_VALUES="$ENVBUILD_VALUES"' in text
    else:
        assert "--env ENVBUILD_VALUES " in text
    # The script for real, with something that tells its environment in the container's place.
    text = text[: text.index("exec ")] + 'exec printf %s "$ENVBUILD_VALUES"\n'
    slurm = {"SLURM_PROCID": "0", "SLURM_NTASKS": "1", "SLURM_LOCALID": "0", "SLURM_LAUNCH_NODE_IPADDR": "h",
             "SLURM_JOB_ID": "1"}  # fmt: skip
    done = subprocess.run(["sh", "-c", text], env={**os.environ, **slurm}, capture_output=True, text=True, timeout=30)
    assert (done.stdout, done.returncode) == ('{"A": "b"}', 0), done.stderr
