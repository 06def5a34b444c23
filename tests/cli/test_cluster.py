"""Commands about a cluster where there is none: plans, and what each says is missing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml


@pytest.fixture
def site(project: Path, tmp_path: Path) -> Path:
    """A site with a shared folder and H100s, written down as the documentation shows it."""
    shared = tmp_path / "shared"
    (project / "envbuild.toml").write_text(
        f'[executor]\nkind = "slurm"\nfolder = "{shared}"\nenvbuild = "/opt/envbuild"\nsetup = ["module load podman"]\n'
        '[slurm]\ntime = "2:00:00"\noptions = ["--mem=64G"]\n'
        '[slurm.gpus]\nh100 = {gres = "gpu:h100:8"}\n[slurm.rows]\ncpu = {partition = "cpu", time = "30"}\n'
    )
    return shared


def test_a_plan_is_the_line_and_the_script_and_changes_nothing(cli: Any, site: Path, project: Path) -> None:
    done = cli("build", "cpu", "h100-cu121", "--dry-run", "--force", "--json")
    assert done.code == 0, done.err
    plan = done.json["plan"]
    cpu, h100 = plan["submissions"]
    assert done.json["schema"] == "envbuild.build/1" and [task["name"] for task in plan["tasks"]] == [
        "cpu",
        "h100-cu121",
    ]
    assert {"--partition=cpu", "--time=30", "--mem=64G", "--array=0"} <= set(cpu["argv"])
    assert {"--gres=gpu:h100:8", "--time=2:00:00", "--array=1"} <= set(h100["argv"])
    assert cpu["script"].splitlines()[-2:] == ["module load podman", f"exec /opt/envbuild node {plan['folder']}"]
    argv = plan["tasks"][1]["argv"]
    assert argv[0] == "build" and argv[-2:] == ["--", "h100-cu121"]
    assert {f"--project={project.resolve()}", "--executor=local", "--json", "--force"} <= set(argv)

    told = cli("smoke", "registry.example.com/envbuild/h100-cu121:validated", "--dry-run")
    assert told.code == 0 and "--gres=gpu:h100:8" in told.out.splitlines()[0], "its name says which row it is"
    assert "    exec /opt/envbuild node " in told.out and not site.exists()
    # The way back to this host: it has no engine, so that nothing was submitted.
    assert cli("smoke", "cpu", "--executor", "local").code == 3


def test_what_is_missing_is_named(cli: Any, site: Path, project: Path) -> None:
    none = cli("build", "a100-cu118", "--dry-run")
    assert none.code == 2 and "[slurm.gpus] knows h100" in none.err and "[slurm.gpus] a100" in none.err
    gone = cli("build", "cpu", PATH="/nowhere")
    assert gone.code == 3 and "sbatch was not found" in gone.err and not site.exists()
    (project / "envbuild.toml").unlink()
    for line in (("build", "cpu", "--executor", "slurm"), ("jobs",), ("attach", "x"), ("cancel", "x")):
        done = cli(*line)
        assert done.code == 2 and "[executor] folder" in done.err, line
    assert "go" in cli("build", "cpu", "--detach").err and cli("build", "cpu", "--detach").code == 2
    assert cli("build", "cpu", "--executor", "lsf").code == 2
    assert cli("smoke", "cpu", "--dry-run").code == 2
    assert cli("node", "/nowhere").code == 2


def test_a_smoke_is_rendered_for_kubernetes_and_a_build_is_not(cli: Any, site: Path) -> None:
    line = ("smoke", "cpu", "--executor", "k8s", "--dry-run")
    done = cli(*line, ENVBUILD_REGISTRY_NAME="registry.example.com/team")
    assert done.code == 0, done.err
    config, job = yaml.safe_load_all(done.out)
    (container,) = job["spec"]["template"]["spec"]["containers"]
    assert container["image"].startswith("registry.example.com/team/envbuild/cpu:2.13.0-cpu-")
    assert config["data"]["zero3.py"] and cli(*line).code == 2
    several = cli(*line, "--nodes", "2", ENVBUILD_REGISTRY_NAME="registry.example.com/team")
    _, job_set = yaml.safe_load_all(several.out)
    assert job_set["kind"] == "JobSet" and "&id" not in several.out + done.out
    for other in (("build", "cpu", "--dry-run"), ("smoke", "cpu")):
        refused = cli(*other, "--executor", "k8s")
        assert refused.code == 2 and "kubectl apply" in refused.err


def test_a_site_that_cannot_be_meant(cli: Any, site: Path, project: Path) -> None:
    (project / "envbuild.toml").write_text(
        '[executor]\nkind = "lsf"\n[slurm]\ntime = "two hours"\noptions = ["--array=1-3", "-p gpu"]\n'
        'partition = "gpu; rm"\n[slurm.gpus]\nh100 = {grse = "gpu:8"}\n'
    )
    done = cli("build", "cpu")
    assert done.code == 2
    for words in ("executor.kind", "as Slurm writes it", "--array is envbuild's own", "is no option of sbatch",
                  "slurm.partition", "slurm.gpus.h100.grse"):  # fmt: skip
        assert words in done.err, words


def test_runs_are_read_from_the_shared_folder(cli: Any, site: Path) -> None:
    (site / "runs" / "20261130-101502-3f9a").mkdir(parents=True)
    (site / "runs" / "20261130-101502-3f9a" / "run.json").write_text("{}")
    assert cli("jobs", "--json").json == {"schema": "envbuild.jobs/1", "jobs": []}, "what is no run is passed over"
    done = cli("attach", "3f9a")
    assert done.code == 2 and "there is no run 3f9a" in done.err and "envbuild jobs" in done.err
