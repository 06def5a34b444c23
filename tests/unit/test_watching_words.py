"""What watching makes of what a training prints: losses by their names, ranks, epochs, floods."""

from __future__ import annotations

import errno
import math
import os
import random
import time
from pathlib import Path

import pytest

from envbuild.pipeline.overheard import Copy, Queue
from envbuild.pipeline.stacks import Stack
from envbuild.pipeline.watched import Watch, Wish
from envbuild.pipeline.watched_run import _listen
from envbuild.watching import metrics
from envbuild.watching.hangs import Hangs, Patience
from envbuild.watching.learning import Learning, Printed
from envbuild.watching.lines import Words
from envbuild.watching.types import Alert, Call, RankSeen, Tick


def heard(lines: list[str], *, apart: float = 1.0, together: int = 1) -> tuple[list[str], Learning, Words]:
    """What is said of lines, so many of which come at once."""
    learning, said, printed = Learning(), [], list[Printed]()
    at = [0.0]
    words = Words(printed.append, lambda: at[0])
    for number, line in enumerate(lines):
        at[0] = number // together * apart
        words.take(f"{line}\n".encode())
        for each in printed:
            said += [alert.kind for alert in learning.see(each)]
        printed.clear()
    return said, learning, words


def noisy(seed: int, around: float, by: float, count: int) -> list[str]:
    noise = random.Random(seed)
    return [f"{around + noise.gauss(0, by):.4f}" for _ in range(count)]


def test_losses_of_two_networks_are_no_oscillation() -> None:
    both = [
        line
        for a, b in zip(noisy(1, 0.3, 0.02, 120), noisy(2, 1.4, 0.05, 120), strict=True)
        for line in (f"D loss: {a}", f"G loss: {b}")
    ]
    assert heard(both)[0] == []
    assert heard([f"D loss: {a} G loss: {b}" for a, b in zip(both[::2], both[1::2], strict=True)])[0] == []
    one_line = [f"{a} {b}" for a, b in zip(both[::2], both[1::2], strict=True)]
    assert heard(one_line)[0] == []
    # Where it is no number, it is told of each.
    assert heard([*both, "G loss: nan"])[0] == ["loss-nan"]
    assert heard(["D loss: 0.3 G loss: nan"])[0] == ["loss-nan"]
    # A loss that has a name and is the only one is the training's.
    assert heard([f"contrastive loss: {3.0 + 2.0 * (-1) ** n}" for n in range(60)])[0] == ["loss-oscillates"]


def test_a_loss_beside_the_usual_one_is_not_taken_for_it() -> None:
    lines = [line for n in range(80) for line in (f"aux2 loss: {0.01 * (n % 2 + 1)}", f"loss: {5 / (n + 1):.4f}")]
    said, learning, _ = heard(lines)
    assert said == [] and learning.last is not None and learning.last.loss == pytest.approx(5 / 80, abs=1e-4)


def test_equal_losses_of_many_ranks_are_one_step() -> None:
    steps = [f"loss: {3 / (1 + step):.4f}" for step in range(12) for _ in range(32)]
    assert heard(steps, together=32)[0] == []
    tagged = [f"[Rank {rank}] loss: {3 / (1 + step) + rank}" for step in range(60) for rank in (0, 1)]
    assert heard(tagged, together=1)[0] == []
    # One that is really stuck is told, by as many steps.
    stuck = ["loss: 3.0000" for _ in range(20) for _ in range(32)]
    assert heard(stuck, together=32)[0] == ["loss-stuck"]


def test_micro_steps_and_a_number_that_never_changes_hide_nothing() -> None:
    for prefix, steps in (("micro step 0", 60), ("epoch 1 iter: 0.35s", 60), ("step 1", 7)):
        said, learning, words = heard([f"{prefix} loss: {2 - n * 0.1 if n < 6 else 'nan'}" for n in range(60)])
        # The same words again are no step.
        assert said == ["loss-nan"] and words.steps == steps, prefix
        assert learning.last is not None and math.isnan(learning.last.loss or 0), prefix
    said, learning, _ = heard([f"step 7 loss: {2 - n * 0.1:.1f}" for n in range(6)])
    assert learning.last is not None and learning.last.loss == 1.5


def test_gradients_that_are_no_numbers_are_told_when_a_loss_scale_does_not_explain_them() -> None:
    def trained(norms: list[str]) -> list[str]:
        return heard([f"{{'loss': {2 - n / 100:.3f}, 'grad_norm': {norm}}}" for n, norm in enumerate(norms)])[0]

    # A scale that begins at 2^32 and goes down to 1, and later overflows twice in a row each time that it is doubled.
    well = ["inf"] * 34 + (["1.2"] * 30 + ["inf"] * 2) * 5
    assert trained(well) == []
    assert trained([*well, *["nan"] * 5]) == ["gradients-nan"] and trained(["inf"] * 40) == ["gradients-nan"]
    # A norm that is no number is none other than 0: the zeros behind it are still the first ones.
    assert trained(["nan", *["0.0"] * 15]) == []


