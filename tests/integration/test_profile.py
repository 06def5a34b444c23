"""Trainings that are really measured, in the image of the row `cpu`: two ranks on gloo, a tiny model.

Times differ from run to run, so nothing here holds one against a clock: parts against their own step, injected faults
against a run without, counts against counts.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from envbuild import store
from envbuild.engines import DockerEngine
from envbuild.engines.cleanup import RUN_LABEL
from envbuild.profile import files
from envbuild.profile.bottleneck import diagnose
from envbuild.profile.document import Launch, Measurement
from envbuild.profiler import models
from proving import Cli, wait_for
from throttled import disk_of, throttle

Measure = Callable[..., Measurement]
SCRIPT = """
import sys, time
import deepspeed, torch
deepspeed.init_distributed()
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1))
class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 400
    def __getitem__(self, place):
        time.sleep(0.01)
        return torch.full((64,), float(place) / 400), torch.zeros(1)
config = {
    "train_micro_batch_size_per_gpu": 4,
    "gradient_accumulation_steps": 2,
    "optimizer": {"type": "Adam", "params": {"lr": 1e-3}},
    "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}},
    "wall_clock_breakdown": True,
}
engine, _, _, _ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
for number, (x, y) in enumerate(torch.utils.data.DataLoader(Slow(), batch_size=4)):
    if number == 20:
        break
    loss = torch.nn.functional.mse_loss(engine(x), y)
    engine.backward(loss)
    engine.step()
print("the user's own words", flush=True)
sys.exit(7)
"""


# On the CPU nothing is as slow beside Adam as a GPU makes it: so a model that is a table, whose gradient is known
# without computing it, and that one rank does not reduce.
TABLE = """
import deepspeed, torch
deepspeed.init_distributed()
class Known(torch.autograd.Function):
    @staticmethod
    def forward(ctx, table):
        ctx.size = table.shape
        return table[0].clone()
    @staticmethod
    def backward(ctx, gradient):
        return gradient.expand(ctx.size)
