"""Files of other tools: every form of DeepSpeed's lines, traces in pieces, exports of each schema, hostile input."""

from __future__ import annotations

import gzip
import json
import sqlite3
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from envbuild.errors import InputError
from envbuild.pipeline import measured_ranks
from envbuild.profile import files, readers, summary
from envbuild.profile.bandwidth import bus_bandwidth
from envbuild.profile.bottleneck import diagnose
from envbuild.profile.document import Measurement
from envbuild.profile.readers import intervals

STAMP = "[2024-05-01 12:00:{:02d},{:03d}] [INFO] [logging.py:96:log_dist] "


def log(tmp_path: Path, *lines: str, name: str = "train.log", **options: Any) -> Measurement:
    path = tmp_path / name
    path.write_text("\n".join(lines) + "\n")
    return readers.read([path], **options)


def parts(measured: Measurement, rank: int = 0) -> dict[str, tuple[float | None, ...]]:
    steps = measured.launches[0].ranks[rank].steps
    return {**steps.parts, **steps.inside}


MICRO = "fwd_microstep: 50.00 | bwd_microstep: 99.00 | bwd_inner_microstep: 49.00 | bwd_allreduce_microstep: 50.00"
NEW = "fwd: 100.00 | bwd: 200.00 | bwd_inner: 150.00 | bwd_allreduce: 49.50 | step: 60.00"
OLD = "forward: 100.00 | backward: 200.00 | backward_inner: 150.00 | backward_allreduce: 49.50 | step: 60.00"
FORMS = {
    "0.8": (STAMP.format(1, 0) + "[Rank 0] rank=0 time (ms) | optimizer_step: 40.00",
            STAMP.format(1, 0) + f"[Rank 0] rank=0 time (ms) | {OLD}"),
    "0.12": (STAMP.format(1, 0) + "[Rank 0] time (ms) | optimizer_step: 40.00",
             STAMP.format(1, 0) + f"[Rank 0] time (ms) | {MICRO}", STAMP.format(1, 0) + f"[Rank 0] time (ms) | {NEW}"),
    "0.19": ("[Rank 0] time (ms) | init_optimizer_state: 0.03", "[Rank 0] time (ms) | optimizer_step: 40.00",
             f"[Rank 0] time (ms) | {MICRO}", f"[Rank 0] time (ms) | {NEW}"),
    "launcher": ("worker-3: [Rank 0] time (ms) | optimizer_step: 40.00", f"worker-3: [Rank 0] time (ms) | {NEW}"),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_timer_lines_of_every_version_are_one_step(tmp_path: Path, form: str) -> None:
    found = parts(log(tmp_path, *FORMS[form]))
    assert found == {
        "forward": (0.1,), "backward": (0.15,), "reduction": (0.0495,), "optimizer": (0.06,),
        "optimizer_kernel": (0.04,),
    }  # fmt: skip


def test_steps_losses_memory_and_the_configuration_of_one_log(tmp_path: Path) -> None:
    found = log(
        tmp_path,
        STAMP.format(0, 0) + "[Rank 0] DeepSpeed info: version=0.12.3, git-hash=x, git-branch=y",
        STAMP.format(0, 0) + "[Rank -1]   json = {",
        '    "zero_optimization": {"stage": 3}, ',
        '    "lr": 0.0001',
        "}",
        STAMP.format(1, 0) + f"[Rank 0] time (ms) | {NEW}",
        "step 0 loss: 3.25",
        STAMP.format(1, 500) + f"[Rank 0] time (ms) | {NEW}",
        "{'loss': '3.1', 'grad_norm': '1.5', 'learning_rate': 1e-5}",
        STAMP.format(2, 250) + f"[Rank 0] time (ms) | {NEW}",
        "loss: nan",
        "epoch=0/micro_step=4/global_step=3, RunningAvgSamplesPerSec=1.5, CurrSamplesPerSec=1.6, MemAllocated=1.0GB, "
        "MaxMemAllocated=2.0GB",
        "node7:12:34 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0",
        "NCCL version 2.18.3+cuda12.1",
    )
    launch = found.launches[0]
    steps = launch.ranks[0].steps
    assert steps.seconds == (None, 0.5, 0.75) and steps.number == (0, 1, 2)
    assert steps.loss[:2] == (3.25, 3.1) and str(steps.loss[2]) == "nan" and steps.gradient_norm == (None, 1.5, None)
    assert launch.ranks[0].memory.gpu_peak_bytes == 2 * 2**30
    assert found.config == {"zero_optimization": {"stage": 3}, "lr": 0.0001}
    assert found.key.deepspeed == "0.12.3" and found.key.nccl == "2.18.3"
    assert launch.communication.transports == ("NET/IB",)
    missing = {each.figure for each in launch.unavailable}
    assert {"data_wait", "gpu_percent", "collectives"} <= missing and "seconds" not in missing
    files.measurement(files.document(found), "again")


def test_a_second_start_is_a_second_launch_and_ranks_are_apart(tmp_path: Path) -> None:
    start = "[Rank 0] DeepSpeed info: version=0.12.3, git-hash=x, git-branch=y"
    rows = [f"[Rank {rank}] time (ms) | {NEW}" for rank in (0, 3, 0, 3)]
    found = log(tmp_path, start, start, *rows, start, rows[0])
    assert [[(rank.rank, len(rank.steps.number)) for rank in each.ranks] for each in found.launches] == [
        [(0, 2), (3, 2)], [(0, 1)],
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("steps: 10 loss: 2.3456 iter time (s): 0.250 samples/sec: 12.0", (10, 0.25, 2.3456)),
        (" iteration       10/     100 | consumed samples: 40 | elapsed time per iteration (ms): 250.0 | "
         "learning rate: 1.0E-04 | lm loss: 2.300000E+00 | grad norm: 1.200 |", (10, 0.25, 2.3)),
        ("{'loss': 2.3, 'grad_norm': 1.2, 'learning_rate': 1e-05, 'epoch': 0.1}", (0, None, 2.3)),
        ("step=10 loss=2.3", (10, None, 2.3)),
    ],
)  # fmt: skip
def test_programs_that_print_no_timers(tmp_path: Path, line: str, expected: tuple[Any, ...]) -> None:
    steps = log(tmp_path, line).launches[0].ranks[0].steps
    assert (steps.number[0], steps.seconds[0] if steps.seconds else None, steps.loss[0]) == expected