@pytest.mark.parametrize(
    ("line", "loss"),
    [
        ("loss: tensor(2.3, device='cuda:0')", 2.3), ("loss=tensor([2.5])", 2.5), ("step 4 loss 2.31", 2.31),
        ("epoch 1 | loss nan", math.nan), ("loss: tensor(nan)", math.nan), ("loss 3 of 5 runs", None),
        ("loss scale: 65536", None), ("| valid | epoch 001 | loss 5.1", None), ("information loss is 3", None),
        ("epoch 1 loss: 0.5 - val_loss: 0.9", 0.5), ("val loss: 0.9", None),
    ],
)  # fmt: skip
def test_losses_are_understood_as_they_are_printed(line: str, loss: float | None) -> None:
    _, learning, words = heard([line])
    told = learning.last.loss if learning.last else None
    assert told == loss or (loss is not None and told is not None and math.isnan(loss) and math.isnan(told))
    assert (words.lines, words.losses) == (1, int(loss is not None))


def test_steps_whose_numbers_begin_again_are_counted_on() -> None:
    epochs = [f"epoch {epoch} step {step} loss: {3 / (1 + epoch + step / 10):.4f}" for epoch in range(3)
              for step in range(1, 11)]  # fmt: skip
    assert heard(epochs)[2].number == 30
    # Two ranks, of which one is a step behind, and a training that goes on at a high number.
    assert heard([f"step {step - rank} loss: {step}.{rank}" for step in range(2, 9) for rank in (0, 1)])[2].number == 8
    assert heard([f"step {step} loss: 1.{step}" for step in (500, 501, 502, 1, 2, 3)])[2].number == 505
    # A bar of an evaluation begins again with each, and is none of the training's steps.
    bars = [f" 1%|#  | {step}/90 [00:34<02:17,  2.86s/it]" for step in range(1, 31)]
    for at in (10, 20):
        bars[at:at] = [f" 9%|#  | {step}/8 [00:01<00:17,  2.86s/it]" for step in range(1, 9)]
    assert heard(bars)[2].number == 30


def test_progress_is_seen_in_every_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = Watch(os.getpid(), None, Wish(patience=Patience(interval=0.2)), lambda alert: None, lambda: None)
    clock = [0.0]
    monkeypatch.setattr(watch, "now", lambda: clock[0])
    for epoch in range(3):
        for step in range(1, 6):
            clock[0] += 1.0
            watch.hear(1, f"epoch {epoch} step {step} loss: {3 / (1 + epoch + step)}\n".encode())
            watch.beat()
            assert watch._moved == (clock[0], epoch * 5 + step)
    assert watch.close().steps == 15


def test_a_line_of_spaces_and_a_flood_of_words_cost_little_time(monkeypatch: pytest.MonkeyPatch) -> None:
    def spent(data: bytes) -> float:
        reader = Words(lambda line: None, lambda: 0.0)
        began = time.process_time()
        reader.take(data)
        return time.process_time() - began

    # Twice as long takes twice as long, and not four times; both are far from a second here.
    long = spent(b"step" + b" " * 16_000 + b"x\n") + spent(b"iteration" + b" " * 16_000 + b"x\n")
    assert long < 0.5
    assert spent((b"rank 0 INFO words and a number 12345 " + b"y" * 60 + b"\n") * 40_000) < 4.0


def test_of_a_flood_the_newest_is_kept_and_the_loss_is_counted() -> None:
    queue = Queue()
    for number in range(100):
        queue.put(1, b"%09d\n" % number * 100_000)
    kept = []
    while (piece := queue.take()) is not None:
        kept.append(piece[1])
    assert sum(map(len, kept)) <= 32 << 20 and kept[-1].startswith(b"000000099")
    assert sum(map(len, kept)) + queue.lost == 100 * 1_000_000


def test_a_flood_leaves_time_for_looks() -> None:
    watch = Watch(os.getpid(), None, Wish(), lambda alert: None, lambda: None)
    queue = Queue()
    for number in range(3):
        queue.put(1, b"step %d loss: 1.%d\n" % (number, number))
    _listen(watch, queue, -1.0)
    assert watch._words[0].lines == 1
    _listen(watch, queue, math.inf)
    assert watch._words[0].lines == 3


def test_a_bounded_copy_keeps_the_beginning_and_the_end_in_order(tmp_path: Path) -> None:
    for lines in (3, 9, 12, 40, 1003):
        path = tmp_path / str(lines)
        copy = Copy(path, bounded=True, head=50, tail=70)
        said = b"".join(b"line %04d\n" % number for number in range(lines))
        for at in range(0, len(said), 37):
            copy.take(said[at : at + 37])
        copy.close()
        copy.take(b"of what was left behind")
        found = path.read_bytes()
        if len(said) <= 120:
            assert found == said
        else:
            left = b"[envbuild watch: %d bytes are left out here]" % (len(said) - 120)
            assert found == said[:50] + b"\n" + left + b"\n" + said[-70:]
        assert copy.problem == "" and sorted(each.name for each in tmp_path.iterdir()) == sorted(
            {str(lines), *(each.name for each in tmp_path.iterdir() if each.name.isdigit())}
        )
    whole = Copy(tmp_path / "whole", bounded=False, head=5, tail=7)
    whole.take(b"x" * 100)
    whole.close()
    assert (tmp_path / "whole").read_bytes() == b"x" * 100


