"""What is wrong with a training, from series: every detector on healthy ones and on sick ones."""

from __future__ import annotations

import math
import os
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from envbuild.beacon.hook import Moves
from envbuild.matrix import load
from envbuild.pipeline.watched_image import watched_spec
from envbuild.project import find
from envbuild.watching import metrics, proc
from envbuild.watching.deaths import Deaths
from envbuild.watching.hangs import Hangs, Patience
from envbuild.watching.learning import SAME, Learning, Printed
from envbuild.watching.lines import Words
from envbuild.watching.standstill import judge
from envbuild.watching.trends import Disks, Memories, slope
from envbuild.watching.types import Alert, Call, Memory, RankSeen, Tick

GIB = 1 << 30
INTERVAL = 5.0


def ranks(step: int, cpu: float, *, count: int = 4, calls: int | None = None) -> tuple[RankSeen, ...]:
    """Ranks that work alike."""
    begun = {} if calls is None else {"0": Call(number=calls, name="nccl:all_gather")}
    return tuple(
        RankSeen(rank=rank, pid=100 + rank, state="S", cpu=cpu, step=step, calls=begun) for rank in range(count)
    )


def ran(hangs: Hangs, ticks: Iterator[Tick]) -> list[Alert]:
    return [alert for tick in ticks for alert in hangs.see(tick)]


def healthy(seconds: float, *, step: float, seed: int = 1, printed: int = 1) -> Iterator[Tick]:
    """A training whose steps vary by a factor of three, with a checkpoint a hundred steps, seen through its log alone:
    the first step takes ten minutes, and every ``printed`` steps are told of."""
    noise, at, done, ends, ticks = random.Random(seed), 0.0, 0, 600.0, 0
    while at < seconds:
        at += INTERVAL * noise.uniform(1.0, 1.3)
        ticks += 1
        while ends < at:
            done += 1
            ends += step * noise.uniform(0.6, 1.8) + (20 * step if done % 100 == 0 else 0.0)
        told = done // printed
        yield Tick(at=at, steps=told, number=told * printed or None, ranks=ranks_without_steps(at),
                   quiet=done % 100 == 0 and done > 0)  # fmt: skip


def ranks_without_steps(at: float) -> tuple[RankSeen, ...]:
    return tuple(RankSeen(rank=rank, pid=100 + rank, state="R", cpu=at * 0.9) for rank in range(4))


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(("step", "printed"), [(0.3, 1), (0.3, 100), (8.0, 1), (8.0, 10), (90.0, 1)])
def test_an_hour_of_a_slow_but_healthy_training_gives_no_alarm(step: float, printed: int, seed: int) -> None:
    assert ran(Hangs(), healthy(4200, step=step, seed=seed, printed=printed)) == []


def stalled(after: int, *, state: str = "S", calls: int = 0, exit_code: int | None = None) -> Iterator[Tick]:
    """Ten steps a tick; then rank 2 does something else, and the others wait for it in a collective."""
    for number in range(60):
        step = 10 * min(number, after)
        seen = list(ranks(step, number * 4.0, calls=step * 7))
        if number > after:
            others = Call(number=step * 7 + calls, name="nccl:all_gather")
            seen = [replace(rank, calls={"0": others}, cpu=number * 5.0) for rank in seen]
            seen[2] = replace(ranks(step, after * 4.0, calls=step * 7)[2], state=state, exit_code=exit_code)
        yield Tick(at=number * INTERVAL, ranks=tuple(seen))


@pytest.mark.parametrize(
    ("state", "calls", "code", "said"),
    [
        ("T", 0, None, "rank 2 is stopped"),
        ("", 0, -9, "rank 2 is gone"),
        ("S", 1, None, "collective 1401, nccl:all_gather, which it has not begun"),
    ],
)
def test_a_hang_is_seen_within_three_intervals_and_the_right_rank_is_named(
    state: str, calls: int, code: int | None, said: str
) -> None:
    hangs = Hangs()
    found = ran(hangs, stalled(20, state=state, calls=calls, exit_code=code))
    assert [(alert.kind, alert.rank, alert.severity) for alert in found] == [("hang", 2, "error")]
    # The last progress was seen in tick 20, or, where the others still began a collective, in tick 21.
    assert said in found[0].message and found[0].at <= (20 + bool(calls) + 3) * INTERVAL