HEAD = f"{'Comm. Op': <20}{'Message Size': <20}{'Count': <20}{'Total Latency(ms)': <20}{'Avg Latency(ms)': <20}" \
       f"{'tput_avg (Gbps)': <20}{'busbw_avg (Gbps)': <20}"  # fmt: skip


def row(size: str, count: int, total: float, bus: float | str) -> str:
    return f"{' ': <20}{size: <20}{count: <20}{total: <20.2f}{total / count: <20.2f}{0.5: <20.2f}{bus: <20}"


TABLE = (HEAD, "all_gather_into_tensor", row("1.0 KB", 4, 2.0, 0.25), "reduce_scatter_tensor | [Caller Func: step]",
         row("2.5 MB", 2, 1.0, "80.00"), "barrier", row("0B", 3, 6.28, "inf"),
         "_______________________________", "Breakdown with straggler effect", "-------------------------------",
         HEAD.replace("Total Latency(ms)", "Total comm lat(ms)"), "all_reduce", row("1.0 KB", 9, 9.0, 9.0))  # fmt: skip


def test_a_table_of_an_older_version_is_trusted_and_its_reduce_scatter_is_not(tmp_path: Path) -> None:
    found = log(tmp_path, *TABLE, deepspeed="0.18.2").launches[0]
    rows = {each.op: each for each in found.ranks[0].collectives}
    gather, scatter = rows["all_gather_into_tensor"], rows["reduce_scatter_tensor"]
    assert (gather.count, gather.seconds, gather.time) == (4, 0.002, "measured")
    assert gather.bytes is None, "a rank's share of it, of nobody knows how many ranks"
    assert "number of ranks" in next(
        each.reason for each in found.unavailable if each.figure == "collectives.all_gather_into_tensor.bytes"
    )
    assert (gather.bus_bandwidth, gather.bandwidth) == (0.25e9 / 8, "reported")
    assert scatter.count == 2 and scatter.bytes == 2 * 2621440 and scatter.bus_bandwidth is None
    assert "all_reduce" not in rows, "the table of stragglers holds other figures"
    world = log(tmp_path, "world_size ................... 8", *TABLE, deepspeed="0.18.2").launches[0]
    rows = {each.op: each for each in world.ranks[0].collectives}
    gather, scatter = rows["all_gather_into_tensor"], rows["reduce_scatter_tensor"]
    assert (gather.bytes, gather.message_bytes) == (4 * 8 * 1024, 8 * 1024)
    assert gather.bus_bandwidth == pytest.approx(4 * 1024 * 7 / 0.002)
    assert rows["barrier"].bytes == 0 and scatter.bytes == 2 * 2621440
    assert scatter.bus_bandwidth == pytest.approx(2 * 2621440 * 7 / 8 / 0.001) and scatter.bandwidth == "computed"