class Table(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.nn.Parameter(torch.zeros(64_000_000))
    def forward(self, x):
        return Known.apply(self.table) * x
config = {
    "train_micro_batch_size_per_gpu": 1,
    "gradient_clipping": 0.0,
    "optimizer": {"type": "Adam", "params": {"lr": 1e-3}},
    "zero_optimization": {"stage": 0, "offload_optimizer": {"device": "cpu"}},
}
model = Table()
engine, _, _, _ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
for _ in range(8):
    with engine.no_sync():
        engine.backward(engine(torch.ones(())))
    engine.step()
"""


@pytest.fixture(scope="module")
def measure(cli: Cli, proven: dict[str, object], tmp_path_factory: pytest.TempPathFactory) -> Measure:
    folder = tmp_path_factory.mktemp("measured")

    def call(*options: str) -> Measurement:
        path = folder / f"{len(list(folder.iterdir()))}.json"
        done = cli("profile", "cpu", "--warmup", "2", "-o", str(path), "-q", *options)
        assert done.returncode == 0, done.stderr
        return files.read(path)

    return call


@pytest.fixture(scope="module")
def plain(measure: Measure) -> Measurement:
    """A run with nothing wrong; stage 2, because stage 3 makes a third more collectives and takes longer."""
    return measure("--pass", "timing", "--pass", "comms", "--pass", "parity", "--steps", "10")


def launch_of(measured: Measurement, name: str) -> Launch:
    return next(launch for launch in measured.launches if launch.pass_ == name)


def mean(launch: Launch, part: Any, rank: int | None = None) -> float:
    ranks = [each for each in launch.ranks if rank in (None, each.rank)]
    return statistics.fmean(
        value or 0.0 for each in ranks for value in each.steps.parts.get(part, (0.0,))[launch.warmup :]
    )


def first(measured: Measurement) -> str | None:
    """What holds it back most."""
    found = diagnose(measured).found
    return found[0].rule if found else None


def test_the_parts_make_up_the_step_and_every_rank_is_seen(plain: Measurement) -> None:
    launch = launch_of(plain, "timing")
    assert [rank.rank for rank in launch.ranks] == [0, 1] and launch.warmup == 2
    for rank in launch.ranks:
        steps = rank.steps
        assert steps.number == tuple(range(12))
        for number, seconds in enumerate(steps.seconds):
            spent = sum(column[number] or 0.0 for column in steps.parts.values())
            assert seconds is not None and 0.9 * seconds <= spent <= seconds
        # One axis: a step begins where the one before it ended.
        for at, seconds, after in zip(steps.at, steps.seconds, steps.at[1:], strict=False):
            assert at is not None and seconds is not None and after == pytest.approx(at + seconds, abs=0.02)
        kernel = steps.inside["optimizer_kernel"]
        assert all(
            0 < (inner or 0) <= (whole or 0) for inner, whole in zip(kernel, steps.parts["optimizer"], strict=True)
        )
        assert rank.memory.host_peak_bytes and rank.memory.gpu_peak_bytes is None
    assert launch.communication.backend == "gloo" and launch.communication.startup_seconds
    kinds = {series.kind for series in launch.samples.series}
    assert {"cpu_percent", "process_cpu_percent", "process_memory_bytes", "host_memory_bytes"} <= kinds
    assert not any(kind.startswith("gpu") for kind in kinds)
    assert {"gpu_percent", "moved.h2d", "memory.gpu_peak_bytes"} <= {each.figure for each in launch.unavailable}


def test_the_step_is_plain_torchs(plain: Measurement) -> None:
    (parity,) = launch_of(plain, "parity").structure.parity
    assert parity.passed and parity.precision == "fp32" and (parity.gradient_error or 1) < 1e-5


def test_exact_figures_are_exact_and_the_same_in_every_run_and_pass(plain: Measurement, measure: Measure) -> None:
    again = measure("--pass", "timing", "--steps", "10")
    one, two = launch_of(plain, "timing").structure, launch_of(again, "timing").structure
    count = models.parameters_of("tiny")
    assert one.parameters == count and one.devices["optimizer_class"] == "DeepSpeedCPUAdam"
    assert one == two == launch_of(plain, "comms").structure
    # Weights, masters, two moments, gradients: 24 bytes, and what DeepSpeed has in hand.
    assert 24 * count <= (one.host_tensor_bytes or 0) <= 40 * count
    assert {row.op for row in one.collectives} == {"all_gather_into_tensor", "all_reduce", "reduce_scatter_tensor"}
    assert plain.key.config == again.key.config and plain.key.model == again.key.model
    assert launch_of(plain, "timing").ranks[0].steps.loss == launch_of(again, "timing").ranks[0].steps.loss
    for rank in launch_of(plain, "comms").ranks:
        assert all(row.time == "measured" and row.bus_bandwidth is not None for row in rank.collectives if row.bytes)
        waited = rank.steps.inside["communication"]
        assert all((inner or 0) <= (whole or 0) for inner, whole in zip(waited, rank.steps.seconds, strict=True))


def test_a_smaller_bucket_multiplies_the_collectives(plain: Measurement, measure: Measure) -> None:
    small = measure("--pass", "timing", "--steps", "4", "--set", "zero_optimization.reduce_bucket_size=20000")

    def scattered(measured: Measurement) -> float:
        structure = launch_of(measured, "timing").structure
        (row,) = (row for row in structure.collectives if row.op == "reduce_scatter_tensor")
        return row.count / (structure.steps or 1)

    assert scattered(small) >= 3 * scattered(plain)


def test_a_slow_loader_is_seen_and_named_first(measure: Measure) -> None:
    slow = measure("--pass", "timing", "--steps", "6", "--data", "slow:250")
    assert mean(launch_of(slow, "timing"), "data_wait") >= 0.5, "two micro-batches of 250 ms"
    assert first(slow) == "data"


def test_an_experiment_confirms_that_the_loader_is_slow(cli: Cli, measure: Measure, tmp_path: Path) -> None:
    slow = measure(
        "--pass",
        "timing",
        "--steps",
        "3",
        "--ranks",
        "1",
        "--data",
        "slow:300",
        "--set",
        "gradient_accumulation_steps=1",
    )
    assert first(slow) == "data"
    store.write_json(tmp_path / "m.json", files.document(slow))
    done = cli("bottleneck", str(tmp_path / "m.json"), "--experiment", "--only", "data", "--json")
    assert done.returncode == 0, done.stderr
    (found,) = json.loads(done.stdout)["experiments"]
    assert found["verdict"] == "confirmed" and found["rounds"] == 5, found
    assert [(each["name"], each["base"], each["candidate"]) for each in found["changed"]] == [
        ("data", "slow:300", "synthetic")
    ]
    sides = [files.read(Path(found[side])) for side in ("base", "candidate")]
    waits = [mean(launch_of(side, "timing"), "data_wait") for side in sides]
    assert waits[0] >= 0.3 > waits[1]
    assert {side.key.config for side in sides} == {slow.key.config}, "nothing else was changed"


def test_a_checkpoint_in_every_step_is_seen_and_named_first(measure: Measure) -> None:
    saving = measure("--pass", "timing", "--steps", "6", "--checkpoint-every", "1", "--model", "small", "--seq", "8")
    launch = launch_of(saving, "timing")
    assert launch.interval == 1 and mean(launch, "checkpoint") > 0
    # Adam's two moments and the fp32 weights.
    assert launch.structure.checkpoint_bytes == 12 * models.parameters_of("small", 8)
    assert first(saving) == "checkpoint"


def test_a_straggler_is_seen_and_named(measure: Measure) -> None:
    slow = measure("--pass", "timing", "--pass", "comms", "--steps", "6", "--straggle", "300@1")
    launch = launch_of(slow, "comms")
    own = {rank.rank: mean(launch, "forward", rank.rank) for rank in launch.ranks}
    assert own[1] >= 0.6
    waited = {rank.rank: statistics.fmean(v or 0 for v in rank.steps.inside["communication"]) for rank in launch.ranks}
    assert waited[0] > 2 * waited[1], "the other one waits for it"
    assert first(slow) == "straggler"


def test_a_throttled_disk_under_an_offload_to_nvme_is_seen_and_named_first(
    start: Callable[..., Any], engine: DockerEngine, proven: dict[str, object], tmp_path: Path, store_home: Path
) -> None:
    limit = 20_000_000
    disk = store_home / f"swapped-{tmp_path.name}"
    disk.mkdir()
    others = {each.id for each in engine.containers(RUN_LABEL)}
    running = start(
        "profile", "cpu", "--pass", "timing", "--warmup", "1", "--steps", "3", "--ranks", "1", "--model", "mini",
        "--seq", "8", "--micro-batch", "1", "--set", "gradient_accumulation_steps=1", "--disk", str(disk),
        "--set", "zero_optimization.offload_optimizer.device=nvme", "--set", "zero_optimization.sub_group_size=1",
        "-o", str(tmp_path / "m.json"), "-q",
    )  # fmt: skip
    # Whatever it starts: where the engine refuses unlimited locked memory, a container that asks for it comes first.
    # The training imports torch and DeepSpeed long before it swaps.
    deadline = time.monotonic() + 120
    while running.poll() is None and time.monotonic() < deadline:
        for each in engine.containers(RUN_LABEL):
            if each.id not in others and each.state == "running":
                with contextlib.suppress(AssertionError, OSError):  # it ended meanwhile
                    throttle(each.id, disk_of(disk), limit)
                    others.add(each.id)
        time.sleep(0.1)
    _, said = running.communicate(timeout=180)
    shutil.rmtree(disk)
    assert running.returncode == 0, said
    measured = files.read(tmp_path / "m.json")
    steps = launch_of(measured, "timing").ranks[0].steps
    for number in range(1, 4):
        read, written, seen, wait = (
            column[number] or 0
            for column in (steps.disk["swap_read"], steps.disk["swap_write"], steps.disk["process_read"],
                           steps.inside["swap"])
        )  # fmt: skip
        # Weights, gradients and two moments of what is larger than 1 MiB go both ways; the kernel saw them pass.
        assert written == pytest.approx(read, rel=0.1) and seen >= 0.9 * read
        # Each way has a limit of its own, and the kernel lets a little go ahead.
        assert 0 < (read + written) / wait < 2.5 * limit, "the throttle's, and no page cache's"
        assert wait <= (steps.seconds[number] or 0)
    found = diagnose(measured).found[0]
    assert found.rule == "swap" and found.confidence == "high" and "MB/s" in found.evidence[1], found


@pytest.mark.parametrize("threads", [1, 2])
def test_one_thread_for_cpu_adam_is_named_first_and_as_many_as_there_are_cpus_are_not(
    cli: Cli, proven: dict[str, object], tmp_path: Path, threads: int
) -> None:
    (tmp_path / "train.py").write_text(TABLE)
    out = tmp_path / "m.json"
    # glibc's large pages: half of the step would be page faults of the gradient otherwise.
    env = ("env", f"OMP_NUM_THREADS={threads}", "GLIBC_TUNABLES=glibc.malloc.hugetlb=1")
    done = cli(
        "profile", "cpu", "--project", str(Path(__file__).parents[2]), "--warmup", "2", "-o", str(out), "--",
        *env, "/opt/venv/bin/torchrun", "--nproc_per_node", "1", "train.py", cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    measured = files.read(out)
    rank = launch_of(measured, "timing").ranks[0]
    assert (rank.cores.threads, rank.cores.asked, rank.cores.sharers) == (threads, str(threads), 1)
    assert (rank.cores.cpus or 0) >= 2, "one thread is no fault on a single CPU"
    assert rank.steps.inside.keys() == {"optimizer_kernel"}, "it swaps nothing"
    found = diagnose(measured).found[0]
    assert found.rule == "optimizer", found
    assert (found.title == "CPU-Adam runs on one thread") == (threads == 1), found
    if threads == 1:
        (change,) = found.changes
        assert f"OMP_NUM_THREADS={rank.cores.cpus}" in change


def test_the_threads_of_a_rank_are_told(measure: Measure) -> None:
    one = measure("--pass", "timing", "--steps", "2", "--ranks", "1", "--threads", "1")
    assert "OpenMP threads of a rank: 1" in one.notes and one.key.world_size == 1


def test_a_users_own_training_is_measured_and_left_as_it_is(
    cli: Cli, proven: dict[str, object], tmp_path: Path, store_home: Path
) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    out = tmp_path / "m.json"
    project = str(Path(__file__).parents[2])
    done = cli(
        "profile", "cpu", "--project", project, "--warmup", "2", "-o", str(out), "--",
        "/opt/venv/bin/torchrun", "--nproc_per_node", "2", "train.py", cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 1, "torchrun's own, of ranks that end with 7"
    assert done.stdout.count("the user's own words") == 2 and "exitcode  : 7" in done.stderr
    measured = files.read(out)
    assert measured.origin.kind == "command" and "train.py" in (measured.origin.command or "")
    launch = launch_of(measured, "timing")
    assert [len(rank.steps.number) for rank in launch.ranks] == [10, 10]
    for rank in launch.ranks:
        # Two micro-batches of four samples that take 10 ms each.
        assert all((wait or 0) >= 0.08 for wait in rank.steps.parts["data_wait"][1:])
        assert all(loss is not None for loss in rank.steps.loss)
    assert first(measured) == "data" and launch.structure.parameters == 64 * 256 + 256 + 256 + 1
    assert any(series.kind == "process_cpu_percent" for series in launch.samples.series)
    assert not list((store_home / "runs").glob("command-*"))


def test_a_training_that_fails_says_which_rank_and_why(cli: Cli, proven: dict[str, object], tmp_path: Path) -> None:
    done = cli(
        "profile", "cpu", "--steps", "1", "--set", "zero_optimization.stage3_bucket=1", "-o", str(tmp_path / "m")
    )
    assert done.returncode == 5 and "stage3_bucket" in done.stderr and "rank 0" in done.stderr
    late = cli("profile", "cpu", "--steps", "1000", "--timeout", "35", "-o", str(tmp_path / "m"))
    assert late.returncode == 5 and "did not end in time" in late.stderr and "--timeout" in late.stderr
    assert not (tmp_path / "m").exists()


def test_a_comparison_that_was_killed_goes_on_where_it_was(
    cli: Cli, start: Callable[..., Any], engine: DockerEngine, proven: dict[str, object], store_home: Path
) -> None:
    words = ("compare", "cpu", "cpu", "--rounds", "2", "--steps", "3", "--warmup", "1")
    others = set((store_home / "sessions").glob("*"))
    killed = start(*words)
    wait_for(killed, "2 of 4 launches")
    wait_for(killed, "[profile]")
    deadline = time.monotonic() + 120
    # In the middle of the third launch: its container is there.
    while not engine.containers(RUN_LABEL):
        assert time.monotonic() < deadline, "the third launch has no container"
        time.sleep(0.05)
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    (session,) = set((store_home / "sessions").iterdir()) - others
    before = {path.name: path.read_bytes() for path in session.glob("*.json")}
    assert set(before) == {"000-base.json", "001-candidate.json"}
    done = cli(*words, "--json")
    assert done.returncode == 5, "two rounds decide nothing"
    assert "going on with session" in done.stderr and "removed a leftover" in done.stderr
    assert {path.name for path in session.glob("*.json")} == {
        "000-base.json", "001-candidate.json", "002-candidate.json", "003-base.json",
    }  # fmt: skip
    assert all((session / name).read_bytes() == kept for name, kept in before.items())
    found = json.loads(done.stdout)["comparison"]
    assert found["verdict"] == "inconclusive" and found["timing"]["interleaved"] and not found["undeclared"]
    assert all(row["change"] == "same" for row in found["structural"]) and found["convergence"]["verdict"] == "same"
