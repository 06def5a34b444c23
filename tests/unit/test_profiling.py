"""Measuring a training: what its programs count, what a ds_config becomes, and what the lines that came back say."""

from __future__ import annotations

import ast
import copy
import itertools
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from envbuild.errors import EnvbuildError, InputError
from envbuild.judge.suite import probes_folder
from envbuild.pipeline.commanded import masked
from envbuild.pipeline.measured import About, config_hash, measurement_of, read_lines
from envbuild.pipeline.measured_text import summary
from envbuild.pipeline.profile_wish import MODELS, Wish, argv_of, profiler_folder, profiler_hash, told, values_of
from envbuild.pipeline.training_config import training_config
from envbuild.profile import files, schema
from envbuild.profile.document import Hardware
from envbuild.profile.summary import traffic
from envbuild.profiler import collectives, hooks, models, parity, parts, swapping, tracing

FILES = sorted(profiler_folder().rglob("*.py"))
UNDER_TEST = {"deepspeed", "torch", "pynvml"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_program_is_old_python_and_imports_nothing_of_its_own(path: Path) -> None:
    tree = ast.parse(path.read_text(), feature_version=(3, 7))
    for node in ast.walk(tree):
        assert not isinstance(node, (ast.NamedExpr, ast.Match)), f"line {node.lineno}"
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            assert getattr(node, "level", 0) == 0, f"line {node.lineno}: python -I knows no package here"
            names = [getattr(node, "module", None) or alias.name for alias in node.names]
            for name in names:
                assert name.partition(".")[0] in sys.stdlib_module_names | UNDER_TEST, f"line {node.lineno}: {name}"
    for top in tree.body:
        names = [alias.name for alias in top.names] if isinstance(top, ast.Import) else []
        assert not UNDER_TEST & set(names), "only functions import what is measured"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Every reading is one second after the last one."""
    ticks = itertools.count()
    monkeypatch.setattr(parts.time, "perf_counter", lambda: float(next(ticks)))
    return parts.Clock()


def test_the_parts_of_a_step_never_overlap_and_the_next_step_begins_where_this_one_ends(clock: Any) -> None:
    with clock.part("forward"), clock.span("optimizer_kernel"):
        pass  # before the first step nothing is kept, however long it goes on
    clock.start()
    with clock.part("backward"), clock.part("reduction"):
        pass
    with clock.part("optimizer"), clock.span("optimizer_kernel"):
        pass
    _, seconds, spent, inside = clock.end()
    # Borders: 0 start, 1 backward, 2 reduction, 3, 4, 5 optimizer, 6-7 the span, 8, 9 the end.
    assert (seconds, inside) == (9.0, {"optimizer_kernel": 1.0})
    assert spent == {"backward": 2.0, "reduction": 1.0, "optimizer": 3.0}
    _, seconds, spent, inside = clock.end()
    assert (seconds, spent, inside) == (1.0, {}, {})


class Engine:
    """As DeepSpeed's, in so far as it is hooked."""

    def __init__(self, accumulation: int = 2) -> None:
        self.global_steps = self.micro = 0
        self.accumulation = accumulation
        self.optimizer = SimpleNamespace(optimizer=SimpleNamespace(step=lambda: None))
        self.timers = SimpleNamespace(
            log=lambda names, **more: None,
            get_timers=lambda: {"optimizer_step": SimpleNamespace(elapsed=lambda reset: 5.0)},
        )

    def forward(self, *given: Any) -> str:
        return "loss"

    def backward(self, loss: Any) -> None:
        self.allreduce_gradients()

    def allreduce_gradients(self) -> None: ...

    def save_checkpoint(self, folder: str) -> None: ...

    def step(self) -> None:
        self.micro += 1
        if self.micro % self.accumulation == 0:
            self.optimizer.optimizer.step()
            self.timers.log("optimizer_step")
            self.global_steps += 1


def test_the_hooks_see_each_step_of_the_optimizer_once(clock: Any) -> None:
    class Hooked(Engine):
        pass

    for name in ("forward", "backward", "allreduce_gradients", "save_checkpoint", "step"):
        setattr(Hooked, name, getattr(Engine, name))
    watched = hooks.Hooks(clock, swapping.Swaps(clock))
    seen: list[Any] = []
    watched.before = lambda engine: None if seen else clock.start()
    watched.after_step = lambda engine: seen.append((clock.end()[2], watched.seen({"optimizer_kernel": 1.0})))
    watched.install(Hooked)
    watched.install(Hooked)
    engine = Hooked()
    for _ in range(6):
        assert engine.forward("batch") == "loss"
        engine.backward("loss")
        engine.step()
    assert len(seen) == engine.global_steps == 3
    for spent, beside in seen:
        assert set(spent) == {"forward", "backward", "reduction", "optimizer"}
        assert set(beside["cpu"]) == set(beside["inside"]) == {"optimizer_kernel"}, "it swaps nothing"
        assert beside["timers"] == {"optimizer_step": 5.0}


@pytest.mark.parametrize("zero", [True, False], ids=["under ZeRO", "without ZeRO"])
def test_the_cpu_time_of_the_optimizers_kernel_is_that_of_all_threads(
    clock: Any, monkeypatch: pytest.MonkeyPatch, zero: bool
) -> None:
    used = iter([10.0, 13.0])
    monkeypatch.setattr(parts.time, "process_time", lambda: next(used))

    class Hooked(Engine):
        pass

    for name in ("forward", "backward", "step"):
        setattr(Hooked, name, getattr(Engine, name))
    engine = Hooked(accumulation=1)
    if not zero:
        engine.optimizer.step = engine.optimizer.optimizer.step
        del engine.optimizer.optimizer
        Hooked.step = lambda self: self.optimizer.step()  # type: ignore[method-assign]
    watched = hooks.Hooks(clock, swapping.Swaps(clock))
    watched.install(Hooked)
    clock.start()
    engine.forward("batch")
    engine.step()
    _, _, _, inside = clock.end()
    assert inside == {"optimizer_kernel": 1.0} and clock.cpu == {"optimizer_kernel": 3.0}
    clock.end()
    assert clock.cpu == {}


class Handle:
    """As async_io's: the waiting is done at the end, and a method may be made of others."""

    def async_pread(self, buffer: Any, path: str, offset: int = 0) -> int:
        return 0

    def async_pwrite(self, buffer: Any, path: str, offset: int = 0) -> int:
        return 0

    def sync_pread(self, buffer: Any, path: str) -> int:
        self.async_pread(buffer, path)
        return self.wait()

    def wait(self) -> int:
        return 1


def test_waiting_for_the_swappers_disk_is_timed_once_and_its_bytes_are_counted(clock: Any) -> None:
    class Own(Handle):
        pass

    for name in ("async_pread", "async_pwrite", "sync_pread", "wait"):
        setattr(Own, name, getattr(Handle, name))
    buffer = SimpleNamespace(numel=lambda: 100, element_size=lambda: 4)
    swaps = swapping.Swaps(clock)
    engine = Engine()
    swaps.install(engine)
    assert swaps.reason == swapping.NOTHING and swaps.take()[0] is None
    handle = Own()
    engine.optimizer.optimizer_swapper = SimpleNamespace(aio_handle=handle, buffers=[1], aio_config={})
    parameter = SimpleNamespace(nvme_swapper=SimpleNamespace(aio_handle=Own, aio_read_handle=Own()))
    engine.module = SimpleNamespace(parameters=lambda: [parameter, parameter])
    for _ in range(2):
        swaps.install(engine)
    swaps.install(Engine())
    assert swaps.reason is None, "another engine that swaps nothing takes nothing back"
    clock.start()
    assert handle.async_pread(buffer, "a", 0) == 0 and handle.async_pwrite(buffer=buffer, path="b") == 0
    assert handle.wait() == 1 and handle.sync_pread(buffer, "c") == 1
    with clock.part("checkpoint"):
        handle.async_pwrite(buffer, "not the swapper's")
    seconds, moved = swaps.take()
    # Four calls, of which each took a second; what one of them calls is in its own second.
    assert seconds == 4.0 and (moved["swap_read"], moved["swap_write"]) == (800, 400)
    seconds, moved = swaps.take()
    assert seconds == 0.0 and (moved["swap_read"], moved["swap_write"]) == (0, 0)
    # The kernel keeps an account of its own, where it keeps one.
    assert {"process_read", "process_write"} <= set(moved) or swapping.accounted() is None


def test_a_swapper_whose_handle_is_not_known_is_said_and_never_a_zero() -> None:
    swaps = swapping.Swaps(parts.Clock())
    engine = Engine()
    engine.optimizer.optimizer_swapper = SimpleNamespace(aio_handle=object())
    swaps.install(engine)
    assert swaps.take()[0] is None and "no handle that is known" in (swaps.reason or "")


def test_a_collective_that_is_made_of_others_counts_once_and_a_wait_is_waited_for() -> None:
    class Handle:
        waited = 0

        def wait(self) -> None:
            Handle.waited += 1

    class Backend:
        def all_gather_into_tensor(self, output_tensor: Any, input_tensor: Any, group: Any = None) -> Handle:
            self.all_reduce(input_tensor)
            return Handle()

        def all_reduce(self, tensor: Any, group: Any = None) -> None: ...

        def barrier(self) -> None: ...

    def tensor(count: int) -> Any:
        return SimpleNamespace(numel=lambda: count, element_size=lambda: 4)

    torch = SimpleNamespace(
        is_tensor=lambda value: hasattr(value, "numel"),
        distributed=SimpleNamespace(get_world_size=lambda group: group or 4),
    )
    counted = collectives.Counted(torch)
    backend = Backend()
    counted.install(backend)
    counted.install(backend)
    backend.all_gather_into_tensor(tensor(8), tensor(2), group=2)
    assert Handle.waited == 0
    counted.timed = True
    backend.all_gather_into_tensor(output_tensor=tensor(8), input_tensor=tensor(2), group=2)
    backend.all_reduce(tensor(3))
    backend.barrier()
    assert Handle.waited == 1 and counted.seconds > 0
    rows = {row["op"]: row for row in collectives.lines(counted.empty(), True)}
    # The message of a gather is what comes out.
    assert (rows["all_gather_into_tensor"]["count"], rows["all_gather_into_tensor"]["message_bytes"]) == (2, 32)
    assert (rows["all_reduce"]["bytes"], rows["all_reduce"]["group_size"]) == (12, 4)
    assert rows["barrier"]["bytes"] == 0 and counted.rows == {}


def test_what_overlaps_on_the_device_is_not_added_up_twice() -> None:
    def event(category: str, name: str, begin: int, duration: int, **arguments: Any) -> dict[str, Any]:
        return {"ph": "X", "cat": category, "name": name, "ts": begin, "dur": duration, "args": arguments}

    events = [
        event("kernel", "gemm", 0, 10), event("kernel", "gemm", 5, 10),
        event("kernel", "ncclDevKernel_AllGather_RING_LL", 10, 20),
        event("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 0, 4, bytes=100),
        event("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 2, 4, bytes=50),
        event("gpu_memcpy", "Memcpy DtoD (Device -> Device)", 50, 9, bytes=7),
        event("cpu_op", "aten::mm", 0, 100), {"ph": "M"},
    ]  # fmt: skip
    seen = tracing.on_device(events)
    micro = {kind: round(seconds * 1e6, 6) for kind, seconds in seen["seconds"].items()}
    assert micro == {"compute": 15, "communication": 20, "exposed_communication": 15, "h2d": 6, "d2h": 0}
    assert seen["bytes"] == {"h2d": 150, "d2h": 0}


def test_both_sides_know_the_same_models() -> None:
    assert {name: size[4] for name, size in models.SIZES.items()} == MODELS
    # 85.0 million in twelve blocks, as GPT-2's small one, and its embeddings.
    assert models.parameters_of("base") == 134_376_960 and 6e9 < models.parameters_of("7b") < 7e9


def test_a_config_of_hugging_faces_is_filled_in_and_what_was_changed_is_said() -> None:
    given = {
        "train_batch_size": "auto",
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": 4,
        "bf16": {"enabled": "auto"},
        "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": [0.9, 0.95]}},
        "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": "auto"}},
        "zero_optimization": {"stage": 3, "reduce_bucket_size": "auto", "overlap_comm": True},
        "tensorboard": {"enabled": True},
        "wall_clock_breakdown": True,
    }
    before = copy.deepcopy(given)
    config = training_config(given, accelerator="cpu", settings=["zero_optimization.stage=2", "a.b=word"])
    assert given == before
    assert config.values == {
        "gradient_accumulation_steps": 4,
        "train_micro_batch_size_per_gpu": 2,
        "optimizer": {"type": "AdamW", "params": {"betas": [0.9, 0.95]}},
        "zero_optimization": {"stage": 2, "overlap_comm": True},
        "steps_per_print": 1_000_000,
        "a": {"b": "word"},
    }
    said = "\n".join(config.notes)
    for word in ("scheduler.params.warmup_num_steps", "tensorboard", "wall_clock_breakdown", "reduce_bucket_size"):
        assert word in said
    kept = training_config(given, accelerator="cpu", settings=["wall_clock_breakdown=true"])
    assert kept.values["wall_clock_breakdown"] is True