def test_a_rank_that_computes_while_others_wait_is_slow_until_the_pause_is_over() -> None:
    hangs = Hangs(Patience(pause=100))
    ticks = list(stalled(20, calls=1))
    slow = [
        replace(tick, ranks=tuple(replace(rank, cpu=tick.at) if rank.rank == 2 else rank for rank in tick.ranks))
        for tick in ticks
    ]
    found = ran(hangs, iter(slow))
    assert [(alert.kind, alert.severity, alert.rank) for alert in found] == [
        ("slow", "warning", 2), ("hang", "error", 2),
    ]  # fmt: skip
    assert found[1].at >= 20 * INTERVAL + 100


def test_a_rank_that_uploads_while_others_wait_is_slow_and_no_hang() -> None:
    hangs, found = Hangs(), []
    for tick in stalled(20, calls=1):
        if hangs.standing:
            hangs.where = {2: "away"}
        found += hangs.see(tick)
    assert [(alert.kind, alert.rank) for alert in found] == [("slow", 2)]


def at_work(number: int, what: str, until: int) -> dict[str, object]:
    """What rank 2 is seen to do in a tick while the others wait, to the tick ``until``."""
    last = min(number, until)
    return {
        "python": {"went": last * INTERVAL - 1.0, "place": "evaluate (train.py:80)"},
        "bytes": {"moved": last * 100 << 20},
        "children": {"children": last * 4.0},
        "sleep": {"went": 20 * INTERVAL + 1.0, "place": "evaluate (train.py:80)"},
        "a few bytes": {"moved": number * 100_000, "children": number * 0.1},
    }[what]


def seen_at_work(what: str, until: int = 999) -> Iterator[Tick]:
    for number, tick in enumerate(stalled(20, calls=1)):
        more = at_work(number, what, until) if number > 20 else {}
        yield replace(tick, ranks=tuple(replace(rank, **more) if rank.rank == 2 else rank for rank in tick.ranks))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("python", "rank 2 is busy in code of its own, in evaluate (train.py:80), while the others wait for it"),
        ("bytes", "rank 2 reads or writes while the others wait for it"),
        ("children", "rank 2 waits for child processes that compute while the others wait for it"),
    ],
)
def test_a_rank_that_gets_on_with_something_while_others_wait_is_busy_and_no_hang(what: str, said: str) -> None:
    found = ran(Hangs(), seen_at_work(what))
    assert [(alert.kind, alert.severity, alert.rank) for alert in found] == [("busy", "info", 2)]
    assert found[0].message.startswith(said) and "which it has not begun" in found[0].message
    # That is believed for as long as --pause says.
    assert [alert.kind for alert in ran(Hangs(Patience(pause=100)), seen_at_work(what))] == ["busy", "hang"]


@pytest.mark.parametrize("what", ["sleep", "a few bytes"])
def test_a_rank_that_sleeps_in_its_own_code_hangs_within_three_intervals(what: str) -> None:
    found = ran(Hangs(), seen_at_work(what))
    assert [(alert.kind, alert.rank) for alert in found] == [("hang", 2)] and found[0].at <= 24 * INTERVAL


def test_a_busy_rank_that_falls_asleep_hangs_three_intervals_later() -> None:
    found = ran(Hangs(), seen_at_work("python", until=40))
    assert [(alert.kind, alert.rank) for alert in found] == [("busy", 2), ("hang", 2)]
    assert found[1].at <= 43 * INTERVAL


def test_without_a_beacon_two_stacks_that_differ_tell_that_a_rank_is_busy() -> None:
    for elsewhere, kinds in ((frozenset({2}), ["busy"]), (frozenset[int](), ["hang"])):
        hangs, found, looks = Hangs(), [], 0
        for tick in stalled(20, calls=1):
            looks = looks + 1 if hangs.standing else 0
            hangs.where = {2: "own"} if looks else {}
            hangs.stirred = elsewhere if looks > 1 else frozenset()
            found += hangs.see(tick)
        assert [alert.kind for alert in found] == kinds
        # Two looks come before anything is said.
        assert found[0].at <= 24 * INTERVAL