@pytest.mark.parametrize("version", [None, "0.18.3", "0.19.8"])
def test_a_table_of_cumulative_latencies_keeps_counts_and_no_times(tmp_path: Path, version: str | None) -> None:
    found = log(tmp_path, *TABLE, deepspeed=version).launches[0]
    assert all(each.seconds is None and each.bus_bandwidth is None for each in found.ranks[0].collectives)
    assert [each.count for each in found.ranks[0].collectives] == [4, 3, 2]
    assert any("cumulative" in each.reason for each in found.unavailable)


def verbose(times: list[float], size: str = "1.0 MB", op: str = "all_gather_into_tensor") -> list[str]:
    return [
        STAMP.format(1, 0) + f"[Rank 0] comm op: {op} | time (ms): {time:.2f} | msg size: {size} | "
        "algbw (Gbps): 0.00 | busbw (Gbps): 0.00"
        for time in times
    ]  # fmt: skip


def test_single_operations_give_the_true_latencies_back(tmp_path: Path) -> None:
    true = [5.0, 1.0, 1.5, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]
    running = [sum(true[: place + 1]) for place in range(len(true))]
    one, other = verbose(running[:2]) + verbose(running[3:]), verbose([running[2]], "2.0 MB")
    lines = ["world size: 2", *one[:2], *other, *one[2:]]
    for version in ("0.19.8", None):
        rows = {
            each.message_bytes: each
            for each in log(tmp_path, *lines, deepspeed=version).launches[0].ranks[0].collectives
        }
        assert rows[2**21].seconds == pytest.approx(0.012) and rows[2**21].time == "corrected"
        assert rows[2**22].seconds == pytest.approx(0.0015)
    before = log(tmp_path, *verbose(true), deepspeed="0.16.9").launches[0].ranks[0].collectives[0]
    assert before.seconds == pytest.approx(sum(true) / 1e3) and before.time == "measured"
    few = log(tmp_path, *verbose([1.0, 2.0])).launches[0]
    assert few.ranks[0].collectives[0].seconds is None and "too few" in few.unavailable[0].reason


@pytest.mark.parametrize("version", ["0.19.8", None])
def test_with_debug_each_caller_has_a_timer_of_its_own(tmp_path: Path, version: str | None) -> None:
    lines = []
    for number in range(1, 11):
        for size, caller, each in (("4.0 MB", "gather", 1.0), ("8.0 MB", "all_gather_coalesced", 100.0)):
            op = f"all_gather_into_tensor | [Caller Func: {caller}]"
            lines += verbose([number * each], size, op)
    found = log(tmp_path, *lines, deepspeed=version).launches[0].ranks[0].collectives
    assert [(row.op, row.count, row.time) for row in found] == [("all_gather_into_tensor", 10, "corrected")] * 2
    assert [row.seconds for row in found] == [pytest.approx(0.01), pytest.approx(1.0)]


def test_the_oldest_form_of_an_operation(tmp_path: Path) -> None:
    line = (
        "rank=1 | comm op: all_reduce | time (ms): 1.50 | msg size: 4.0 KB | algbw (Gbps): 1.00  | busbw (Gbps): 1.00 "
    )
    found = log(tmp_path, line, deepspeed="0.9.5").launches[0].ranks[0]
    assert (found.rank, found.collectives[0].seconds, found.collectives[0].bytes) == (1, 0.0015, 4096)