def test_a_disk_that_is_full_is_a_problem_of_the_copy_alone(tmp_path: Path) -> None:
    copy = Copy(Path("/dev/full"), bounded=False)
    copy.take(b"words")
    copy.close()
    assert copy.problem == os.strerror(errno.ENOSPC)
    nowhere = Copy(tmp_path / "none" / "log", bounded=True)
    nowhere.take(b"words")
    nowhere.close()
    assert nowhere.problem == os.strerror(errno.ENOENT)


def test_what_is_only_a_notice_is_counted_nowhere() -> None:
    alerts = [
        Alert(kind="busy", severity="info", message="", at=1),
        Alert(kind="hang", severity="error", message="", at=2),
    ]
    found = metrics.figures(Tick(at=3, ranks=()), up=True, moved=(0, 0), pace=None, loss=None, norm=None, alerts=alerts)
    assert found["alerts_total"] == [({"kind": "hang"}, 1.0)]


def test_a_hang_is_not_ended_before_it_is_known_how_long_a_step_takes() -> None:
    def behind(steps: int, first: float, at_first: str = "S") -> list[tuple[float, bool]]:
        hangs, told = Hangs(Patience(first=first)), []
        for number in range(100):
            step = min(number, steps)
            calls = {"0": Call(number=step + (number > steps), name="x")}
            late = {"0": Call(number=step, name="x")}
            state = at_first if number > steps else "S"
            ranks = (RankSeen(rank=0, pid=1, state="S", step=step, calls=calls),
                     RankSeen(rank=1, pid=2, state=state, step=step, calls=late))  # fmt: skip
            tick = Tick(at=number * 5.0, ranks=ranks)
            told += [(tick.at, hangs.certain(tick)) for alert in hangs.see(tick) if alert.kind == "hang"]
        return [*told, (-1.0, hangs.certain(tick))]

    early = behind(1, 1800.0)
    assert [certain for _, certain in early] == [False, False], "told, and not ended"
    assert behind(1, 300.0)[-1][1], "until the first step has had its time"
    assert [certain for _, certain in behind(20, 1800.0)] == [True, True]
    # A rank that is stopped takes no step, however long one may take.
    assert [certain for _, certain in behind(1, 1800.0, "T")] == [True, True]


def test_a_run_is_ended_when_its_hang_is_certain_and_the_alert_says_so_before(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[Alert] = []
    stopped: list[bool] = []
    watch = Watch(os.getpid(), None, Wish(on_hang="stop"), said.append, lambda: stopped.append(True))
    hang = [Alert(kind="hang", severity="error", message="", at=1)]
    known = [False]
    monkeypatch.setattr(watch._hangs, "see", lambda tick: [hang.pop()] if hang else [])
    monkeypatch.setattr(watch._hangs, "certain", lambda tick: known[0])
    watch._look()
    watch._look()
    assert stopped == []
    known[0] = True
    watch._look()
    watch._look()
    assert stopped == [True] and "it is not ended before it is known how long a step takes" in said[0].evidence[0]


def test_who_is_called_from_a_collective_is_in_code_of_its_own() -> None:
    head = 'Thread 1 (idle): "MainThread"\n'
    waits = (
        "    all_reduce (torch/distributed/distributed_c10d.py:6)\n    wrapper (torch/distributed/c10d_logger.py:8)\n"
    )
    own = "    load (mypkg/data.py:12)\n"
    top = "    main (train.py:9)\n    <module> (train.py:20)\n    _run (<frozen runpy>:88)\n"
    library = "    wait (threading.py:320)\n    __call__ (torch/_ops.py:1123)\n"
    assert Stack(text=head + waits + top).where == "waiting"
    assert Stack(text=head + library + waits + top).where == "waiting"
    assert Stack(text=head + own + waits + top).where == "own"
    assert Stack(text=head + "    upload (urllib3/x.py:3)\n" + own + waits + top).where == "away"
    python = "Thread MainThread:\n"
    for own_first, where in ((False, "waiting"), (True, "own")):
        packages = "/opt/venv/lib/python3.11/site-packages"
        files = [
            "/usr/lib/python3.11/threading.py", f"{packages}/torch/_ops.py",
            f"{packages}/torch/distributed/distributed_c10d.py", "/home/me/train.py",
        ]  # fmt: skip
        files = ["/home/me/hook.py", *files] if own_first else files
        text = python + "".join(f'  File "{name}", line 3, in go\n    call(x)\n' for name in files)
        assert Stack(text=text, source="the rank itself").where == where