@pytest.mark.parametrize(
    ("given", "settings", "said"),
    [
        ([], (), "no JSON object"),
        ({}, ("zero_optimization",), "not KEY=VALUE"),
        ({}, (".=1",), "not KEY=VALUE"),
        ({"optimizer": "Adam"}, ("optimizer.lr=1",), "no section"),
        ({"gradient_accumulation_steps": 0}, (), "gradient_accumulation_steps is 0"),
        ({"gradient_accumulation_steps": True}, (), "gradient_accumulation_steps is true"),
        ({"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "nvme"}}}, (), "no folder on a disk"),
    ],
)
def test_a_config_that_cannot_train_is_refused_in_words(given: Any, settings: tuple[str, ...], said: str) -> None:
    with pytest.raises(InputError, match=said):
        training_config(given, accelerator="cpu", settings=settings)


def test_states_are_swapped_to_the_folder_that_was_named() -> None:
    nvme = {"device": "nvme", "nvme_path": "/theirs"}
    given = {"zero_optimization": {"stage": 3, "offload_optimizer": nvme, "offload_param": {"device": "cpu"}}}
    zero = training_config(given, accelerator="cpu", disk="/run/disk").values["zero_optimization"]
    assert zero["offload_optimizer"]["nvme_path"] == "/run/disk" and "nvme_path" not in zero["offload_param"]


def test_the_command_line_says_all_that_was_wished() -> None:
    wish = Wish(
        passes=("timing", "trace"), model="small", length=32, steps=7, warmup=2, slow_data=(30.0, 1),
        straggle=(5.0, None), checkpoint_every=3, seed=9, ranks=4, threads=1, env=("A=b c",), timeout=100,
    )  # fmt: skip
    config = training_config(None, accelerator="cpu")
    argv = argv_of(wish, config, "cpu", 2, python="/py", place="/q", probes="/p", nvml="")
    assert json.loads(argv[argv.index("--config") + 1]) == config.values
    rest = [word for word in argv if not word.startswith("{")]
    assert " ".join(rest) == (
        "/py -I /q/launch.py --probes /p --config --passes timing,trace --model small --accelerator cpu --ranks 4 "
        "--steps 7 --warmup 2 --seed 9 --timeout 80 --length 32 --checkpoint-every 3 --threads 1 "
        "--slow-data 30 --slow-rank 1 --straggle 5 --straggler -1 --env A"
    )
    assert values_of(wish) == (("ENVBUILD_VALUES", '{"A": "b c"}'),)
    assert told(argv)[-2:] == ("--env", "A=***") and told(("--env", "B=1")) == ("--env", "B=1")


def lines(*, losses: float = 0.0, ratio: float = 1.0) -> list[dict[str, Any]]:
    """What two ranks print: two passes of three steps, a sample in each."""
    made: list[dict[str, Any]] = [{"kind": "launch", "schema": "envbuild.probe.profile/1"}]
    for rank in (0, 1):
        made.append(
            {"kind": "rank", "rank": rank, "local_rank": rank, "backend": "gloo",
             "cores": {"threads": 1, "asked": None, "cpus": 4, "affinity": [0, 1, 2, 3]},
             "device": {"name": "cpu"},
             "versions": {"torch": "2.13.0+cpu", "deepspeed": "0.19.8"},
             "seconds": {"import": 3.0 + rank, "rendezvous": 1.0, "first_collective": 0.5 * rank}}
        )  # fmt: skip
        for began, name in ((100.0, "timing"), (200.0, "comms"), (300.0, "parity")):
            for number in range(3 if name != "parity" else 0):
                inside = {"communication": 0.25} if name == "comms" else {}
                made.append(
                    {"kind": "step", "pass": name, "rank": rank, "number": number, "at": began + 1 + number,
                     "seconds": 1.0, "parts": {"forward": 0.5, **({"checkpoint": 0.25} if number == 2 else {})},
                     "inside": {**inside, "swap": 0.125}, "cpu": {"optimizer_kernel": 0.5},
                     "disk": {"swap_read": 1 << 20, "swap_write": 0} if number else {},
                     "loss": "nan" if number == 2 else 1.0, "gradient_norm": None}
                )  # fmt: skip
            report: dict[str, Any] = {"kind": "pass", "pass": name, "rank": rank, "started": began + rank}
            if name == "parity":
                report |= {
                    "precision": "fp32", "optimizer_compared": True, "losses": [1.0 + losses],
                    "reference_losses": [1.0], "parameters": {"relative_error": 1e-6},
                    "gradients": {"missing": 0, "zero": 0, "nonfinite": 0, "relative_error": abs(ratio - 1),
                                  "ratio": ratio},
                }  # fmt: skip
            else:
                row = {"op": "all_reduce", "count": 2, "bytes": 800, "message_bytes": 400, "group_size": 2,
                       "seconds": 0.5 if name == "comms" else None}  # fmt: skip
                report |= {
                    "warmup": 1, "steps": 2, "collectives": [row], "config": {"stage": 3}, "ended": began + 20 + rank,
                    "swap": None if name == "timing" else "no handle",
                    "memory": {"host_peak_bytes": 1000 + rank},
                    "structure": {"parameters": 50, "host_tensor_bytes": 600,
                                  "devices": {"parameters": "cpu", "optimizer": None}},
                }  # fmt: skip
            made.append(report)
    for at in (101.5, 201.5):
        made.append(  # noqa: PERF401
            {"kind": "sample", "at": at, "cpu_percent": None if at < 200 else 50.0, "host_memory_bytes": 5,
             "disks": {"vda": None if at < 200 else [1.0, 2.0]}, "networks": {}, "gpus": [],
             "ranks": [{"rank": 0, "process_cpu_percent": 90.0, "process_memory_bytes": 7, "proportional_bytes": 6}]}
        )  # fmt: skip
    return [*made, {"kind": "end", "gpus": "there is no pynvml", "transports": []}]


ABOUT = About(
    accelerator="cpu", hardware=Hardware(cpus=2), probe="p", envbuild="1", model="tiny", tokens=64, micro_batch=2,
    accumulation=2, seed=1, seconds=80.0,
)  # fmt: skip


def test_the_lines_become_a_measurement_that_its_schema_takes() -> None:
    from jsonschema import Draft202012Validator

    text = "stray words\n" + "\n".join(json.dumps(line) for line in lines()) + '\n{"kind": "step", "cut'
    measured = measurement_of(read_lines(text), ABOUT)
    Draft202012Validator(schema.json_schema()).validate(files.document(measured))
    timing, comms, parity = measured.launches
    assert [launch.pass_ for launch in measured.launches] == ["timing", "comms", "parity"]
    assert measured.key.config == config_hash({"stage": 3}) and measured.key.world_size == 2
    assert (timing.samples_per_step, timing.tokens_per_step) == (8, 512)
    steps = timing.ranks[0].steps
    assert steps.at == (1.0, 2.0, 3.0) and steps.parts["checkpoint"] == (0.0, 0.0, 0.25)
    assert [str(loss) for loss in steps.loss] == ["1.0", "1.0", "nan"] and steps.gradient_norm == ()
    # Both ranks together; the clock has no part in it.
    (counted,) = timing.structure.collectives
    assert (counted.count, counted.bytes, timing.structure.host_tensor_bytes) == (4, 1600, 1200)
    assert timing.structure == comms.structure
    assert timing.ranks[0].collectives[0].seconds is None
    # 2 (n - 1) / n of what an all-reduce carries goes over the wires.
    assert comms.ranks[0].collectives[0].bus_bandwidth == pytest.approx(800 / 0.5)
    assert comms.ranks[0].steps.inside["communication"] == (0.25,) * 3
    assert (timing.communication.startup_seconds, timing.communication.import_seconds) == (1.5, 4.0)
    assert [len(launch.samples.at) for launch in measured.launches] == [1, 1, 0]
    assert steps.inside["swap"] == (0.125,) * 3 and steps.cpu["optimizer_kernel"] == (0.5,) * 3
    assert steps.disk == {"swap_read": (None, 1 << 20, 1 << 20), "swap_write": (None, 0, 0)}
    cores = timing.ranks[1].cores
    assert (cores.threads, cores.asked, cores.cpus, cores.sharers) == (1, None, 4, 2)
    assert {each.figure: each.reason for each in comms.unavailable}["inside.swap"] == "no handle"
    # A pass of 21 seconds; the last one does not say when it ended, so nobody knows what is outside.
    assert [(launch.seconds, launch.outside) for launch in measured.launches] == [(21.0, None)] * 2 + [(None, None)]
    ended = [line | {"ended": 320.0} if line.get("pass") == "parity" else line for line in lines()]
    assert {launch.outside for launch in measurement_of(ended, ABOUT).launches} == {80.0 - 21 - 21 - 20}
    assert "cpu_percent" not in {series.kind for series in timing.samples.series}
    absent = {each.figure for each in timing.unavailable}
    assert {"gpu_percent", "moved.h2d", "memory.gpu_peak_bytes", "collectives.seconds", "network_send"} <= absent
    assert "collectives.seconds" not in {each.figure for each in comms.unavailable}
    assert parity.structure.parity[0].passed and measured.notes == ("OpenMP threads of a rank: 1",)
    told = "\n".join(summary(measured))
    assert "1000.0 ms a step (median of 2, slowest of 2 ranks), 512 tokens/s" in told and "plain torch's" in told
    assert "rank 0 waits 125.0 ms a step for the offload's disk: 1.0 MiB read, 0 B written" in told


@pytest.mark.parametrize(("losses", "ratio"), [(2e-5, 1.0), (0.0, 2.0), (0.0, 0.0), (0.0, 1.0001)])
def test_a_wrong_step_does_not_pass(losses: float, ratio: float) -> None:
    (row,) = measurement_of(lines(losses=losses, ratio=ratio), ABOUT).launches[2].structure.parity
    assert not row.passed


def killed(*steps: int) -> Any:
    """Two ranks that had counted so many steps when they were killed; more of them were printed."""
    made = [line for line in lines() if line.get("pass", "timing") == "timing"]
    for count, line in zip(steps, (line for line in made if line["kind"] == "pass"), strict=True):
        line |= {"steps": count, "collectives": [{**line["collectives"][0], "count": 5 * count}]}
    return measurement_of(made, ABOUT)


def test_collectives_are_told_by_the_steps_that_they_were_counted_over() -> None:
    (told,) = traffic(killed(1, 1))
    assert told.sums.count / told.steps == 5
    torn = killed(1, 2)
    (told,) = traffic(torn)
    assert told.sums.count / told.steps == 5, "the rank that got further"
    (launch,) = torn.launches
    assert launch.structure.collectives == ()
    assert "structure.collectives" in {each.figure for each in launch.unavailable}


@pytest.mark.parametrize(("clips", "steps"), [(0.0, 4), (1.0, 1)], ids=["not clipped", "clipped by default"])
def test_the_step_is_held_against_plain_torch_as_far_as_the_engine_does_the_same(clips: float, steps: int) -> None:
    """DeepSpeed clips by default in some releases: the config says nothing, the engine does."""
    figures: dict[str, Any] = {}
    engine, job = MagicMock(), MagicMock()
    engine.gradient_clipping.return_value = clips
    job.open_engine.return_value, job.low.return_value = engine, None
    job.config = {"optimizer": {"type": "Adam", "params": {"lr": 1e-4}}}
    job.micro_batch, job.accumulation, job.world, job.rank = 1, 1, 1, 0
    parity.compare(job, figures)
    assert figures["optimizer_compared"] is not bool(clips) and engine.step.call_count == steps
    compared = [call.args[1] for call in job.common.attempt.call_args_list]
    assert compared == (["gradients"] if clips else ["gradients", "parameters"])
    assert (figures["reference_losses"] is None) is bool(clips)


def test_what_is_missing_does_not_pass() -> None:
    made = lines()
    for line in made:
        line.pop("gradients", None)
    (row,) = measurement_of(made, ABOUT).launches[2].structure.parity
    assert not row.passed and row.gradient_error is None


def test_the_hash_follows_the_programs() -> None:
    assert len(profiler_hash()) == 64 and not profiler_folder().is_relative_to(probes_folder())


def test_secrets_on_a_command_line_are_masked() -> None:
    home = Path.home()
    text = masked(("python", f"{home}/train.py", "--hf-token", "hf_abc", "--api_key=xyz", "a\x1bb"))
    assert "hf_abc" not in text and "xyz" not in text and str(home) not in text and "\x1b" not in text


def test_the_command_line_of_profile_is_refused_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    from envbuild.cli import profiling

    for words, said in [
        (["profile"], "takes an image"),
        (["profile", "cpu", "--pass", "speed"], "--pass: 'speed' is none"),
        (["profile", "cpu", "--model", "huge"], "--model: 'huge' is none"),
        (["profile", "cpu", "--data", "fast:3"], "--data fast:3"),
        (["profile", "cpu", "--straggle", "1@x"], "--straggle 1@x"),
        (["profile", "cpu", "--env", "=3"], "it is not NAME=VALUE"),
        (["profile", "cpu", "train.py"], "without --"),
        (["profile", "--python", "/x", "--", "train.py"], "a command behind -- takes no --python"),
        (["profile", "a", "b", "--", "train.py"], "one image too many"),
        (["profile", "cpu", "--accelerator", "cpu"], "takes no --accelerator"),
    ]:
        monkeypatch.setattr(sys, "argv", ["envbuild", *words])
        import typer

        app = typer.Typer()
        app.callback()(lambda: None)
        profiling.register(app)
        with pytest.raises(EnvbuildError, match=said):
            app(words, standalone_mode=False)