def test_the_document_of_log_summary(tmp_path: Path) -> None:
    body = {
        "summary": {"all_reduce": {"1000": {"count": 3, "total_latency_ms": 6.0, "busbw_avg_gbps": float("inf")}}},
        "straggler_analysis": None, "metadata": {"world_size": 4, "rank": 2, "timestamp": "x"},
    }  # fmt: skip
    path = tmp_path / "comms.json"
    path.write_text(json.dumps(body))
    found = readers.read([path], deepspeed="0.17.6")
    rank = found.launches[0].ranks[0]
    assert found.origin.kind == "comms-log" and rank.rank == 2 and rank.collectives[0].bytes == 3000
    assert rank.collectives[0].bus_bandwidth == pytest.approx(3000 / 0.006 * 1.5)
    path.write_text('{"summary": {"all_reduce": {"x": {"total_latency_ms": 1}}}}')
    with pytest.raises(InputError, match="not what log_summary"):
        readers.read([path])


def test_bus_bandwidth_is_that_of_ncclss_tests() -> None:
    assert bus_bandwidth("all_gather_into_tensor", 80, 1, 8) == bus_bandwidth("all_to_all_single", 80, 1, 8) == 70
    assert bus_bandwidth("reduce_scatter_tensor", 80, 1, 8) == 70
    assert bus_bandwidth("all_reduce", 40, 1, 8) == 70
    assert bus_bandwidth("all_reduce", 40, 0, 8) is None and bus_bandwidth("barrier", 0, 1, 8) is None


def event(name: str, category: str, begin: float, length: float, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "name": name, "cat": category, "pid": 1, "tid": 1, "ts": begin, "dur": length, "args": args}


GPU = [
    event("ProfilerStep#7", "user_annotation", 1000, 100), event("ProfilerStep#8", "user_annotation", 1100, 100),
    event("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", "user_annotation", 1000, 20),
    event("Optimizer.step#Adam.step", "user_annotation", 1090, 10),
    event("sm80_gemm", "kernel", 1020, 40), event("sm80_gemm", "kernel", 1030, 40),
    event("ncclDevKernel_AllGather_RING_LL(ncclDevComm*)", "kernel", 1060, 30, **{
        "Collective name": "_allgather_base", "In msg nelems": 1000, "dtype": "BFloat16", "Group size": 4,
    }),
    event("ncclKernel_ReduceScatter_RING_LL_Sum_half", "kernel", 1150, 10),
    event("Memcpy HtoD (Pinned -> Device)", "gpu_memcpy", 1095, 10, bytes=4096),
    {"ph": "i", "name": "[memory]", "cat": "cpu_instant_event", "ts": 1,
     "args": {"Device Type": 1, "Total Allocated": 77}},
    {"ph": "X", "name": "broken", "cat": "kernel", "ts": "x", "dur": None}, {"ph": "X"},
]  # fmt: skip