def test_a_recorder_that_is_read_when_nothing_moves_is_no_progress() -> None:
    """With NCCL collectives are known only while somebody asks."""
    hangs, found = Hangs(), []
    for tick in stalled(20, calls=1):
        asked = hangs.standing
        seen = tick if asked else replace(tick, ranks=tuple(replace(rank, calls={}) for rank in tick.ranks))
        found += hangs.see(seen)
    assert [(alert.kind, alert.rank) for alert in found] == [("hang", 2)]
    assert "which it has not begun" in found[0].message and found[0].at <= 23 * INTERVAL


def frames(*lines: tuple[str, int]) -> Any:
    found: Any = None
    for name, line in lines:
        code = SimpleNamespace(co_filename=name, co_name="go")
        found = SimpleNamespace(f_code=code, f_lasti=line, f_lineno=line, f_back=found)
    return found


def test_a_beacon_tells_python_that_moves_from_a_loop_that_sleeps() -> None:
    asleep = frames(("/home/me/train.py", 7))
    moves = Moves()
    for number in range(40):
        moves.look(frames(("/home/me/train.py", 8)) if number % 10 == 5 else asleep)
    assert moves.went is None and moves.place == "go (train.py:7)"
    library = f"{Path(os.__file__).parent}/queue.py"
    for number in range(4):
        moves.look(frames(("/home/me/train.py", number), ("/x/site-packages/torch/nn/a.py", 1), (library, 1)))
    assert moves.went is not None and moves.place == "go (train.py:3)"


def test_a_training_that_goes_on_is_told_and_is_given_as_long_the_next_time() -> None:
    hangs, at, found = Hangs(), 0.0, []
    for number in range(200):
        at += INTERVAL
        step = 5 * (number if number < 50 else 50 if number < 60 else number - 10 if number < 120 else 110)
        # Rank 2 is behind in both pauses; the second is as long as the first.
        held = 50 <= number < 60 or 120 <= number < 130
        step = step + 5 * max(0, number - 130) if number >= 130 else step
        seen = list(ranks(step, 0.0, calls=step))
        if held:
            seen = [
                replace(rank, calls={"0": Call(number=step + 1, name="x")}) if rank.rank != 2 else rank for rank in seen
            ]
        found += hangs.see(Tick(at=at, ranks=tuple(seen)))
    assert [alert.kind for alert in found] == ["hang", "goes-on"]


def test_a_hang_behind_the_first_step_is_seen_where_a_rank_is_behind_and_idle() -> None:
    for busy, kinds in ((False, ["hang"]), (True, [])):
        ticks = []
        for tick in stalled(1, calls=1):
            cpu = tick.at if busy else 0.0
            ticks.append(replace(tick, ranks=tuple(replace(rank, cpu=cpu) for rank in tick.ranks)))
        assert [alert.kind for alert in ran(Hangs(), iter(ticks))] == kinds


def test_a_time_in_which_nobody_looked_is_no_standstill() -> None:
    ticks = [Tick(at=number * INTERVAL + (3600 if number > 20 else 0), ranks=ranks(10 * number, 0.0, calls=number))
             for number in range(22)]  # fmt: skip
    asleep = replace(ticks[-1], ranks=tuple(replace(rank, step=200, calls=ticks[20].ranks[0].calls) for rank in
                                            ticks[-1].ranks))  # fmt: skip
    assert ran(Hangs(), iter([*ticks[:-1], asleep])) == []


def test_the_first_step_has_its_own_patience() -> None:
    hangs = Hangs(Patience(first=300))
    ticks = [Tick(at=at * INTERVAL, ranks=ranks(0, 0.0)) for at in range(70)]
    found = ran(hangs, iter(ticks))
    assert found and all(alert.at >= 300 for alert in found)


