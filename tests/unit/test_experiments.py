"""Experiments on a bottleneck: which are run, what is told of each before, and what their launches come to."""

from __future__ import annotations

import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from envbuild.errors import GateError, InputError
from envbuild.pipeline import experimenting, profiling, sessions
from envbuild.pipeline.profile_made import made_of, wish_of
from envbuild.pipeline.profile_wish import Wish
from envbuild.pipeline.training_config import training_config
from envbuild.profile import experiments, files
from envbuild.profile.bottleneck import diagnose
from envbuild.profile.document import Delay, Made, Measurement
from envbuild.profile.experiments import Change, Experiment, change_of
from measured import key, launch, measurement, turns

HERE = "EPYC"
CONFIG = training_config(None, accelerator="cpu").values


def slow(made: Made | None = None, *, kind: str = "probe", **more: Any) -> Measurement:
    """Half of each step waits for data, and a quarter is the optimizer's."""
    parts = {"data_wait": [0.5] * 6, "optimizer": [0.25] * 6, "forward": [0.25] * 6}
    made = made or Made(
        image="envbuild/cpu:validated", ds_config=CONFIG, steps=5, warmup=1, slow_data=Delay(milliseconds=250)
    )
    origin: dict[str, Any] = {"kind": kind}
    if kind == "probe":
        origin["made"] = made.model_dump()
    ranks = [
        {"rank": number, "steps": {"number": list(range(6)), "seconds": [1.0] * 6, "parts": parts}} for number in (0, 1)
    ]
    body = {"ranks": ranks, "warmup": 1, "communication": {"import_seconds": 3.0, "startup_seconds": 1.0}}
    return measurement(body, origin=origin, key=key(**more), notes=["OpenMP threads of a rank: 1"])


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """An engine that has one image; nothing is started."""
    monkeypatch.setenv("ENVBUILD_HOME", str(tmp_path))
    monkeypatch.setattr(experimenting, "cpu_name", lambda: HERE)

    def subject(bench: Any, reference: str, row: str | None, wish: Wish) -> Any:
        if reference != "envbuild/cpu:validated":
            raise GateError(f"there is no image {reference}")
        return SimpleNamespace(
            ref=reference, info=SimpleNamespace(id=key()["image"]), env=SimpleNamespace(name="cpu"),
            config=training_config(wish.ds_config, accelerator="cpu", settings=wish.settings),
            decision=SimpleNamespace(gpus=()),
        )  # fmt: skip

    monkeypatch.setattr(profiling, "subject", subject)
    monkeypatch.setattr(profiling, "foreseen", lambda bench, subject, wish: ("run", str(wish.slow_data[0])))
    told: list[Any] = []
    return SimpleNamespace(sink=told.append, told=told, engine=SimpleNamespace(local=True))


class Training:
    """Launches of which each takes what its wish costs; one of them may be the last, or fail."""

    def __init__(self, until: int | None = None, *, fails: bool = False) -> None:
        self.made: list[Wish] = []
        self.until = until
        self.fails = fails

    def __call__(self, bench: Any, subject: Any, wish: Wish) -> Measurement:
        if len(self.made) == self.until:
            raise KeyboardInterrupt
        if self.fails:
            raise GateError("rank 0: no")
        self.made.append(wish)
        seconds = 0.5 + 2 * wish.slow_data[0] / 1000 + 0.001 * len(self.made)
        return measurement(*(launch([seconds] * 5, **{"pass": name}) for name in wish.passes))


def trials(bench: Any, measured: Measurement, target: str | None = None, **more: Any) -> Any:
    return experimenting.trials(bench, measured, diagnose(measured).found, target, 5, **{"fresh": False, **more})


def test_what_a_training_was_started_with_comes_back_and_its_secrets_stay_away() -> None:
    wish = Wish(
        steps=7, seed=3, threads=2, length=32, slow_data=(250.0, 1), ds_config=CONFIG, disk=Path("/mnt/x"), timeout=9.0,
        env=("OMP_WAIT_POLICY=active", "HF_TOKEN=hf_abcdef", "PROXY=http://me:word@proxy"), passes=("timing", "comms"),
    )  # fmt: skip
    body = measurement(launch([1.0]), origin={"kind": "probe", "made": made_of(wish, CONFIG, image="a:1").model_dump()})
    text = str(files.document(body))
    assert "hf_abcdef" not in text and "word" not in text and "OMP_WAIT_POLICY=active" in text
    made = files.measurement(files.document(body), "again").origin.made
    assert made is not None and made.ds_config == CONFIG
    again = wish_of(made)
    for name in ("steps", "seed", "threads", "length", "slow_data", "disk", "model", "gpus", "timeout"):
        assert getattr(again, name) == getattr(wish, name), name
    # Given again, the config that was made is left as it is: the key of both measurements is one.
    assert training_config(again.ds_config, accelerator="cpu").values == CONFIG


