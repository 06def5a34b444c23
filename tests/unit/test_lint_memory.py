"""Whether a model fits, on real shapes: errors stand on what DeepSpeed allocates, the rest is a warning at most."""

from __future__ import annotations

import json
from typing import Any

import pytest

from envbuild import facts
from envbuild.dsconfig.context import DEEPSPEED, HF_TRAINER, Context, Gpu, Model, Row
from envbuild.dsconfig.document import parse
from envbuild.dsconfig.linting import lint
from envbuild.model.finding import Finding
from envbuild.sizing import cards, known

GIB = 1 << 30
FACTS = facts.load()
CPU = {"device": "cpu", "pin_memory": True}
OFFLOADED = {"stage": 3, "offload_optimizer": CPU, "offload_param": CPU}


def memory(
    zero: dict[str, Any], model: str = "llama-2-7b", gpu: str = "a100-80gb", ram: int = 1024, gpus: int = 8,
    launcher: str = DEEPSPEED, shm: int = 8, micro: int | str = 1, accumulated: str | None = None,
) -> dict[str, Finding]:  # fmt: skip
    card, shape = cards.find(FACTS, gpu), known.find(FACTS, model)
    config = {"train_micro_batch_size_per_gpu": micro, "bf16": {"enabled": True}, "zero_optimization": zero}
    if accumulated is not None:
        config["data_types"] = {"grad_accum_dtype": accumulated}
    context = Context(
        deepspeed="0.19.8", launcher=launcher, gpus=gpus, ram_bytes=ram * GIB,
        gpu=Gpu(name=card.title, sm=80, memory_bytes=card.memory),
        model=Model(parameters=shape.parameters, shape=shape),
        row=Row(name="row", accelerator="cuda", ops=("cpu_adam",), shm_bytes=shm * GIB >> 3),
    )  # fmt: skip
    found = [each for each in lint(parse(json.dumps(config)), context) if each.rule.startswith(("memory.", "lint."))]
    assert all(each.line and each.fix and each.source for each in found)
    return {each.rule: each for each in found}


def test_what_fits_is_left_alone() -> None:
    assert memory({"stage": 3}, launcher=HF_TRAINER) == {}
    assert memory(OFFLOADED, launcher=HF_TRAINER) == {}


def test_states_that_are_larger_than_the_gpu_are_an_error() -> None:
    found = memory({"stage": 0})["memory.gpu"]
    assert found.severity.value == "error"
    assert "optimizer moments" in found.why
    assert memory({"stage": 0}, model="llama-2-7b", gpu="h200")["memory.gpu"].severity.value in ("error", "warning")


def test_what_is_done_already_is_not_advised() -> None:
    assert "a higher ZeRO stage, an offloaded optimizer, or" in memory({"stage": 0})["memory.gpu"].fix
    fix = memory({"stage": 3}, model="llama-2-70b", gpus=1)["memory.gpu"].fix
    assert fix.startswith("Take an offloaded optimizer, offloaded parameters, or more GPUs")
    fix = memory(OFFLOADED, launcher=HF_TRAINER, micro=64)["memory.gpu"].fix
    assert fix.startswith("Take a smaller micro-batch, shorter sequences, or more GPUs")


def test_what_rests_on_rules_of_thumb_is_a_warning() -> None:
    found = memory({"stage": 3}, launcher=HF_TRAINER, micro=32)
    assert found["memory.gpu"].severity.value == "warning"
    assert "4,096 tokens" in found["memory.gpu"].why and "taken as 1" not in found["memory.gpu"].why
    filled = memory({"stage": 3}, model="llama-2-70b", gpu="h100", gpus=16, launcher=HF_TRAINER, micro="auto")
    assert "train_micro_batch_size_per_gpu is taken as 1" in filled["memory.gpu"].why


def test_the_host_is_too_small_and_rounding_is_told() -> None:
    found = memory(OFFLOADED, ram=100)["memory.host"]
    assert found.severity.value == "error"
    assert "rounding" in found.message
    assert "memory.host" not in memory(OFFLOADED, ram=400)


def test_the_type_that_gradients_are_accumulated_in_counts() -> None:
    """2 bytes more for each of 6.74e9 parameters: 12.6 GiB, and 138 GiB become 155 with their rounding."""
    assert memory(OFFLOADED, ram=160, launcher=HF_TRAINER) == {}
    for said in ("fp32", "torch.float32"):
        assert "memory.host" in memory(OFFLOADED, ram=160, launcher=HF_TRAINER, accumulated=said)
    assert memory(OFFLOADED, ram=160, launcher=HF_TRAINER, accumulated="bf16") == {}


def test_loading_needs_more_than_training() -> None:
    found = memory({"stage": 3}, ram=200)
    assert found["memory.loading"].severity.value == "warning"
    assert "zero.Init" in found["memory.loading"].fix
    assert memory({"stage": 3}, ram=200, launcher=HF_TRAINER) == {}, "from_pretrained divides while it loads"


def test_shared_memory() -> None:
    assert memory({"stage": 3}, launcher=HF_TRAINER, shm=1)["memory.shm"].severity.value == "warning"


def test_a_guess_says_so() -> None:
    assert "guess" in memory({"stage": 3}, model="7b", launcher=HF_TRAINER)["memory.guessed"].message


@pytest.mark.parametrize("missing", ["gpu", "gpus", "model"])
def test_nothing_is_said_without_a_fact(missing: str) -> None:
    shape = known.find(FACTS, "llama-2-70b")
    about: dict[str, Any] = {
        "gpu": Gpu(name="a100", sm=80, memory_bytes=40 * GIB), "gpus": 8,
        "model": Model(parameters=shape.parameters, shape=shape), "ram_bytes": GIB,
    }  # fmt: skip
    del about[missing]
    config = {"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": True}}
    found = lint(parse(json.dumps(config)), Context(deepspeed="0.19.8", **about))
    assert not [each for each in found if each.rule.startswith(("memory.", "lint."))]
