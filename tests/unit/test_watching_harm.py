"""Watching ends no training, takes none that is well for one that hangs, and misses none that hangs."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from envbuild.pipeline.stacks import Stack
from envbuild.pipeline.watched import Watch, Wish
from envbuild.pipeline.watched_run import Tail
from envbuild.watching import proc
from envbuild.watching.deaths import Deaths
from envbuild.watching.hangs import Hangs, Patience
from envbuild.watching.learning import Printed
from envbuild.watching.lines import Words
from envbuild.watching.types import Alert, Call, RankSeen, Tick

INTERVAL = 5.0


def test_a_file_that_cannot_be_written_is_told_once_and_the_watching_goes_on(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    said: list[Alert] = []
    wish = Wish(patience=Patience(interval=0.2), openmetrics=tmp_path / "file" / "x.prom")
    watch = Watch(os.getpid(), None, wish, said.append, lambda: None)
    for _ in range(3):
        watch._next = 0.0
        watch.beat()
    watch.close()
    assert [(alert.kind, alert.severity) for alert in said] == [("cannot-write", "warning")]
    assert "x.prom" in said[0].message


def test_a_dump_that_cannot_be_written_does_not_keep_the_run_from_being_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    said: list[Alert] = []
    stopped: list[bool] = []
    wish = Wish(on_hang="stop", dumps=tmp_path / "file" / "dump")
    watch = Watch(os.getpid(), None, wish, said.append, lambda: stopped.append(True))
    monkeypatch.setattr(watch._hangs, "certain", lambda tick: True)
    watch._act(Tick(at=1, ranks=()), told=True)
    assert stopped == [True] and [alert.kind for alert in said] == ["cannot-write"]


def test_a_look_that_fails_does_not_end_the_watching(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[Alert] = []
    watch = Watch(os.getpid(), None, Wish(), said.append, lambda: None)
    monkeypatch.setattr(watch._sight, "look", lambda at: 1 / 0)
    watch.beat()
    watch._next = 0.0
    watch.beat()
    assert [alert.kind for alert in said] == ["cannot-look"] and "ZeroDivisionError" in said[0].message


def ended(code: int | None, *, after: int = 20, quiet: bool = False) -> list[Tick]:
    """Rank 1 ends behind tick ``after``, and rank 0 does something that takes long."""
    found = []
    for number in range(60):
        step = 10 * min(number, after)
        first = RankSeen(rank=0, pid=100, state="S", step=step, moved=number << 30)
        second = RankSeen(rank=1, pid=101, state="S", step=step)
        if number > after:
            second = replace(second, state="", exit_code=code)
        found.append(Tick(at=number * INTERVAL, ranks=(first, second), quiet=quiet and number > after))
    return found


def told(ticks: list[Tick], where: str | None) -> list[tuple[str, int | None]]:
    hangs, found = Hangs(), []
    for tick in ticks:
        hangs.where = {0: where} if hangs.standing and where else {}  # type: ignore[dict-item]
        found += hangs.see(tick)
    return [(alert.kind, alert.rank) for alert in found]


def test_a_rank_whose_end_was_not_seen_is_waited_for_only_where_another_is_seen_to_wait() -> None:
    for where in ("own", "away", None):
        assert ("hang", 1) not in told(ended(None), where), where
    assert told(ended(None), "waiting") == [("hang", 1)]
    assert ("hang", 1) in told(ended(-9), None)


def test_a_rank_that_ended_unseen_is_told_when_the_command_fails() -> None:
    gone = RankSeen(rank=1, pid=7, state="", step=8)
    deaths = Deaths()
    assert deaths.died(gone, 3.0) == deaths.died(replace(gone, rank=0, exit_code=-15), 3.2) == []
    found = deaths.close(1, 4.0)
    assert [(alert.kind, alert.rank, alert.severity) for alert in found] == [("rank-died", 1, "error")]
    assert any("exit code was not seen" in line for line in found[0].evidence)
    well = Deaths()
    well.died(gone, 3.0)
    assert well.close(0, 4.0) == well.close(None, 4.0) == []
    both = Deaths()
    both.died(gone, 3.0)
    both.died(replace(gone, rank=0), 3.0)
    # Which of them was the first is not known.
    assert [alert.rank for alert in both.close(1, 4.0)] == [None]
    guess = Deaths()
    assert guess.died(replace(gone, exit_code=-9), 3.0, sure=False) == [] and guess.close(0, 4.0) == []


def test_of_ranks_that_one_look_found_gone_none_is_named_as_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[Alert] = []
    watch = Watch(os.getpid(), None, Wish(), said.append, lambda: None)
    gone = [RankSeen(rank=rank, pid=rank + 10, state="") for rank in (0, 1)]
    monkeypatch.setattr(watch._sight, "ended", lambda: [gone.pop(0) for _ in range(len(gone))])
    watch.close(1)
    assert [(alert.kind, alert.rank) for alert in said] == [("rank-died", None)]
    assert "one of the ranks 0, 1 ended first" in said[0].message


def test_a_log_is_followed_from_its_end_and_through_being_cut_off_and_replaced(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_bytes(b"old line\n" * 100_000)
    with Tail(log) as tail:
        history = tail.history()
        assert history.startswith(b"old line\n") and len(history) <= 1 << 16
        assert tail.read() == b""
        with log.open("ab") as more:
            more.write(b"step 1\n")
        assert tail.read() == b"step 1\n"
        log.write_bytes(b"step 2\n")
        assert tail.read() == b"step 2\n"
        log.rename(tmp_path / "train.log.1")
        with (tmp_path / "train.log.1").open("ab") as more:
            more.write(b"step 3\n")
        assert tail.read() == b"step 3\n"
        log.write_bytes(b"step 4\n")
        assert tail.read() + tail.read() == b"step 4\n"


def test_what_a_log_told_before_watching_is_no_progress_and_no_news() -> None:
    said: list[Alert] = []
    watch = Watch(os.getpid(), None, Wish(), said.append, lambda: None)
    watch.recall(b"step 1 loss: 2.0\nstep 2 loss: nan\nSaving model checkpoint\n")
    watch.beat()
    assert said == [] and watch._words[0].quiet and watch._words[0].number == 2


def words(text: str) -> Words:
    reader = Words(lambda line: None, lambda: 1.0)
    reader.take(text.encode())
    return reader


@pytest.mark.parametrize(
    "line",
    [
        "torch/utils/checkpoint.py:85: UserWarning: None of the inputs have requires_grad=True",
        "reading /data/saved/shard-3.bin",
        "tokenizer validation cache hit",
    ],
)
def test_a_word_in_a_path_announces_nothing(line: str) -> None:
    assert not words(f"step 5 loss: 1.0\n{line}\n").quiet


def test_the_same_line_again_is_no_progress() -> None:
    assert words("step 9 loss: 2.0\n" + "[heartbeat] step 9 loss: 2.0\n" * 5).steps == 1
    assert words("loss: 2.0\n" * 3).steps == 3


def test_between_the_first_steps_a_rank_has_three_times_what_the_first_step_took() -> None:
    found: list[Alert] = []
    hangs = Hangs()
    for number in range(60):
        # The first step took 100 s; in the second one rank 1 is behind for 200 s.
        step = 0 if number < 20 else 1
        calls = {"0": Call(number=step + 1, name="x")}
        first = RankSeen(rank=0, pid=100, state="S", step=step, calls=calls)
        second = replace(first, rank=1, pid=101, calls={"0": Call(number=step, name="x")})
        found += hangs.see(Tick(at=number * INTERVAL, ranks=(first, second)))
    assert found == []


def test_a_rank_with_a_title_is_not_taken_for_its_helper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proc, "_environment", lambda pid: {"RANK": b"0", "LOCAL_RANK": b"0"})
    plain = proc.stat(os.getpid())
    assert plain is not None
    titled = replace(plain, pid=10, name="pt_main_thread", cpu=500.0)
    helper = replace(plain, pid=11, name="python3", cpu=0.03)
    shell = replace(plain, pid=9, name="sh", cpu=0.0)
    assert proc.ranks([titled, helper])[0].pid == 10
    assert proc.ranks([shell, helper])[0].pid == 11


def test_only_the_main_thread_waits_and_only_in_a_collective() -> None:
    main = 'Thread 1 (idle): "MainThread"\n    load (data.py:12)\n    <module> (train.py:1)\n'
    other = 'Thread 2 (idle): "saver"\n    run (torch/distributed/checkpoint/_async_executor.py:3)\n'
    assert Stack(text=main + other).where == "own"
    fsdp = main.replace("<module>", "forward (torch/distributed/fsdp/fully_sharded_data_parallel.py:9)\n    <module>")
    assert Stack(text=fsdp).where == "own"
    waits = main.replace("load (data.py:12)", "all_reduce (torch/distributed/distributed_c10d.py:9)")
    assert Stack(text=waits).where == "waiting"


def test_files_that_can_be_dropped_are_left_and_the_tightest_limit_counts(tmp_path: Path) -> None:
    (tmp_path / "proc" / "7").mkdir(parents=True)
    (tmp_path / "proc" / "7" / "cgroup").write_text("0::/job/step\n")
    for place, limit, usage in (("job", 5000, 4900), ("job/step", 10_000, 9800)):
        folder = tmp_path / "cg" / place
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "memory.max").write_text(f"{limit}\n")
        (folder / "memory.current").write_text(f"{usage}\n")
        (folder / "memory.stat").write_text("inactive_file 100\nactive_file 2000\n")
    found = proc.Cgroup(7, root=tmp_path / "cg", proc=tmp_path / "proc").memory(400)
    assert found is not None and (found.limit, found.left) == (5000, 2200)


def test_a_loss_of_an_evaluation_and_a_time_are_no_steps() -> None:
    found: list[Printed] = []
    reader = Words(found.append, lambda: 1.0)
    reader.take(b"epoch 1 train loss: 0.5\nepoch 1 val loss: 0.9\n{'eval_loss': 0.9}\nvalidation loss: 2.0\n")
    assert [line.loss for line in found] == [0.5]
    reader.take(b"epoch 1 iter: 0.35s loss: 0.4\n")
    assert (found[-1].loss, found[-1].number) == (0.4, None)


def test_a_loss_that_is_no_number_is_told_of_every_rank() -> None:
    said: list[Alert] = []
    watch = Watch(os.getpid(), None, Wish(), said.append, lambda: None)
    watch.hear(1, b"[Rank 0] step 2 loss: 1.0\n[Rank 3] step 2 loss: nan\n")
    watch.beat()
    assert [alert.kind for alert in said if alert.kind.startswith("loss")] == ["loss-nan"]
