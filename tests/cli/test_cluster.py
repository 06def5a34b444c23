"""Commands about a cluster where there is none: plans, and what each says is missing."""

from __future__ import annotations

import json
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


def test_a_measurement_is_a_job_that_is_told_what_was_typed(cli: Any, site: Path, project: Path) -> None:
    config = {"train_micro_batch_size_per_gpu": 4}
    (project / "mine.json").write_text(json.dumps(config))
    typed = ("--ds-config", "mine.json", "--set", "zero_optimization.stage=2", "--env", "A=b=c", "--disk", "scratch")
    done = cli("profile", "h100-cu121", *typed, "--pass", "timing", "--timeout", "90", "--dry-run", "--json")
    assert done.code == 0, done.err
    plan = done.json["plan"]
    (task,) = plan["tasks"]
    assert plan["submissions"][0]["argv"].count("--gres=gpu:h100:8") == 1 and not site.exists()
    # Nodes need not see what the user's file is; a folder is the node's own, wherever the line was typed.
    assert task["argv"] == [
        "profile", f"--ds-config={plan['folder']}/0-ds_config.json", f"--project={project.resolve()}",
        "--executor=local", "--pass=timing", "--set=zero_optimization.stage=2", "--env=A",
        f"--disk={project}/scratch", "--timeout=90.0", "--json", "h100-cu121",
    ]  # fmt: skip
    assert json.loads(plan["files"]["0-ds_config.json"]) == config
    assert plan["files"]["0-values.json"] == {"A": "***"} and "b=c" not in done.out

    done = cli("compare", "cpu", "team/cpu:2", "--rounds", "3", "--fresh", "--differs", "config", "--dry-run", "--json")
    (task,) = done.json["plan"]["tasks"]
    assert done.json["schema"] == "envbuild.compare/1" and "--array=0" in done.json["plan"]["submissions"][0]["argv"]
    assert task["argv"][3:] == ["--differs=config", "--rounds=3", "--fresh", "--json", "--", "cpu", "team/cpu:2"]


def test_a_training_over_nodes_takes_a_process_for_each_gpu_and_adds_first(cli: Any, site: Path, project: Path) -> None:
    line = ("profile", "h100-cu121", "--nodes", "2", "--pass", "timing", "--dry-run", "--json", "-o", "m.json")
    image = ("team/h100:1", "--row", "h100-cu121")
    done = cli(line[0], *image, *line[2:], ENVBUILD_SLURM_CONTAINER="podman")
    assert done.code == 0, done.err
    plan = done.json["plan"]
    folder = plan["folder"]
    assert {"--nodes=2", "--ntasks-per-node=8", "--gres=gpu:h100:8"} <= set(plan["submissions"][0]["argv"])
    assert plan["tasks"][0]["argv"] == ["spread", "--json", f"--project={project.resolve()}", f"{folder}/spread.json"]
    spread = json.loads(plan["files"]["spread.json"])
    assert (spread["world"], spread["container"], spread["passes"]) == (16, "podman", ["timing"])
    assert spread["check"][-1] == f"{folder}/rank.sh" and spread["train"][-1] == f"{folder}/train.sh"
    add, train = plan["files"]["rank.sh"], plan["files"]["train.sh"]
    mounted = f"--volume {folder}/inside:/run/envbuild-inside:ro"
    assert "exec podman run" in add and mounted in add and "allreduce.py --accelerator cuda" in add
    assert mounted in train and "/run/envbuild-inside/profiler/launch.py --probes /run/envbuild-inside/probes" in train
    assert train.rstrip().endswith("--nvml /run/envbuild-inside/pynvml.py --join 8")
    assert {"inside/profiler/rank.py", "inside/probes/zero3.py", "inside/pynvml.py"} <= set(plan["files"])
    told = cli("profile", *image, "--nodes", "2", "--dry-run", ENVBUILD_SLURM_CONTAINER="pyxis")
    assert "never run by us" in told.err and "train.sh:" in told.out and not site.exists()
    # On the CPU a node has as many as are said; a row's name is what its engine knows the image by.
    cpu = cli("profile", "cpu", "--nodes", "2", "--ranks-per-node", "3", "--dry-run", "--json").json["plan"]
    added = cli("smoke", "cpu", "--nodes", "2", "--dry-run").out
    assert " envbuild/cpu:2.13.0-cpu-" in added, "no engine knows an image by its row's name"
    assert (
        "--ntasks-per-node=3" in cpu["submissions"][0]["argv"]
        and " envbuild/cpu:2.13.0-cpu-" in cpu["files"]["train.sh"]
    )


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (
            ("profile", "--executor", "slurm", "--", "python", "train.py"),
            "envbuild profile -o m.json -- python train.py",
        ),
        (("profile", "--python", "python3", "--detach"), "an interpreter is measured where it is"),
        (("profile", "--from", "x.log", "--executor", "slurm"), "--from reads files, which runs here"),
        (("profile", "cpu", "--set", "stage"), "it is not KEY=VALUE"),
        (("profile", "Not An Image"), "neither a row nor the name of an image"),
        (("compare", "a.json", "b.json", "--executor", "slurm"), "go with images"),
        (("compare", "a.json", "cpu"), "a.json is a file, and cpu an image"),
        (("profile", "cpu", "--nodes", "2", "--disk", "x"), "--disk is measured on one node"),
        (("profile", "cpu", "--nodes", "2", "--ranks", "2"), "say --ranks-per-node"),
        (("profile", "cpu", "--nodes", "2", "--gpus", "0"), "--gpus is of one node"),
        (("profile", "cpu", "--nodes", "2", "--engine", "podman"), "[slurm] container"),
        (("profile", "team/it:1", "--nodes", "2"), "does not say which row it is"),
        (("profile", "cpu", "--nodes", "2", "--executor", "local"), "this host is one node"),
        (
            ("profile", "cpu", "--nodes", "2", "--set", "zero_optimization.offload_optimizer.device=nvme"),
            "an offload to a disk is measured on one node",
        ),
        (("compare", "cpu", "h100-cu121"), "ask for nodes of two kinds"),
        (("compare", "cpu", "team/cpu:2", "--candidate-set", "a=1"), "Say --differs config, too"),
        (("profile", "cpu", "--ranks-per-node", "2"), "goes with --nodes N"),
        (("build", "cpu", "-j", "2"), "the cluster's to say"),
        (("smoke", "cpu", "--nodes", "2", "--long"), "an all-reduce over --nodes takes no --long"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_no_node_could_do_is_said_before_it_waits(cli: Any, site: Path, line: tuple[str, ...], said: str) -> None:
    done = cli(*line)
    assert done.code == 2 and said in done.err and not site.exists()


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
    slip = cli(*line, "--detach", "--gpus", "all")
    assert slip.code == 2 and "a manifest takes no --gpus, --detach" in slip.err
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
