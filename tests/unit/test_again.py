"""The command that measures a training again starts that training: read back, it asks for what was asked for before."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
import typer

from envbuild.cli import application, launching, wishing
from envbuild.pipeline.profile_made import made_of, wish_of
from envbuild.pipeline.profile_wish import Wish
from envbuild.pipeline.training_config import training_config
from envbuild.profile.again import in_turns, start_of
from envbuild.profile.document import Measurement
from measured import key, launch, measurement

OWN = {
    "optimizer": {"type": "AdamW", "params": {"lr": 3e-4, "betas": [0.9, 0.95]}},
    "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu", "pin_memory": True}},
    "train_micro_batch_size_per_gpu": 4, "communication_data_type": "fp32", "a section": {"one.two": 3, "4": "5"},
}  # fmt: skip
WISHES = {
    "usual": Wish(),
    "other": Wish(model="1b", length=128, steps=40, warmup=7, seed=3, ranks=4, threads=2, slow_data=(250.0, 1),
                  straggle=(5.0, None), checkpoint_every=3, gpus=("0", "1"), timeout=90.0,
                  env=("OMP_WAIT_POLICY=active", "NCCL_X=b c"),
                  settings=("zero_optimization.stage=2", "gradient_clipping=1.0")),
    "own": Wish(ds_config=OWN, ranks=2),
    "disk": Wish(disk=Path("/mnt/x"), settings=("zero_optimization.offload_optimizer.device=nvme",)),
}  # fmt: skip


def config_of(wish: Wish) -> dict[str, Any]:
    return training_config(
        wish.ds_config, accelerator="cpu", settings=wish.settings, micro_batch=wish.micro_batch,
        disk="/run/disk" if wish.disk else None,
    ).values  # fmt: skip


def measured(wish: Wish, *, image: str | None = "envbuild/cpu:validated", **more: Any) -> Measurement:
    made = made_of(wish, config_of(wish), image=image, python=None if image else "/usr/bin/python3")
    return measurement(launch([1.0]), origin={"kind": "probe", "made": made.model_dump()}, key=key(**more))


def read(command: str | None) -> tuple[dict[str, Any], Wish]:
    """What profile makes of a command line: everything that was typed, and what is to be measured."""
    program, name, *words = shlex.split(command or "")
    group: Any = typer.main.get_command(application(["profiling"]))
    params = group.commands["profile"].make_context("profile", words).params
    assert (program, name, params["command"] or None) == ("envbuild", "profile", None)
    wish = wishing.wish(
        passes=None, model=params["model"], ds_config=params["ds_config"], settings=params["settings"],
        steps=params["steps"], warmup=params["warmup"], length=params["seq"], micro_batch=params["micro_batch"],
        env=params["env"], slow_data=wishing.slow(params["data"]),
        straggle=wishing.delay("--straggle", params["straggle"]), checkpoint_every=params["checkpoint_every"],
        seed=params["seed"], ranks=params["ranks"], threads=params["threads"],
        gpus=tuple((params["gpus"] or "all").split(",")), label=params["label"], disk=params["disk"],
        timeout=params["timeout"],
    )  # fmt: skip
    return params, wish


@pytest.mark.parametrize("name", WISHES)
def test_the_same_training_is_started_with_one_thing_changed(name: str) -> None:
    before = measured(WISHES[name])
    params, wish = read(start_of(before).command((("--pass", "trace"),)))
    assert params["image"] == "envbuild/cpu:validated" and params["chosen"] == ["trace"] and params["row"] is None
    made = before.origin.made
    assert made is not None and config_of(wish) == made.ds_config
    again = wish_of(made)
    for field in ("model", "length", "steps", "warmup", "seed", "ranks", "threads", "slow_data", "straggle",
                  "checkpoint_every", "gpus", "env", "disk", "timeout"):  # fmt: skip
        assert getattr(wish, field) == getattr(again, field), field
    _, other = read(start_of(before).command((("--set", "zero_optimization.stage=1"),)))
    assert made.ds_config is not None
    expected = {**made.ds_config, "zero_optimization": {**made.ds_config["zero_optimization"], "stage": 1}}
    assert config_of(other) == expected


def test_what_is_changed_is_not_said_twice() -> None:
    start = start_of(measured(WISHES["other"]))
    line = start.command((("--env", "OMP_NUM_THREADS=8"), ("--env", "NCCL_X=d"))) or ""
    assert "--threads" not in line and line.count("--env NCCL_X=") == 1 and "--env OMP_WAIT_POLICY=active" in line
    assert "slow:" not in (start.command((("--data", "synthetic"),)) or "slow:")
    every = start.command((("--checkpoint-every", "30"),)) or ""
    assert every.count("--checkpoint-every") == 1 and every.endswith("--checkpoint-every 30 --json")


def test_a_value_that_is_kept_nowhere_comes_from_the_users_shell() -> None:
    line = start_of(measured(Wish(env=("HF_TOKEN=hf_abc",)))).command(()) or ""
    assert line == "envbuild profile envbuild/cpu:validated --env HF_TOKEN --json"


def test_other_machines_and_names() -> None:
    python = start_of(measured(Wish(ranks=2), image=None)).command(()) or ""
    assert python == "envbuild profile --python /usr/bin/python3 --accelerator cpu --ranks 2 --json"
    team = start_of(measured(Wish(), image="team/train:2", hardware={"cpu": "EPYC", "label": "lab 1"})).command(())
    assert team == "envbuild profile team/train:2 --label 'lab 1' --row cpu --json"
    nodes = start_of(measured(Wish(), nodes=2, world_size=6)).command((("--pass", "comms"),))
    spread = "--executor slurm --nodes 2 --ranks-per-node 3"
    assert nodes == f"envbuild profile envbuild/cpu:validated {spread} --pass comms --json"


@pytest.mark.parametrize(("kind", "why"), [("command", "your own"), ("log", "from a log"), ("probe", "does not say")])
def test_what_envbuild_did_not_start_it_cannot_start_again(kind: str, why: str) -> None:
    body = measurement(launch([1.0]), origin={"kind": kind}, config={"zero_optimization": {"stage": 1}, "wandb": {}})
    start = start_of(body)
    assert start.command((("--pass", "comms"),)) is None and why in start.why
    _, wish = read(start_of(body, "cpu").command(()))
    assert (config_of(wish)["zero_optimization"]["stage"] == 1) == (kind == "log")


def wishes(command: str | None) -> tuple[Wish, Wish]:
    _, name, *words = shlex.split(command or "")
    group: Any = typer.main.get_command(application(["measures"]))
    params = group.commands[name].make_context(name, words).params
    assert (params["base"], params["candidate"]) == ("team/a:1", "team/b:1")
    assert ("config" in (params["differs"] or ())) == bool(params["candidate_settings"])
    return launching.wishes(
        candidate_settings=params["candidate_settings"], settings=params["settings"], ds_config=params["ds_config"],
        env=params["env"], model=params["model"], length=params["seq"], steps=params["steps"],
        warmup=params["warmup"], ranks=params["ranks"], threads=params["threads"],
        declared="config" in (params["differs"] or ()),
    )  # fmt: skip


def test_two_measurements_are_launched_in_turns_as_they_were_made() -> None:
    asked = {"model": "1b", "length": 128, "steps": 60, "warmup": 9, "ranks": 4, "threads": 2, "env": ("NCCL_X=b c",)}
    before = measured(Wish(**asked, ds_config=OWN), image="team/a:1")
    after = measured(Wish(**asked, ds_config=OWN, settings=("zero_optimization.stage=3",)), image="team/b:1")
    base, candidate = wishes(in_turns(before, after)[0])
    for wish, side in ((base, before), (candidate, after)):
        assert side.origin.made is not None and config_of(wish) == side.origin.made.ds_config
        assert {name: getattr(wish, name) for name in asked} == asked
    base, candidate = wishes(in_turns(measured(Wish(), image="team/a:1"), measured(Wish(), image="team/b:1"))[0])
    assert base == candidate and base.steps == 40, "twenty steps, profile's own, tell little of an image"


@pytest.mark.parametrize(
    ("after", "why"),
    [
        (measured(Wish(seed=4)), "started differently (--seed 4)"),
        (measured(Wish(), nodes=2), "on several"),
        (measured(Wish(), image=None), "an interpreter"),
        (measurement(launch([1.0]), origin={"kind": "command"}), "a training of your own"),
    ],
)
def test_what_compare_cannot_launch_is_said(after: Measurement, why: str) -> None:
    line, said = in_turns(measured(Wish()), after)
    assert line is None and why in said
    line, said = in_turns(measured(Wish(seed=4)), measured(Wish(seed=4)))
    assert line is None and "compare does not take --seed 4" in said
