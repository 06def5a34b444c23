"""Logs of one training: which run, rank, step and loss a line belongs to, whatever order the lines come in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from envbuild.errors import InputError
from envbuild.profile import files, readers
from envbuild.profile.document import Launch, Measurement
from envbuild.profile.readers.printed import loss_of
from envbuild.watching.learning import Printed
from envbuild.watching.lines import Words

TIMERS = "time (ms) | fwd: 100.00 | bwd: 200.00 | bwd_inner: 150.00 | bwd_allreduce: 50.00 | step: 60.00"


def start(version: str = "0.19.8") -> str:
    return f"[Rank 0] DeepSpeed info: version={version}, git-hash=x, git-branch=y"


def read(tmp_path: Path, *told: list[str], names: tuple[str, ...] = ("train.log",), **options: Any) -> Measurement:
    paths = []
    for name, lines in zip(names, told, strict=True):
        paths.append(tmp_path / name)
        paths[-1].parent.mkdir(parents=True, exist_ok=True)
        paths[-1].write_text("\n".join(lines) + "\n")
    found = readers.read(paths, **options)
    assert files.measurement(files.document(found), "again") == found
    return found


def losses(launch: Launch, rank: int = 0) -> dict[int, float | None]:
    steps = next(each for each in launch.ranks if each.rank == rank).steps
    return dict(zip(steps.number, steps.loss, strict=True))


def verbose(times: list[float]) -> list[str]:
    return [f"[Rank 0] comm op: all_reduce | time (ms): {time:.2f} | msg size: 1.0 MB | algbw" for time in times]


def test_each_run_has_the_version_that_it_told(tmp_path: Path) -> None:
    # Before 0.18.3 each time is the operation's own, from then on the sum of all before it.
    old, new = [100.0, *[1.0] * 9], [float(number) for number in range(1, 11)]
    both = read(tmp_path, [start("0.17.6"), *verbose(old), start("0.19.8"), *verbose(new)])
    alone = read(tmp_path, [start("0.17.6"), *verbose(old)])
    first, second = (launch.ranks[0].collectives[0] for launch in both.launches)
    assert first == alone.launches[0].ranks[0].collectives[0]
    assert (first.seconds, first.time) == (pytest.approx(0.109), "measured")
    assert (second.seconds, second.time) == (pytest.approx(0.010), "corrected")
    assert both.key.deepspeed is None and "several versions of DeepSpeed" in both.notes[0]
    assert alone.key.deepspeed == "0.17.6"


def test_what_is_told_before_a_start_is_of_the_run_that_starts(tmp_path: Path) -> None:
    around = (
        "Setting ds_accelerator to {0}",
        "Initializing TorchBackend in DeepSpeed with backend {1}",
        "world size: {2}",
    )
    one, two = ([line.format(*each) for line in around] for each in (("cpu", "gloo", 2), ("cuda", "nccl", 8)))
    memory = "CurrSamplesPerSec=1.6, MemAllocated=1.0GB, MaxMemAllocated=2.0GB"
    found = read(tmp_path, [*one, start(), TIMERS, memory, *two, start(), TIMERS, memory])
    assert [launch.communication.backend for launch in found.launches] == ["gloo", "nccl"]
    first, second = (launch.ranks[0].memory for launch in found.launches)
    assert (first.host_peak_bytes, first.gpu_peak_bytes) == (2**31, None)
    assert (second.host_peak_bytes, second.gpu_peak_bytes) == (None, 2**31)
    assert (found.key.world_size, found.key.accelerator) == (None, None)
    # A group's size is none of the world's, whichever comes last.
    told = ["world size: 8", "model parallel world size: 2", "data parallel group, world size: 4", start(), TIMERS]
    assert read(tmp_path, told).key.world_size == 8


def test_a_second_configuration_is_the_second_run_s(tmp_path: Path) -> None:
    first, second = (["[Rank 0] json = {", f'    "lr": {lr}', "}", start(), TIMERS] for lr in (0.1, 0.2))
    assert read(tmp_path, [*first, *first]).config == {"lr": 0.1}
    found = read(tmp_path, [*first, *second])
    assert found.config is None and any("several ds_configs" in note for note in found.notes)


def trainer(first: float, count: int = 5) -> list[str]:
    return [str({"loss": round(first - 0.1 * step, 2), "grad_norm": 1.0}) for step in range(count)]


@pytest.mark.parametrize(
    ("names", "ranks"),
    [
        (("rank0.log", "rank1.log"), [0, 1]), (("x_rank7.log", "x_rank3.log"), [3, 7]), (("a.log", "b.log"), [0, 1]),
        (("0/stdout.log", "5/stdout.log"), [0, 5]), (("n1/rank0.log", "n2/rank0.log"), [0, 1]),
    ],
)  # fmt: skip
def test_logs_of_ranks_become_the_ranks_of_one_launch(tmp_path: Path, names: tuple[str, ...], ranks: list[int]) -> None:
    found = read(tmp_path, trainer(3.0), trainer(3.01), names=names)
    (launch,) = found.launches
    assert [(rank.rank, len(rank.steps.number)) for rank in launch.ranks] == [(rank, 5) for rank in ranks]
    order = ranks if names[0] != "x_rank7.log" else ranks[::-1]
    assert [losses(launch, rank)[0] for rank in order] == [3.0, 3.01]
    assert any("numbered by their order" in note for note in found.notes) == (
        ranks == [0, 1] and names[0] != "rank0.log"
    )


def test_deepspeed_s_own_logs_of_ranks_are_joined_run_by_run(tmp_path: Path) -> None:
    stamp = "[2024-05-01 12:00:{:02d},000] [INFO] [logging.py:96:log_dist] "
    told = [
        [start(), *(f"{stamp.format(at)}[Rank {rank}] {TIMERS}" for at in ats), start(), f"[Rank {rank}] {TIMERS}"]
        for rank, ats in ((0, (1, 2, 4)), (1, (1, 3, 4)))
    ]
    found = read(tmp_path, *told, names=("a.log", "b.log"))
    assert [[rank.rank for rank in launch.ranks] for launch in found.launches] == [[0, 1], [0, 1]]
    columns = [rank.steps for rank in found.launches[0].ranks]
    assert [each.seconds for each in columns] == [(None, 1.0, 2.0), (None, 2.0, 1.0)]
    # One axis for all ranks of a launch, and it begins with the launch.
    assert [each.at for each in columns] == [(None, 0.0, 1.0), (None, 0.0, 2.0)]
    assert not any("of its own" in note for note in found.notes)


def test_what_does_not_fit_together_is_a_launch_of_its_own_and_said(tmp_path: Path) -> None:
    line = f"[Rank 0] {TIMERS}"
    names = ("a.log", "b.log", "c.log")
    found = read(tmp_path, [start(), line], [start(), line, line], ["hello"], names=names)
    assert [[len(rank.steps.number) for rank in launch.ranks] for launch in found.launches] == [[1], [2]]
    said = "\n".join(found.notes)
    assert "c.log tells of no step" in said and "run 1 of b.log is a launch of its own: there is a rank 0" in said
    other = [start("0.17.6"), f"[Rank 1] {TIMERS}"]
    found = read(tmp_path, [start(), line], other, names=names[:2])
    assert len(found.launches) == 2 and "other versions of DeepSpeed" in "\n".join(found.notes)
    found = read(tmp_path, [start(), line, start(), line], [start(), f"[Rank 1] {TIMERS}"], names=names[:2])
    assert [len(launch.ranks) for launch in found.launches] == [2, 1] and "2, 1 runs" in "\n".join(found.notes)


@pytest.mark.parametrize(
    ("line", "loss"),
    [
        ("step 3 loss: 2.5", 2.5), ("train loss: 2.5", 2.5), ("{'loss': 2.5, 'epoch': 1}", 2.5),
        ("lm loss: 2.5 |", 2.5),
        ("[Rank 0] step 3 | train/loss = 2.5", 2.5), ("/data/test/eval/run step 3 loss: 2.5", 2.5),
        ("train_loss=2.5 val_loss=9.0", 2.5), ("val loss: 9.0 train loss: 2.5", 2.5), ("loss: 2.5 valid loss: 9", 2.5),
        ("16 valid tokens, loss: 2.5", 2.5), ("latest loss: 2.5", 2.5),
        ("step 3 validation loss: 9.0", None), ("val loss: 9.0", None), ("eval loss=9.0", None), ("test loss: 9", None),
        ("[eval] step 3 loss: 9.0", None), ("Validation step 3, loss: 9.0", None), ("'eval/loss': 9.0", None),
        ("val lm loss: 9.0", None), ("Test: loss = 9.0", None), ("dev-set | valid | loss: 9.0", None),
        ("aux loss: 0.1", None), ("{'eval_loss': 9.0, 'epoch': 1}", None), ("Testing epoch 3: loss: 9.0", None),
        ("{'train_runtime': 3.3, 'train_loss': 2.7}", None),
    ],
)  # fmt: skip
def test_the_loss_of_an_evaluation_is_none_of_the_training_for_both_who_ask(line: str, loss: float | None) -> None:
    told = loss_of(line)
    assert (told[1] if told else None) == loss
    heard: list[Printed] = []
    Words(heard.append, lambda: 0.0).take(line.encode() + b"\n")
    assert [each.loss for each in heard if each.loss is not None] == ([loss] if loss is not None else [])


def test_a_validation_does_not_replace_the_loss_of_its_step(tmp_path: Path) -> None:
    lines = [line for step in range(8) for line in (f"step {step} loss: 3.0", f"step {step} validation loss: 9.0")]
    assert losses(read(tmp_path, lines).launches[0]) == dict.fromkeys(range(8), 3.0)
    timed = [TIMERS, "loss: 3.0", "validation loss: 9.0"] * 3
    assert losses(read(tmp_path, timed).launches[0]) == dict.fromkeys(range(3), 3.0)
    summed = [*trainer(3.0), str({"train_runtime": 3.3, "train_loss": 2.8})]
    assert len(losses(read(tmp_path, summed).launches[0])) == 5


def test_a_loss_belongs_to_the_timers_of_its_step_behind_or_ahead(tmp_path: Path) -> None:
    steps = range(1, 5)
    ahead = [line for step in steps for line in (f"step {step} loss: {step}.0", TIMERS)]
    behind = [line for step in steps for line in (TIMERS, f"step {step} loss: {step}.0")]
    one, two = (list(losses(read(tmp_path, lines).launches[0]).values()) for lines in (ahead, behind))
    assert one == two == [1.0, 2.0, 3.0, 4.0]
    # Two micro-batches: the step's loss is their mean, and no figure of another step.
    micro = [line for step in steps for line in (f"loss: {step - 0.5}", f"loss: {step + 0.5}", TIMERS)]
    found = read(tmp_path, micro)
    assert list(losses(found.launches[0]).values()) == [1.0, 2.0, 3.0, 4.0] and "mean" in "\n".join(found.notes)
    # Another rank's timers are no timers of this one.
    ranks = [f"[Rank 0] {TIMERS}", "[Rank 1] step 1 loss: 3.0", f"[Rank 0] {TIMERS}", "[Rank 1] step 2 loss: 2.5"]
    assert losses(read(tmp_path, ranks).launches[0], 1) == {1: 3.0, 2: 2.5}


def test_losses_of_other_names_are_not_mixed_whatever_their_order(tmp_path: Path) -> None:
    plain = [f"step {step} loss: {step}.0" for step in range(1, 5)]
    other = [f"step {step} kl loss: 0.5" for step in range(1, 5)]
    expected = {step: float(step) for step in range(1, 5)}
    for order in ((plain, other), (other, plain)):
        mixed = [line for pair in zip(*order, strict=True) for line in pair]
        assert losses(read(tmp_path, mixed).launches[0]) == expected
        timed = list(
            losses(
                read(tmp_path, [each for line in zip(*order, strict=True) for each in (TIMERS, *line)]).launches[0]
            ).values()
        )
        assert timed == list(expected.values())
    two = [f"step {step} {name} loss: {loss}" for step in range(3) for name, loss in (("D", 0.5), ("G", 7.0))]
    assert losses(read(tmp_path, two).launches[0]) == dict.fromkeys(range(3), 0.5)
    one = [f"lr {step + 1}e-4 loss: 2.0" for step in range(3)] + ["step5 loss: 2.0", "step6 loss: 2.0"]
    assert losses(read(tmp_path, one).launches[0]) == dict.fromkeys(range(5), 2.0)


def test_epochs_that_count_from_the_beginning_are_counted_on(tmp_path: Path) -> None:
    lines = [f"step {step} loss: {9 - epoch}.{step % 10}" for epoch in range(3) for step in range(100)]
    found = read(tmp_path, lines)
    told = losses(found.launches[0])
    assert list(told) == list(range(300)) and told[5] == 9.5 and told[105] == 8.5 and told[299] == 7.9
    assert any("begin again" in note for note in found.notes)
    # What goes on from a checkpoint is trained again: the last value is the training's. A late rank is no such thing.
    resumed = [f"step {step} loss: 3.0" for step in range(100)] + [f"step {step} loss: 2.0" for step in range(20, 120)]
    assert losses(read(tmp_path, resumed).launches[0]) == {step: 3.0 if step < 20 else 2.0 for step in range(120)}
    late = [f"step {step} loss: {value}" for step, value in ((1, 3.0), (2, 2.0), (1, 4.0), (3, 1.0), (2, 2.0))]
    assert losses(read(tmp_path, late).launches[0]) == {1: 3.5, 2: 2.0, 3: 1.0}
    tenth = [line.replace("step ", "step 1").replace(" loss", "0 loss") for line in late]
    assert losses(read(tmp_path, tenth).launches[0]) == {110: 3.5, 120: 2.0, 130: 1.0}


def test_a_time_or_a_micro_step_is_no_number_of_a_step(tmp_path: Path) -> None:
    for form in ("epoch 1 iter: 0.35s loss: {}", "micro step 0 loss: {}", "iter: 12ms loss: {}"):
        told = losses(read(tmp_path, [form.format(value) for value in (3.0, 2.0, 1.0)]).launches[0])
        assert told == {0: 3.0, 1: 2.0, 2: 1.0}


def test_one_file_is_not_two_ranks(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text("\n".join(trainer(3.0)))
    (tmp_path / "b.log").symlink_to("a.log")
    with pytest.raises(InputError, match=r"b.log: is given twice"):
        readers.read([tmp_path / "a.log", tmp_path / "b.log"])


def test_two_summaries_of_one_rank_or_of_two_trainings_are_refused(tmp_path: Path) -> None:
    def summary(name: str, rank: int, world: int) -> Path:
        rows = {"all_reduce | [Caller Func: a]": {"1000": {"count": 3, "total_latency_ms": 6.0}},
                "all_reduce | [Caller Func: b]": {"1000": {"count": 1, "total_latency_ms": 2.0}}}  # fmt: skip
        body = {"summary": rows, "straggler_analysis": None, "metadata": {"world_size": world, "rank": rank}}
        (tmp_path / name).write_text(json.dumps(body))
        return tmp_path / name

    found = readers.read([summary("a.json", 0, 4), summary("b.json", 1, 4)], deepspeed="0.17.6")
    rows = [rank.collectives for rank in found.launches[0].ranks]
    assert [[(row.count, row.seconds) for row in each] for each in rows] == [[(4, 0.008)]] * 2
    with pytest.raises(InputError, match="a second summary of rank 0"):
        readers.read([summary("a.json", 0, 4), summary("b.json", 0, 4)])
    with pytest.raises(InputError, match="of 4 and 8 ranks"):
        readers.read([summary("a.json", 0, 4), summary("b.json", 1, 8)])