def test_collectives_that_do_not_belong_together_are_named() -> None:
    seen = ranks(5, 0.0, calls=40)
    odd = replace(seen[3], calls={"0": Call(number=40, name="nccl:all_reduce")})
    before, tick = Tick(at=0, ranks=seen), Tick(at=5, ranks=(*seen[:3], odd))
    found = judge(tick, before, {})
    assert (found.kind, found.ranks) == ("mismatch", (3,)) and "all_reduce" in found.reason
    # In an all-reduce every rank brings as much; in an all-gather it need not.
    for name, kind in (("gloo:all_reduce", "mismatch"), ("gloo:all_gather", "quiet")):
        sized = tuple(
            replace(rank, calls={"0": Call(number=9, name=name, sizes=f"[[{8 + (rank.rank == 1)}]]")}) for rank in seen
        )
        assert judge(Tick(at=5, ranks=sized), Tick(at=0, ranks=sized), {}).kind == kind


def test_without_a_flight_recorder_steps_and_stacks_tell_who_is_behind() -> None:
    seen = ranks(5, 0.0)
    late = (seen[0], replace(seen[1], step=4), *seen[2:])
    assert judge(Tick(at=5, ranks=late), Tick(at=0, ranks=late), {}).ranks == (1,)
    where = {0: "waiting", 1: "waiting", 2: "own", 3: "waiting"}
    found = judge(Tick(at=5, ranks=seen), Tick(at=0, ranks=seen), where)  # type: ignore[arg-type]
    assert (found.kind, found.ranks) == ("hang", (2,))
    every = dict.fromkeys(range(4), "waiting")
    assert judge(Tick(at=5, ranks=seen), Tick(at=0, ranks=seen), every).kind == "hang"  # type: ignore[arg-type]
    assert judge(Tick(at=5, ranks=seen), Tick(at=0, ranks=seen), {}).kind == "quiet"


def memories(grows: float, *, left: float, noise: float = 0.0, until: float = math.inf) -> list[Alert]:
    """An hour of a memory of which 100 GiB are used; ``grows`` in GiB a minute."""
    source, detector, found = random.Random(3), Memories(), []
    for number in range(720):
        at = number * INTERVAL
        more = grows * min(at, until) / 60
        used = 100 + more + source.gauss(0, noise)
        seen = Memory(name="host memory", used=int(used * GIB), left=int((left - more) * GIB), limit=200 * GIB)
        found += detector.see(Tick(at=at, steps=1, ranks=(), memories=(seen,)))
    return found


def test_memory_that_creeps_is_told_before_it_is_full_and_with_the_time_that_is_left() -> None:
    found = memories(1.0, left=65, noise=0.5)
    assert [alert.kind for alert in found][:1] == ["memory-creep"]
    assert found[0].at < 45 * 60 and "full in about" in found[0].message
    assert [alert.kind for alert in found] == ["memory-creep", "memory-low"]


@pytest.mark.parametrize(("grows", "noise", "until"), [(0.0, 5.0, math.inf), (2.0, 0.2, 120), (0.01, 0.0, math.inf)])
def test_memory_that_is_noisy_or_has_found_its_level_is_no_leak(grows: float, noise: float, until: float) -> None:
    assert memories(grows, left=90, noise=noise, until=until) == []


def test_a_slope_has_bounds_and_few_points_have_none() -> None:
    found = slope([(float(at), 3.0 * at) for at in range(60)])
    assert found is not None and found.low == found.middle == found.high == 3.0
    assert slope([(0.0, 1.0), (1.0, 2.0)]) is None


def test_a_disk_that_holds_the_training_back_is_told_once() -> None:
    disks = Disks()
    blocked = tuple(replace(rank, state="D") for rank in ranks(1, 0.0))
    found = [a for at in range(20) for a in disks.see(Tick(at=at, ranks=blocked, steps=1, iowait=0.6), None)]
    assert [alert.kind for alert in found] == ["disk-pressure"]
    full = Memory(name="the disk", used=99 * GIB, left=GIB, limit=100 * GIB)
    assert [alert.kind for alert in Disks().see(Tick(at=0, ranks=()), full)] == ["disk-low"]


def learnt(losses: list[float], norms: list[float] | None = None) -> list[str]:
    learning = Learning()
    pairs = zip(losses, norms or [None] * len(losses), strict=True)  # type: ignore[list-item]
    return [
        alert.kind
        for number, (loss, norm) in enumerate(pairs)
        for alert in learning.see(Printed(at=float(number), number=number, loss=loss, norm=norm))
    ]