def test_every_change_is_told_and_what_is_so_already_is_not_run(bench: Any) -> None:
    ready, left = trials(bench, slow())
    told = {(one.name, one.base, one.candidate) for trial in ready for one in trial.experiment.changed}
    assert told == {
        ("data", "slow:250", "synthetic"), ("OMP_NUM_THREADS", "1", "4"), ("gradient_accumulation_steps", "2", "8"),
    }  # fmt: skip
    assert not left and ready[0].experiment.rule == "data"
    base, changed = (side.wish for side in ready[0].session.sides)
    assert base.slow_data == (250.0, None) and changed.slow_data == (0.0, None) and base.ds_config == CONFIG
    _, left = trials(bench, slow(Made(image="envbuild/cpu:validated", ds_config=CONFIG, env=("OMP_NUM_THREADS=4",))))
    assert [(one.rule, one.reason) for one in left] == [
        ("data", "the training is like that already"), ("optimizer", "the training is like that already"),
    ]  # fmt: skip


def test_what_only_looks_closer_and_what_is_unknown_is_no_experiment() -> None:
    assert change_of((("--pass", "comms"),)) == Change()
    assert change_of((("--env", "NCCL_DEBUG=INFO"), ("--pass", "comms"))) == Change()
    pairs = (("--set", "a.b=1"), ("--env", "X=2"), ("--threads", "4"), ("--checkpoint-every", "10"))
    assert change_of(pairs) == Change(settings=("a.b=1",), env=("X=2",), threads=4, checkpoint_every=10)
    for pair in (("--gpus", "0"), ("--data", "slow:5"), ("--nodes", "2")):
        assert change_of((pair,)) is None, pair


@pytest.mark.parametrize(
    ("measured", "reason"),
    [
        (slow(nodes=4), "4 nodes"),
        (slow(hardware={"cpu": "Xeon"}), "another host (Xeon)"),
        (slow(Made(python="/usr/bin/python3")), "under /usr/bin/python3"),
        (slow(Made(image="envbuild/cpu:validated", env=("HF_TOKEN=***",))), "with HF_TOKEN, and values of"),
        (slow(kind="command"), "training of your own"),
    ],
)
def test_what_cannot_run_here_is_listed_with_its_command(bench: Any, measured: Measurement, reason: str) -> None:
    ready, left = trials(bench, measured)
    assert not ready and len(left) == 3
    assert all(reason in one.reason for one in left)
    own = measured.origin.kind == "command"
    assert all(
        one.change and (one.command is None if own else one.command.startswith("envbuild profile ")) for one in left
    )


def test_of_a_file_an_image_has_to_be_named(bench: Any) -> None:
    log = slow(kind="log")
    with pytest.raises(InputError, match="does not say which image") as caught:
        trials(bench, log)
    assert "--target" in caught.value.hint
    ready, left = trials(bench, log, "envbuild/cpu:validated")
    assert [trial.experiment.rule for trial in ready] == ["optimizer", "optimizer"]
    assert [one.rule for one in left] == ["data"] and "not the training that was measured" in bench.told[0].message


def test_the_plan_has_every_launch_in_its_order_and_a_least_time(bench: Any) -> None:
    ready, _ = trials(bench, slow())
    assert [argv[1] for argv in experimenting.foreseen(bench, ready[0])][:4] == ["250.0", "0.0", "0.0", "250.0"]
    # Three experiments of ten launches: imports, coming together, and six steps of a second.
    assert experimenting.seconds(slow(), ready) == pytest.approx(3 * 10 * (3 + 1 + 6))
    # A measurement that knows the whole run counts the container and DeepSpeed's own start, too.
    told = slow()
    whole = told.launches[0].model_copy(update={"seconds": 9.0, "outside": 12.0})
    assert experimenting.seconds(told.model_copy(update={"launches": (whole,)}), ready) == pytest.approx(3 * 10 * 21)


def test_an_interrupted_experiment_goes_on_and_a_finished_one_is_told_again(bench: Any) -> None:
    (trial, *_), _ = trials(bench, slow())
    with pytest.raises(KeyboardInterrupt):
        experimenting.run(bench, trial, Training(until=4))
    rest = Training()
    (trial, *_), _ = trials(bench, slow())
    found = experimenting.run(bench, trial, rest)
    assert len(rest.made) == 6 and found.verdict == "confirmed" and found.reason == "faster by 50%"
    base, candidate = (files.read(path) for path in trial.files)
    assert len([each for each in base.launches if each.pass_ == "timing"]) == 5
    assert experiments.answer(trial.experiment, base, candidate) == found
    (again, *_), _ = trials(bench, slow())
    assert experimenting.run(bench, again, Training(fails=True)) == found and again.session.left() == []
    (new, *_), _ = trials(bench, slow(), fresh=True)
    assert len(new.session.left()) == 10
    assert sessions.session_of(*trial.session.sides, 5).name != trial.session.name, "for compare the question is new"


