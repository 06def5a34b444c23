"""Measured, not believed: what DeepSpeed holds in the `cpu` image, against what the formulae say that it holds.

On the CPU accelerator "GPU" and host are the same memory, so what a rank holds between two steps is the sum of both. No
block is page-locked there: what rounding costs on a GPU host is not measured here. ZeRO-0 is left out.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from envbuild.engines import ContainerSpec, DockerEngine
from envbuild.engines.types import Mount
from envbuild.facts import load
from envbuild.sizing import Card, Dtype, Machine, Place, Setup, Shape, cards, known
from envbuild.sizing.host import checkpoint
from envbuild.sizing.shape import Block, Weight
from envbuild.sizing.states import states

HERE = Path(__file__).parent
RANKS, BUCKET = 2, 100_000
TABLES, ROWS, LAYERS, WIDTH = 6, 4096, 2, 768
CPU = Place.CPU


SETUPS = {
    "bf16, offload": Setup(stage=3, optimizer=CPU, parameters=CPU, accumulation=2),
    "bf16, offload, fp32 accumulation": Setup(
        stage=3, optimizer=CPU, parameters=CPU, accumulation=2, accumulation_dtype=Dtype.FP32
    ),
    "fp32, offload": Setup(stage=3, optimizer=CPU, parameters=CPU, accumulation=2, dtype=Dtype.FP32),
    "bf16": Setup(stage=3, accumulation=2),
    "fp32": Setup(stage=3, dtype=Dtype.FP32),
    "ZeRO-2, bf16, offload": Setup(stage=2, optimizer=CPU, accumulation=2),
    "ZeRO-2, fp32, offload, one micro step": Setup(stage=2, optimizer=CPU, dtype=Dtype.FP32),
    "ZeRO-2, bf16": Setup(stage=2, accumulation=2),
    "ZeRO-2, fp32": Setup(stage=2, dtype=Dtype.FP32),
}
NOTHING = "nothing"
SAVED = ("bf16, offload", "ZeRO-2, bf16, offload")
SETUPS = {name: replace(setup, reduce_bucket=BUCKET, persistence=0, overlap=False) for name, setup in SETUPS.items()}


@pytest.fixture(scope="module")
def measured(engine: DockerEngine, proven: dict[str, object]) -> dict[str, dict[str, Any]]:
    """Every case, trained for two steps on two ranks; the first is a model of next to nothing."""
    cases = [_case(SETUPS["bf16"], checkpoint=False, rows=8, width=16)]
    cases += [_case(setup, checkpoint=name in SAVED) for name, setup in SETUPS.items()]
    spec = ContainerSpec(
        image=str(proven["id"]), argv=("python", "/sizing/train.py", str(RANKS), json.dumps(cases)), network="none",
        mounts=(Mount(source=HERE / "sizing", target="/sizing"),),
    )  # fmt: skip
    done = engine.run(spec, timeout=2400)
    assert done.exit_code == 0, f"after {done.seconds:.0f} s:\n{done.stderr[-4000:]}"
    return dict(zip((NOTHING, *SETUPS), json.loads(done.stdout.splitlines()[-1]), strict=True))


@pytest.mark.parametrize("name", SETUPS)
def test_a_rank_holds_what_the_formulae_say(name: str, measured: dict[str, dict[str, Any]]) -> None:
    found = measured[name]
    shape, machine = _shape(found["tensors"]), Machine(card=_card(), gpus=RANKS)
    expected = _predicted(shape, SETUPS[name], machine)
    assert shape.parameters > 20_000_000
    for rank, nothing in zip(found["ranks"], measured[NOTHING]["ranks"], strict=True):
        # Some 55 MB come with the first engine, whatever it trains: with a real model they are no part worth naming.
        process = rank["process"] - nothing["process"]
        told = f"{rank['held']:,} of tensors, {process:,} of the process, {expected:,.0f} expected"
        # ZeRO-2 accumulates a tensor that crosses a rank's border whole, on both sides: up to 2 % here.
        assert rank["held"] == pytest.approx(expected, rel=0.03), told
        assert process == pytest.approx(expected, rel=0.10), told


@pytest.mark.parametrize("name", SAVED)
def test_a_checkpoint_takes_what_the_formulae_say(name: str, measured: dict[str, dict[str, Any]]) -> None:
    shape = _shape(measured[name]["tensors"])
    assert measured[name]["checkpoint"] == pytest.approx(checkpoint(shape, SETUPS[name]).total, rel=0.01)


def _predicted(shape: Shape, setup: Setup, machine: Machine) -> float:
    """What one rank holds between two steps: without the gradients that ZeRO-2 gives back after each."""
    kept = states(shape, setup, machine)
    resting = [part for part in (*kept.gpu, *kept.host) if not (setup.stage == 2 and part.name == "gradients")]
    bucket = setup.dtype.bytes * BUCKET if setup.stage == 3 else 0
    return sum(part.value for part in resting) + bucket


def _case(setup: Setup, *, checkpoint: bool, rows: int = ROWS, width: int = WIDTH) -> dict[str, Any]:
    zero: dict[str, Any] = {
        "stage": setup.stage, "reduce_bucket_size": BUCKET, "allgather_bucket_size": BUCKET, "overlap_comm": False,
    }  # fmt: skip
    if setup.stage == 3:
        zero |= {"stage3_param_persistence_threshold": 0, "stage3_max_live_parameters": 0,
                 "stage3_max_reuse_distance": 0, "stage3_prefetch_bucket_size": 0}  # fmt: skip
    if setup.optimizer is CPU:
        zero["offload_optimizer"] = {"device": "cpu"}
    if setup.parameters is CPU:
        zero["offload_param"] = {"device": "cpu"}
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": setup.accumulation,
        "zero_optimization": zero, "zero_allow_untested_optimizer": True,
    }  # fmt: skip
    if setup.dtype is Dtype.BF16:
        config["bf16"] = {"enabled": True}
    if setup.accumulation_dtype is not None:
        config["data_types"] = {"grad_accum_dtype": setup.accumulation_dtype.value}
    return {
        "ds_config": config, "tables": TABLES, "rows": rows, "layers": LAYERS, "width": width, "steps": 2,
        "checkpoint": checkpoint,
    }  # fmt: skip


def _shape(tensors: list[tuple[str, int]]) -> Shape:
    """The model that was trained, tensor by tensor."""
    weights = tuple(Weight(name=name, size=size) for name, size in tensors)
    return replace(known.find(load(), "350m"), blocks=(Block(name="layer", count=1, weights=weights),))


def _card() -> Card:
    return cards.find(load(), "a100-80gb")