def test_a_training_that_learns_or_has_learnt_is_left_alone() -> None:
    for seed in range(20):
        noise = random.Random(seed)
        falling = [2 + 8 / (1 + number / 50) + noise.gauss(0, 0.5) for number in range(2000)]
        # The first steps of fp16 overflow, and are skipped.
        assert learnt(falling, [0.0] * 17 + [abs(noise.gauss(1, 0.3)) for _ in falling[17:]]) == [], seed


@pytest.mark.parametrize(
    ("losses", "norms", "kind"),
    [
        ([2.0, 1.9, math.nan, math.nan], None, "loss-nan"),
        ([2.0, math.inf], None, "loss-nan"),
        ([6.93] * SAME, None, "loss-stuck"),
        ([5 - 0.01 * number for number in range(10)], [0.5] + [0.0] * 9, "zero-gradients"),
        ([5 - 0.01 * number for number in range(30)], [0.0] * 30, "zero-gradients"),
        ([3.0 + 2.0 * (-1) ** number for number in range(60)], None, "loss-oscillates"),
        ([2.0] + [2.0 - 0.01 * n for n in range(50)] + [1.5 + 0.05 * n for n in range(80)], None, "loss-rises"),
        ([10.8 + random.Random(5).gauss(0, 0) + 0.01 * (n % 7) for n in range(220)], None, "loss-flat"),
    ],
)
def test_a_training_that_does_not_learn_is_told(losses: list[float], norms: list[float] | None, kind: str) -> None:
    assert learnt(losses, norms) == [kind]


def words(text: str, cut: int = 7) -> tuple[Words, list[Printed]]:
    found: list[Printed] = []
    reader = Words(found.append, lambda: 1.0)
    data = text.encode()
    for at in range(0, len(data), cut):
        reader.take(data[at : at + cut])
    return reader, found


def test_steps_are_read_from_what_trainings_print() -> None:
    reader, found = words(
        "[2026-01-01 00:00:00,123] [INFO] [logging.py:1:log_dist] [Rank 0] step=10, skipped=0, lr=[0.001], mom=[0.9]\n"
        "{'loss': 2.5, 'grad_norm': 0.75, 'learning_rate': 1e-05, 'epoch': 0.1}\n"
        "Loading checkpoint shards:  50%|#####     | 3/6 [00:03<00:03,  1.0s/it]\r"
        " 20%|##        | 12/60 [00:34<02:17,  2.86s/it]\r 20%|##        | 12/60 [00:34<02:17,  2.86s/it]\r"
        " iteration       30/     100 | elapsed time per iteration (ms): 512.3 | lm loss: 1.5E+00 | grad norm: 0.0 |\n"
        "steps: 40 loss: nan iter time (s): 1.5 samples/sec: 8\n"
    )
    assert [(line.number, line.loss, line.norm) for line in found[:4]] == [
        (10, None, None), (None, 2.5, 0.75), (12, None, None), (30, 1.5, 0.0),
    ]  # fmt: skip
    assert found[4].number == 40 and math.isnan(found[4].loss or 0) and (reader.steps, reader.number) == (5, 40)


@pytest.mark.parametrize("line", ["Saving model checkpoint to out/checkpoint-500", "***** Running Evaluation *****"])
def test_what_takes_long_is_known_by_its_words(line: str) -> None:
    reader, _ = words(f"step 5 loss: 1.0\n{line}\n")
    assert reader.quiet
    reader.take(b"step 6 loss: 0.9\n")
    assert not reader.quiet


def test_the_first_rank_that_died_is_told_and_those_that_were_ended_after_it_are_not() -> None:
    deaths = Deaths()
    gone = RankSeen(rank=1, pid=7, state="", step=12)
    assert deaths.died(replace(gone, exit_code=0), 1.0) == deaths.died(replace(gone, exit_code=-15), 1.0) == []
    found = deaths.died(replace(gone, exit_code=-9), 2.0, ooms=1)
    assert [(alert.kind, alert.rank) for alert in found] == [("rank-oom", 1)] and "SIGKILL" in found[0].message
    assert deaths.died(replace(gone, rank=0, exit_code=1), 3.0) == []
    ticks = [Tick(at=at, ranks=(), ooms=ooms) for at, ooms in ((4, 1), (5, 2), (6, 2), (7, 2))]
    assert [alert.at for tick in ticks for alert in deaths.see(tick)] == [6]