def chrome(path: Path, events: list[Any], **head: Any) -> Path:
    text = json.dumps({"schemaVersion": 1, "distributedInfo": {"backend": "nccl", "rank": 3, "world_size": 4}, **head,
                       "traceEvents": events, "traceName": "t"}, indent=1)  # fmt: skip
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_a_trace_is_cut_into_steps(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Every value is cut by the end of a piece somewhere.
    monkeypatch.setattr("envbuild.profile.readers.opened._PIECE", 37)
    found = readers.read([chrome(tmp_path / name, GPU, deviceProperties=[{"name": "NVIDIA A100"}])])
    rank = found.launches[0].ranks[0]
    assert rank.rank == 3 and found.key.world_size == 4 and found.key.hardware.gpus == ("NVIDIA A100",)
    assert rank.steps.number == (7, 8) and rank.steps.seconds == pytest.approx((100e-6, 100e-6))
    figures = {name: tuple(round((each or 0) * 1e6) for each in column) for name, column in parts(found).items()}
    assert figures == {
        "data_wait": (20, 0), "compute": (50, 0), "communication": (30, 10), "exposed_communication": (20, 10),
        "h2d": (5, 5), "d2h": (0, 0), "optimizer_kernel": (10, 0),
    }  # fmt: skip
    assert rank.steps.moved == {"h2d": (4096, 0), "d2h": (0, 0)} and rank.memory.gpu_peak_bytes == 77
    gather, scatter = rank.collectives
    assert (gather.op, gather.bytes, gather.group_size) == ("all_gather_into_tensor", 8000, 4)
    assert gather.bus_bandwidth == pytest.approx(2000 * 3 / 30e-6)
    assert (scatter.op, scatter.bytes, scatter.bus_bandwidth) == ("reduce_scatter", None, None)


def test_the_probe_a_log_and_a_trace_mean_the_same_bytes_and_can_be_compared(tmp_path: Path) -> None:
    mine, shares = 2**20, 8
    row_ = {"op": "all_gather_into_tensor", "count": 10, "message_bytes": shares * mine, "bytes": 10 * shares * mine,
            "group_size": shares, "seconds": 0.010}  # fmt: skip
    probe = measured_ranks.rank_of({"rank": 0, "collectives": [row_]}, {}, [], [], 0.0, "cuda").collectives[0]
    before = log(tmp_path, f"world size: {shares}", *verbose([1.0] * 10), deepspeed="0.17.6")
    old = verbose([1.0] * 10, op="all_gather_base")
    args = {"Collective name": "_allgather_base", "In msg nelems": mine // 2, "dtype": "BFloat16", "Group size": shares}
    events = [event("ncclDevKernel_AllGather_RING_LL", "kernel", 10 * at, 1000, **args) for at in range(10)]
    others = [
        each.launches[0].ranks[0].collectives[0]
        for each in (before, log(tmp_path, f"world size: {shares}", *old, deepspeed="0.9.5", name="old.log"),
                     readers.read([chrome(tmp_path / "t.json", events)]))
    ]  # fmt: skip
    for each in others:
        assert (each.op, each.count, each.bytes, each.message_bytes) == (probe.op, 10, 80 * mine, 8 * mine)
        assert each.bus_bandwidth == pytest.approx(probe.bus_bandwidth) == pytest.approx(7 * mine / 0.001)
    slow = probe.model_copy(update={"seconds": 0.020, "bus_bandwidth": (probe.bus_bandwidth or 0) / 2})
    rank = before.launches[0].ranks[0].model_copy(update={"collectives": (slow,)})
    launch = before.launches[0].model_copy(update={"ranks": (rank,)})
    found = diagnose(before.model_copy(update={"launches": (launch,)}), before).found
    assert [one.evidence[0].partition(";")[0] for one in found if one.rule == "communication"] == [
        "all_gather_into_tensor takes 2.0 ms each, in the baseline 1.0 ms"
    ]


def test_a_size_that_deepspeed_does_not_log_is_not_0(tmp_path: Path) -> None:
    found = log(tmp_path, "world size: 8", *verbose([1.0] * 10, "0B", "all_gather_coalesced"), deepspeed="0.17.6")
    (gathered,) = found.launches[0].ranks[0].collectives
    assert (gathered.count, gathered.bytes, gathered.message_bytes, gathered.bus_bandwidth) == (10, None, None, None)
    assert any("logs no size" in each.reason for each in found.launches[0].unavailable)


def test_a_trace_of_a_cpu_has_no_figures_of_a_gpu(tmp_path: Path) -> None:
    events = [GPU[0], event("gloo:all_reduce", "user_annotation", 1010, 30)]
    found = readers.read([chrome(tmp_path / "t.json", events)])
    assert {name: len(column) for name, column in parts(found).items()} == {"communication": 1}
    assert {"compute", "h2d", "gpu_peak_bytes"} <= {each.figure for each in found.launches[0].unavailable}
    assert not found.launches[0].ranks[0].steps.moved


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"schemaVersion": 1, "traceEvents": [{"name": "x", ', "cut off"),
        ('{"schemaVersion": 1, "traceEvents": [{"a": 1} {"b": 2}]}', "',' is missing"),
        ('{"schemaVersion": 1, "traceEvents": [{a: 1}]}', "not a trace of torch: at character"),
        ('{"schemaVersion": 1, "traceEvents": []}', "without events"),
        ('{"schemaVersion": 1, "x": ' + "[" * 100_000, "nested too deeply"),
        ('[{"ph": "X"', "cut off"),
    ],
)
def test_a_broken_trace_is_told_with_its_place(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "t.json"
    path.write_text(text)
    with pytest.raises(InputError) as refused:
        readers.read([path])
    assert said in refused.value.message, refused.value.message


def test_a_cut_or_broken_archive(tmp_path: Path) -> None:
    path = chrome(tmp_path / "t.json.gz", GPU * 50)
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(InputError, match="broken or cut off"):
        readers.read([path])


def test_a_large_trace_needs_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    with path.open("w") as file:
        file.write('{"schemaVersion": 1, "traceEvents": [' + json.dumps(GPU[0]))
        noise = json.dumps(event("aten::mm", "cpu_op", 1, 1, text="x" * 2000))
        for _ in range(20_000):
            file.write(f",\n{noise}")
        file.write("]}")
    assert path.stat().st_size > 40e6
    tracemalloc.start()
    readers.read([path])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 25e6, f"{peak / 1e6:.0f} MB for a file of 40"


def export(path: Path, *, newer: bool = True, ranges: tuple[str, ...] = ("step 0", "step 1")) -> Path:
    """As the schema's reference has it; older exports have names in the rows, newer ones in StringIds."""
    database = sqlite3.connect(path)
    name, text = ("shortName INT, demangledName INT", "text TEXT, textId INT") if newer else ("name TEXT", "text TEXT")
    database.executescript(
        "CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT);"
        f"CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INT, end INT, deviceId INT, streamId INT, {name});"
        "CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INT, end INT, deviceId INT, bytes INT, copyKind INT);"
        f"CREATE TABLE NVTX_EVENTS (start INT, end INT, {text});"
        "CREATE TABLE META_DATA_EXPORT (name TEXT, value TEXT);"
        "INSERT INTO META_DATA_EXPORT VALUES ('EXPORT_SCHEMA_VERSION', '3.1.7');"
        "CREATE TABLE TARGET_INFO_GPU (id INT, name TEXT); INSERT INTO TARGET_INFO_GPU VALUES (0, 'NVIDIA A100');"
        "INSERT INTO StringIds VALUES (1, 'gemm'), (2, 'ncclDevKernel_AllReduce_Sum_f16_RING_LL');"
    )
    ms = 1_000_000
    for place, word in enumerate(ranges):
        start = place * 100 * ms
        database.execute("INSERT INTO StringIds VALUES (?, ?)", (10 + place, word))
        values = (start, start + 90 * ms, None, 10 + place) if newer else (start, start + 90 * ms, word)
        database.execute(f"INSERT INTO NVTX_EVENTS VALUES ({', '.join('?' * len(values))})", values)
        for begin, end, string in ((10, 50, 1), (40, 80, 2)):
            tail = (string, string) if newer else ("gemm" if string == 1 else "nccl",)
            row_ = (start + begin * ms, start + end * ms, 0, 7, *tail)
            database.execute(f"INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES ({', '.join('?' * len(row_))})", row_)
        database.execute("INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (?, ?, 0, 512, 2)", (start, start + 5 * ms))
        database.execute("INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (?, ?, 0, 512, 8)", (start, start + 5 * ms))
    database.execute("INSERT INTO NVTX_EVENTS (start, end, text) VALUES (5, NULL, 'a marker')")
    database.commit()
    database.close()
    return path


def test_an_export_of_nsys_is_cut_into_steps(tmp_path: Path) -> None:
    path = export(tmp_path / "out.sqlite")
    before = sorted(tmp_path.iterdir())
    found = readers.read([path])
    assert parts(found) == {
        "compute": pytest.approx((0.04, 0.04)), "communication": pytest.approx((0.04, 0.04)),
        "exposed_communication": pytest.approx((0.03, 0.03)), "d2h": pytest.approx((0.005, 0.005)), "h2d": (0.0, 0.0),
    }  # fmt: skip
    rank = found.launches[0].ranks[0]
    assert (
        rank.steps.moved["d2h"] == (512, 512)
        and rank.collectives[0].op == "all_reduce"
        and rank.collectives[0].count == 2
    )
    assert found.key.hardware.gpus == ("NVIDIA A100",) and "3.1.7" in found.notes[0]
    assert sorted(tmp_path.iterdir()) == before, "nothing is made beside somebody's file"


def test_older_exports_and_ranges_of_deepspeed_itself(tmp_path: Path) -> None:
    assert len(parts(readers.read([export(tmp_path / "old.sqlite", newer=False)]))["compute"]) == 2
    words = ("DeepSpeedEngine.forward", "DeepSpeedEngine.step", "DeepSpeedEngine.step", "DeepSpeedEngine.step")
    steps = readers.read([export(tmp_path / "own.sqlite", ranges=words)]).launches[0].ranks[0].steps
    assert steps.seconds == pytest.approx((0.1, 0.1))
    bare = readers.read([export(tmp_path / "bare.sqlite", ranges=("forward",))]).launches[0]
    assert not bare.ranks[0].steps.number and any("NVTX" in each.reason for each in bare.unavailable)


def on_processes(path: Path, *, told: bool = True, both: bool = True) -> Path:
    """Two processes of a node in one report; the second one's steps take twice as long."""
    database = sqlite3.connect(path)
    database.executescript(
        "CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT); INSERT INTO StringIds VALUES (1, 'gemm');"
        "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INT, end INT, deviceId INT, shortName INT, globalPid INT);"
        "CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INT, end INT, deviceId INT, bytes INT, copyKind INT, "
        "globalPid INT);"
        "CREATE TABLE NVTX_EVENTS (start INT, end INT, text TEXT, globalTid INT);"
    )
    for rank in range(2 if both else 1):
        pid, step = (1 << 48) + ((700 + rank) << 24), 100_000_000 * (rank + 1)
        for number in range(4):
            end = (number + 1) * step
            database.execute(
                "INSERT INTO NVTX_EVENTS VALUES (?, ?, 'DeepSpeedEngine.step', ?)", (end - 10, end, pid + 7)
            )
            database.execute("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, 0, 1, ?)",
                             (end - step // 2, end, pid if told else None))  # fmt: skip
    database.commit()
    database.close()
    return path


def test_the_processes_of_one_report_are_ranks_with_steps_of_their_own(tmp_path: Path) -> None:
    (launch,) = readers.read([on_processes(tmp_path / "node.sqlite")]).launches
    assert [(rank.rank, rank.device) for rank in launch.ranks] == [(0, "cuda:0"), (1, "cuda:0")]
    for rank, second in zip(launch.ranks, (0.1, 0.2), strict=True):
        assert rank.steps.seconds == pytest.approx([second] * 3)
        assert rank.steps.inside["compute"] == pytest.approx([second / 2] * 3)
    unknown = readers.read([on_processes(tmp_path / "unknown.sqlite", told=False)])
    assert not any(rank.steps.number for rank in unknown.launches[0].ranks) and unknown.key.world_size is None
    assert any("does not tell which steps" in each.reason for each in unknown.launches[0].unavailable)
    one = readers.read([on_processes(tmp_path / "one.sqlite", told=False, both=False)]).launches[0]
    assert one.ranks[0].steps.seconds == pytest.approx([0.1] * 3)


def test_other_and_broken_databases(tmp_path: Path) -> None:
    other = tmp_path / "other.sqlite"
    database = sqlite3.connect(other)
    database.execute("CREATE TABLE t (x)")
    database.commit()
    database.close()
    with pytest.raises(InputError, match="no export of nsys"):
        readers.read([other])
    whole = export(tmp_path / "whole.sqlite").read_bytes()
    cut = tmp_path / "cut.sqlite"
    cut.write_bytes(whole[:5000])
    with pytest.raises(InputError, match="cannot be read as an export"):
        readers.read([cut])


def test_a_file_that_tells_nothing_or_is_something_else(tmp_path: Path) -> None:
    for text in ("", "hello\n" * 100, "\x00\xff" * 5000, "x" * 3_000_000):
        (tmp_path / "a.log").write_text(text)
        with pytest.raises(InputError, match="no timers, losses or collectives") as refused:
            readers.read([tmp_path / "a.log"])
        assert "wall_clock_breakdown" in refused.value.hint
    with pytest.raises(InputError):
        readers.read([tmp_path])
    with pytest.raises(InputError, match="is no version"):
        log(tmp_path, "x", deepspeed="new")
    (tmp_path / "m.json").write_text('{"schema": "envbuild.profile/1"}')
    with pytest.raises(InputError, match="a measurement already"):
        readers.read([tmp_path / "m.json"])
    with pytest.raises(InputError, match="several kinds"):
        readers.read([tmp_path / "m.json", tmp_path / "a.log"])


def test_huge_numbers_and_ranks_in_a_log_do_no_harm(tmp_path: Path) -> None:
    huge = "9" * 6000
    found = log(
        tmp_path, f"[Rank {huge[:12]}] time (ms) | {NEW}", f"[Rank 0] time (ms) | fwd: {huge}.00",
        HEAD, "all_reduce", f"{' ': <20}9999999999.0 EB   1   1.00   1.00   1.00   1.00", f"step {huge} loss: 1.0",
        f"world_size = {huge}",
    )  # fmt: skip
    files.measurement(files.document(found), "again")


def test_stretches_of_time() -> None:
    stretches = intervals.Stretches()
    for begin, end in ((5, 6), (1, 3), (2, 4), (4, 4.5), (9, 9)):
        stretches.add(begin, end)
    assert stretches.united() == [(1, 4.5), (5, 6)]
    assert intervals.within([(1, 4.5), (5, 6)], [(0, 2), (2, 5.5), (7, 8)]) == [1, 3.0, 0]
    assert intervals.without([(0, 10)], [(1, 2), (3, 4), (9, 12)]) == [(0, 1), (2, 3), (4, 9)]


def test_what_is_read_is_told_in_words(tmp_path: Path) -> None:
    words = "\n".join(readers.summary(log(tmp_path, *FORMS["0.12"], *TABLE, deepspeed="0.18.2")))
    assert (
        "forward: 100 ms" in words
        and "4 x all_gather_into_tensor" in words
        and "data_wait" in words
        and "e+" not in words
    )
    assert summary.traffic(log(tmp_path, *TABLE))[0].sums.seconds is None


def test_a_view_without_an_end_is_not_read(tmp_path: Path) -> None:
    path = export(tmp_path / "view.sqlite")
    database = sqlite3.connect(path)
    database.execute("DROP TABLE NVTX_EVENTS")
    database.execute(
        "CREATE VIEW NVTX_EVENTS AS WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) "
        "SELECT x AS start, x AS 'end', 'step ' || x AS text FROM n"
    )
    database.commit()
    database.close()
    assert not readers.read([path]).launches[0].ranks[0].steps.number


@pytest.mark.parametrize(
    "line",
    [
        "steps: 5 loss: 1.0 iter time (s): 1.2.3", "steps: 5 loss: 1.0 iter time (s): .",
        " iteration 5/ 10 | elapsed time per iteration (ms): 1.2.3 | lm loss: 1.0 |",
        "loss: 1.0 CurrSamplesPerSec=1.0, MemAllocated=1.2GB, MaxMemAllocated=1.2.3GB",
        "MA 1.2.3 GB         Max_MA 1.2.3 GB         CA 1 GB",
    ],
)  # fmt: skip
def test_what_looks_like_a_number_and_is_none_is_not_read(tmp_path: Path, line: str) -> None:
    (rank,) = log(tmp_path, "step=4 loss=2.0", line).launches[0].ranks
    assert not any(rank.steps.seconds) and rank.memory.gpu_peak_bytes is None


def test_what_no_program_would_write_is_an_error_of_the_user(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    path.write_text('{"summary": {"\\u001b[31mop": {"1": {"count": -1, "total_latency_ms": 1}}}, "metadata": {}}')
    with pytest.raises(InputError, match="holds what no measurement can"):
        readers.read([path])
    whole = export(tmp_path / "names.sqlite")
    whole.write_bytes(whole.read_bytes().replace(b"StringIds (id", b"Strin\xff\xfe\xfd\xfc (id"))
    with pytest.raises(InputError, match="cannot be read as an export"):
        readers.read([whole])
