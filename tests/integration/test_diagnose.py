"""Failures that are made to happen in the proven image and in a build: what the programs write leads to their kind."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from envbuild.engines import BuildRequest, ContainerSpec, DockerEngine, Mount
from envbuild.errors import BuildError
from envbuild.pipeline.causes import explained
from envbuild.pipeline.workbench import Workbench
from proving import Cli

TRAIN = """
import json, os
import deepspeed, torch
deepspeed.init_distributed("gloo")
model = torch.nn.Linear(64, 1)
optimizer = torch.optim.AdamW(model.parameters()) if "CLIENT" in os.environ else None
engine, *_ = deepspeed.initialize(
    model=model, optimizer=optimizer, model_parameters=model.parameters(), config=json.loads(os.environ["CONFIG"])
)
for step in range(4):
    if os.environ["RANK"] == "1" and step == 1 and "KILL" in os.environ:
        os.kill(os.getpid(), 9)
    loss = engine(torch.ones(2, 64)).mean()
    engine.backward(loss)
    engine.step()
    print("step", step, "loss", loss.item(), flush=True)
"""
LOADER = """
import torch
from torch.utils.data import DataLoader
for batch in DataLoader(torch.ones(64, 1 << 18), batch_size=16, num_workers=2):
    pass
"""
ABSENT = """
import datetime, torch.distributed
torch.distributed.init_process_group("gloo", timeout=datetime.timedelta(seconds=2))
"""
ADAM = {"type": "AdamW", "params": {"lr": 0.001}}
OFFLOAD = {"stage": 3, "offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"}}
GOOD = {"train_batch_size": 4, "optimizer": ADAM, "zero_optimization": OFFLOAD}
NVME = {"stage": 3, "offload_param": {"device": "nvme"}, "offload_optimizer": {"device": "nvme"}}
PYTHON = "/opt/venv/bin/python"
TORCHRUN = (
    "/opt/venv/bin/torchrun", "--master-addr", "127.0.0.1", "--master-port", "29511", "--nproc-per-node", "2",
    "/run/script.py",
)  # fmt: skip
Run = Callable[..., str]


@pytest.fixture
def run(proven: dict[str, object], engine: DockerEngine, tmp_path: Path) -> Run:
    """Everything that a script writes in the proven image, without a network."""

    def call(script: str, argv: tuple[str, ...] = TORCHRUN, shm: int = 512 << 20, **variables: str) -> str:
        path = tmp_path / "script.py"
        path.write_text(script)
        env = {"GLOO_SOCKET_IFNAME": "lo", "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1", **variables}
        done = engine.run(
            ContainerSpec(
                image=str(proven["id"]), argv=argv, env=tuple(env.items()), network="none", shm_bytes=shm,
                mounts=(Mount(source=path, target="/run/script.py", read_only=True),),
            ),
            timeout=90,
        )  # fmt: skip
        assert not done.timed_out
        return done.stderr + done.stdout

    return call


def _kinds(cli: Cli, folder: Path, text: str) -> list[str]:
    log = folder / "run.log"
    log.write_text(text)
    done = cli("diagnose", str(log), "--json")
    causes = json.loads(done.stdout)["causes"]
    assert done.returncode == bool(causes), text
    return [cause["kind"] for cause in causes]


def test_a_healthy_run_has_no_cause(run: Run, cli: Cli, tmp_path: Path) -> None:
    text = run(TRAIN, CONFIG=json.dumps(GOOD))
    assert "step 3" in text and "Warning" in text
    assert _kinds(cli, tmp_path, text) == []


@pytest.mark.parametrize(
    ("kind", "config", "variables"),
    [
        ("host-ram-oom", GOOD, {"KILL": "1"}),
        ("ds-config-offload-optimizer", {key: GOOD[key] for key in GOOD if key != "optimizer"}, {"CLIENT": "1"}),
        ("ds-config-unknown-key", {**GOOD, "zero_optimization": {"stage": 3, "aio": {"thread_count": 1}}}, {}),
        ("ds-config-batch-mismatch",
         {**GOOD, "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 1}, {}),
        ("ds-config-auto-unresolved", {**GOOD, "train_batch_size": "auto"}, {}),
        ("ds-config-nvme-path", {**GOOD, "zero_optimization": NVME}, {}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_training(
    run: Run, cli: Cli, tmp_path: Path, kind: str, config: dict[str, object], variables: dict[str, str]
) -> None:
    text = run(TRAIN, CONFIG=json.dumps(config), **variables)
    assert _kinds(cli, tmp_path, text)[:1] == [kind], text


def test_a_full_dev_shm(run: Run, cli: Cli, tmp_path: Path) -> None:
    text = run(LOADER, (PYTHON, "/run/script.py"), shm=1 << 20)
    assert _kinds(cli, tmp_path, text)[:1] == ["shm-too-small"], text


@pytest.mark.parametrize(
    ("master", "kind"),
    [("127.0.0.1", "rendezvous-timeout"), ("node99", "master-unresolved")],
    ids=["absent", "unknown"],
)
def test_a_rank_that_meets_nobody(run: Run, cli: Cli, tmp_path: Path, master: str, kind: str) -> None:
    # Nobody has to answer for the name; the first node waits for the second, the second looks for the first.
    rank = "0" if kind == "rendezvous-timeout" else "1"
    text = run(
        ABSENT, (PYTHON, "/run/script.py"), RANK=rank, LOCAL_RANK="0", WORLD_SIZE="2", MASTER_ADDR=master,
        MASTER_PORT="29511",
    )  # fmt: skip
    assert _kinds(cli, tmp_path, text)[:1] == [kind], text


def test_a_build_says_its_cause(proven: dict[str, object], engine: DockerEngine, tmp_path: Path, tag: str) -> None:
    dockerfile = tmp_path / "Dockerfile"
    dockerfile.write_text(f"FROM {proven['tags'][0]}\nUSER root\nRUN apt-get install -y no-such-package\n")  # type: ignore[index]
    log = tmp_path / "build.log"
    request = BuildRequest(context=tmp_path, dockerfile=dockerfile, tag=tag, platform="linux/amd64", network="none")
    with pytest.raises(BuildError) as raised, explained(Workbench(), log):
        engine.build(request, log=log, timeout=600)
    assert [cause.kind for cause in raised.value.causes] == ["apt-package-missing"]
    assert "no-such-package" in raised.value.causes[0].cause