def test_a_rank_that_the_kernel_killed_is_told_as_that_though_the_count_comes_first() -> None:
    deaths = Deaths()
    assert deaths.see(Tick(at=1, ranks=(), ooms=1)) == []
    found = deaths.died(RankSeen(rank=1, pid=7, state="", exit_code=-9), 1.5, ooms=1)
    assert [alert.kind for alert in found] == ["rank-oom"]
    assert deaths.see(Tick(at=2, ranks=(), ooms=1)) == deaths.see(Tick(at=3, ranks=(), ooms=1)) == []


def test_a_training_in_an_image_has_the_beacon_and_the_images_own_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    env = load(find(None, Path(__file__)).matrix).get("cpu")
    info: Any = SimpleNamespace(env=(("PYTHONPATH", "/opt/own"),))
    spec = watched_spec(env, "envbuild/cpu:1", info, ("torchrun", "train.py"), tmp_path / "out", interval=5.0)
    named, places = dict(spec.env), {mount.target: mount for mount in spec.mounts}
    shim, own = named["PYTHONPATH"].split(":")
    assert own == "/opt/own" and Path(shim).parent.as_posix() in places
    assert (places[named["ENVBUILD_PROFILER"]].source / "hook.py").is_file()
    assert not places[named["ENVBUILD_PROFILE"]].read_only and places[str(tmp_path)].source == tmp_path
    assert spec.argv == ("torchrun", "train.py") and named["ENVBUILD_WATCH_SECONDS"] == "1"


@pytest.mark.parametrize("version", [1, 2])
def test_the_nearest_memory_limit_of_a_cgroup_counts(tmp_path: Path, version: int) -> None:
    line, base, names = {
        1: ("4:memory:/job/step\n1:cpu:/other\n", tmp_path / "cg" / "memory", ("memory.limit_in_bytes",
            "memory.usage_in_bytes", "total_inactive_file 1000", "memory.oom_control")),
        2: ("0::/job/step\n", tmp_path / "cg", ("memory.max", "memory.current", "inactive_file 1000", "memory.events")),
    }[version]  # fmt: skip
    (tmp_path / "proc" / "7").mkdir(parents=True)
    (tmp_path / "proc" / "7" / "cgroup").write_text(line)
    (base / "job" / "step").mkdir(parents=True)
    (base / "job" / "step" / names[0]).write_text("max\n" if version == 2 else f"{(1 << 63) - 4096}\n")
    stat = f"anon 5\n{names[2]}\n"
    said = {names[0]: "10000\n", names[1]: "9500\n", "memory.stat": stat, names[3]: "low 0\noom_kill 3\n"}
    for name, value in said.items():
        (base / "job" / name).write_text(value)
    cgroup = proc.Cgroup(7, root=tmp_path / "cg", proc=tmp_path / "proc")
    found = cgroup.memory(400)
    assert found is not None and (found.limit, found.left, found.used, cgroup.killed()) == (10000, 1500, 400, 3)


def test_what_is_exported_is_read_by_prometheus() -> None:
    tick = Tick(at=60, ranks=ranks(7, 12.5), gpu_percent=(50.0,),
                memories=(Memory(name='the disk of /a"b\\c', used=5, left=6, limit=11),))  # fmt: skip
    alerts = [Alert(kind="hang", severity="error", message="", at=1)] * 2
    text = metrics.text(metrics.figures(tick, up=True, moved=(50.0, 7), pace=None, loss=math.nan, norm=0.5,
                                        alerts=alerts))  # fmt: skip
    found = {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert found["envbuild_watch_alerts_total", "hang"] == 2 and found[("envbuild_watch_progress_age_seconds",)] == 10
    assert found["envbuild_watch_memory_left_bytes", 'the disk of /a"b\\c'] == 6
    assert math.isnan(found[("envbuild_watch_loss",)]) and ("envbuild_watch_step_seconds",) not in found
