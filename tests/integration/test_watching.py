"""Trainings of DeepSpeed that are really watched, in the image of the row `cpu`: two ranks on gloo.

The container's processes are looked at from the host, as the ones of a command are; the beacon writes into a mount.
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from envbuild.engines import DockerEngine
from envbuild.pipeline import stacks
from envbuild.pipeline.profile_wish import profiler_folder
from envbuild.pipeline.watched import Watch, Wish
from envbuild.pipeline.watched_run import beacon_folder, variables
from envbuild.watching.hangs import Patience
from envbuild.watching.types import Alert

REPOSITORY = Path(__file__).parents[2]
# In step 100 rank 1 does something else than the others.
TRAINING = """
import os, signal, subprocess, sys, time
if "RANK" not in os.environ:
    def start(rank):
        more = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
        return subprocess.Popen([sys.executable, __file__], env={**os.environ, **more})
    children = [start(rank) for rank in range(2)]
    sys.exit(max(abs(child.wait()) for child in children))
import deepspeed, torch
deepspeed.init_distributed()
rank = torch.distributed.get_rank()
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1))
config = {
    "train_micro_batch_size_per_gpu": 4,
    "optimizer": {"type": "Adam", "params": {"lr": 1e-3}},
    "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}},
}
engine, _, _, _ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
def stuck_here():
    exec(os.environ["WRONG"])
for number in range(100000):
    loss = engine(torch.ones(4, 64)).square().mean()
    engine.backward(loss)
    engine.step()
    if rank == 1 and number == 100:
        stuck_here()
    time.sleep(0.02)
"""
LEAK = """
import time
kept = []
for step in range(100000):
    kept.append(bytearray(b"x" * (1 << 20)))
    print(f"step {step} loss: {1 / (step + 1)}", flush=True)
    time.sleep(0.05)
"""
Start = Callable[..., int]


@pytest.fixture
def contained(engine: DockerEngine, proven: dict[str, object], tmp_path: Path) -> Iterator[Start]:
    """Starts a container; gives the number that its first process has on this host."""
    docker = ["docker", "-H", engine.endpoint]
    name = f"envbuild-watch-{secrets.token_hex(4)}"
    image = str(proven["tags"][0])  # type: ignore[index]

    def call(text: str, *options: str, **env: str) -> int:
        (tmp_path / "train.py").write_text(text)
        out = tmp_path / "out"
        out.mkdir(mode=0o777)
        out.chmod(0o777)
        seen = {**variables("/out", 1.0, profiler="/profiler", beacon="/beacon", path=""), **env,
                "DS_ACCELERATOR": "cpu", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511", "OMP_NUM_THREADS": "1",
                "GLOO_SOCKET_IFNAME": "lo", "HOME": "/tmp"}  # fmt: skip
        places = {profiler_folder(): "/profiler:ro", beacon_folder(): "/beacon:ro",
                  out: "/out", tmp_path / "train.py": "/train.py:ro"}  # fmt: skip
        line = [*docker, "run", "-d", "--rm", "--name", name, "--network", "none", *options]
        # The same user may look at it, root or not.
        line += ["--user", f"{os.getuid()}:{os.getgid()}"]
        line += [f"-e{key}={value}" for key, value in seen.items()]
        line += [word for source, target in places.items() for word in ("-v", f"{source}:{target}")]
        subprocess.run([*line, image, "python", "/train.py"], check=True, capture_output=True)
        state = subprocess.run([*docker, "inspect", "-f", "{{.State.Pid}}", name], check=True, capture_output=True)
        return int(state.stdout)

    yield call
    subprocess.run([*docker, "rm", "-f", name], check=False, capture_output=True)


def watched(pid: int, folder: Path | None, wish: Wish, wanted: str) -> tuple[Watch, Alert]:
    """Watch until something is said."""
    said: list[Alert] = []
    watch = Watch(pid, folder, wish, said.append, lambda: None)
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        watch.beat()
        for alert in said:
            if alert.kind == wanted:
                return watch, alert
        time.sleep(0.2)
    pytest.fail(f"nothing was said of a {wanted}: {said}")


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("time.sleep(3600)", "gloo:"),
        ("torch.distributed.broadcast(torch.ones(3), 0)", ""),
    ],
)
def test_the_rank_that_hangs_is_named_with_its_stack_and_its_flight_recorder(
    contained: Start, tmp_path: Path, wrong: str, said: str
) -> None:
    wish = replace(Wish(), patience=Patience(interval=1.0), on_hang="dump", dumps=tmp_path / "dump")
    pid = contained(TRAINING, WRONG=wrong)
    kind = "mismatch" if "broadcast" in wrong else "hang"
    _, alert = watched(pid, tmp_path / "out", wish, kind)
    assert alert.rank in ((0, 1) if kind == "mismatch" else (1,)) and said in alert.message, alert
    # Who is where is known in steps of the engine and in collectives, though it prints nothing.
    assert any("step 101" in line for line in alert.evidence), alert
    if alert.rank == 1 and stacks.spy():
        assert any(line.strip().startswith("stuck_here (") for line in alert.evidence), alert
    flight = json.loads((tmp_path / "dump" / "flight-0.json").read_text())
    assert flight["entries"] and flight["entries"][-1]["collective_seq_id"] > 100


def test_a_rank_that_works_by_itself_while_the_others_wait_is_busy_and_no_hang(
    contained: Start, tmp_path: Path
) -> None:
    # An evaluation that hardly uses a CPU: a dozen seconds in five places.
    works = "\n".join(f"def part{n}(): time.sleep({0.2 + n / 50})" for n in range(5))
    works += "\nfor _ in range(10): part0(), part1(), part2(), part3(), part4()"
    pid = contained(TRAINING, WRONG=works)
    wish = replace(Wish(), patience=Patience(interval=1.0))
    watch, _ = watched(pid, tmp_path / "out", wish, "goes-on")
    said = watch.close().alerts
    assert [(alert.kind, alert.rank) for alert in said] == [("busy", 1), ("goes-on", None)], said
    assert "in stuck_here (train.py:" in said[0].message and said[0].severity == "info", said


def test_a_leak_is_told_before_the_kernel_kills(contained: Start) -> None:
    pid = contained(LEAK, "--memory", "400m", "--memory-swap", "400m")
    # Its own words cannot be heard from here: what is watched is the guess that it is a training.
    wish = replace(Wish(), patience=Patience(interval=0.2))
    watch, alert = watched(pid, None, wish, "memory-low")
    assert "memory of the cgroup" in alert.message and watch.close().alerts[-1] == alert