def test_an_experiment_that_was_killed_before_it_was_written_down_is_answered_without_a_launch(
    bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (trial, *_), _ = trials(bench, slow())
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(experimenting.experiments, "answer", killed)
        patch.setattr(experimenting.sessions, "finish", killed)
        experimenting.run(bench, trial, Training())
    (again, *_), _ = trials(bench, slow())
    assert again.session.name == trial.session.name and again.session.left() == []
    assert experimenting.run(bench, again, Training(fails=True)).verdict == "confirmed"


def killed(*_: Any) -> None:
    raise KeyboardInterrupt


def test_a_training_that_fails_is_an_answer(bench: Any) -> None:
    (trial, *_), _ = trials(bench, slow())
    found = experimenting.run(bench, trial, Training(fails=True))
    assert (found.verdict, found.reason) == ("failed", "rank 0: no") and not trial.files[0].exists()


# Medians of five launches in turns, each as a shared host gives them.
NOISE = [1.02, 0.97, 1.05, 0.99, 1.01]
OTHER = [0.99, 1.03, 0.98, 1.04, 1.0]


def asked(share: float | None, rule: str = "data") -> Experiment:
    return Experiment(rule=rule, command="", change=Change(), share=share, changed=())


@pytest.mark.parametrize(
    ("share", "factor", "verdict", "said"),
    [
        (0.5, 0.5, "confirmed", "faster by 50%"),
        (0.5, 1.0, "not it", "at least 25% faster would confirm it"),
        (0.5, 0.9, "not it", "faster by 1"),
        (0.5, 1.6, "not it", "slower by"),
        (None, 0.99, "inconclusive", "so far"),
        (0.5, 0.77, "inconclusive", "either side"),
    ],
)
def test_a_finding_is_confirmed_where_half_of_its_share_comes_back(
    share: float | None, factor: float, verdict: str, said: str
) -> None:
    base = measurement(*turns("base", NOISE))
    found = experiments.answer(asked(share), base, measurement(*turns("candidate", [factor * each for each in OTHER])))
    assert found.verdict == verdict and said in found.reason, found


def test_nothing_is_confirmed_by_noise() -> None:
    """Equal sides on a loud host, 300 times and three shares: a cause that is none is called one at most by chance."""
    chance = random.Random(7)
    for share in (None, 0.2, 0.6):
        called = 0
        for _ in range(300):
            sides = [
                measurement(*turns(side, [chance.lognormvariate(0, 0.12) for _ in range(5)]))
                for side in ("base", "candidate")
            ]
            called += experiments.answer(asked(share), *sides).verdict == "confirmed"
        assert called <= 6, (share, called)


def test_fewer_rounds_than_can_decide_decide_nothing() -> None:
    sides = [measurement(*turns(side, [value] * 4)) for side, value in (("base", 1.0), ("candidate", 0.2))]
    found = experiments.answer(asked(0.8), *sides)
    assert found.verdict == "inconclusive" and "5 is the fewest" in found.reason and found.rounds == 4


def test_steps_of_another_size_are_judged_by_the_sample() -> None:
    """Four times the work in three times the time: the step is slower, and the training is faster."""
    base = measurement(*turns("base", NOISE, samples_per_step=8))
    large = measurement(*turns("candidate", [3 * each for each in NOISE], samples_per_step=32))
    found = experiments.answer(asked(0.4, "optimizer"), base, large)
    assert found.verdict == "confirmed" and found.reason == "faster by 25% for each sample"
    unknown = measurement(*turns("candidate", NOISE))
    assert experiments.answer(asked(0.4), base, unknown).verdict == "inconclusive"


def test_checkpoints_in_a_few_steps_are_seen_by_the_mean() -> None:
    def side(name: str, saving: float) -> Measurement:
        made = turns(name, NOISE)
        for each in made:
            for rank in each["ranks"]:
                rank["steps"]["seconds"][-1] += saving
        return measurement(*made)

    found = experiments.answer(asked(0.4, "checkpoint"), side("base", 4.0), side("candidate", 0.0))
    assert found.verdict == "confirmed"
    assert experiments.answer(asked(0.4), side("base", 4.0), side("candidate", 0.0)).verdict == "not it"


def test_what_the_change_makes_worse_and_where_the_configs_differ_is_said() -> None:
    # From the fifth step on the candidate's losses are no numbers.
    losses = {"base": [2.0, 1.9, 1.8, 1.7, 1.6], "candidate": [2.0, 1.9, 1.8, 1.7, "nan"]}
    sides = []
    for name, factor in (("base", 1.0), ("candidate", 0.5)):
        made = turns(name, [factor * each for each in NOISE], seed=1)
        for each in made:
            for rank in each["ranks"]:
                rank["steps"]["loss"] = losses[name]
        sides.append(measurement(*made, config={"zero_optimization": {"stage": 3 if name == "base" else 2}}))
    found = experiments.answer(asked(0.5), *sides)
    assert found.verdict == "confirmed" and any(each.startswith("losses") for each in found.costs)
    assert [(each.name, each.base, each.candidate) for each in found.config] == [("zero_optimization.stage", "3", "2")]
