"""What training takes: the worked example, what holds for every model and machine, and what the field gets wrong."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envbuild.facts import load
from envbuild.sizing import Card, Dtype, Machine, Need, Place, Setup, Shape, cards, hf, known
from envbuild.sizing.batch import largest, steps
from envbuild.sizing.changes import smallest
from envbuild.sizing.copies import NETWORK, TO_GPU, TO_HOST, per_step, times
from envbuild.sizing.gpu import layer_activations, per_gpu
from envbuild.sizing.host import ROUNDING, checkpoint, loading, nvme, per_host, rounded
from envbuild.sizing.ladder import FILLED, Rung, climb, first, tuned

FACTS = load()
GIB = 1 << 30
LLAMA = known.find(FACTS, "llama-2-7b")
SMALL = known.find(FACTS, "350m")
A100 = cards.find(FACTS, "a100-80gb")
NODE = Machine(card=A100, gpus=8, ram=1024 * GIB)
FULL = {"stage": 3, "optimizer": Place.CPU, "parameters": Place.CPU}


def test_the_worked_example() -> None:
    """Llama-2-7B on 8 x A100-80GB, bf16, 4096 tokens, recomputation: known beforehand, from another calculation."""
    one, eight = (climb(LLAMA, NODE, tuned(LLAMA, Setup(stage=0, micro_batch=size))) for size in (1, 8))
    assert first(one) is not None and first(eight) is not None
    assert _gib(_rung(one, "zero3").gpu) == pytest.approx(20, rel=0.07)
    assert _gib(_rung(eight, "zero3").gpu) == pytest.approx(39, rel=0.07)
    assert _gib(_rung(one, "offload-parameters").gpu) == pytest.approx(5.5, rel=0.05)
    assert _gib(_rung(eight, "offload-parameters").gpu) == pytest.approx(25, rel=0.05)
    host = _rung(one, "offload-parameters").host
    assert (host.total - host.part(ROUNDING)) / GIB == pytest.approx(125.5, abs=0.1)
    assert _gib(host) == pytest.approx(139, abs=0.5)


@pytest.mark.parametrize(
    ("config", "each"),
    [
        ({"model_type": "llama", "num_key_value_heads": 8}, 45.5),
        ({"model_type": "llama", "num_key_value_heads": 2, "intermediate_size": 1792}, 49),
        ({"model_type": "qwen2", "num_key_value_heads": 2, "intermediate_size": 2048}, 53),
        ({"model_type": "gpt_neox", "intermediate_size": 2048}, 32),
        ({"model_type": "mixtral", "num_key_value_heads": 2, "intermediate_size": 1024}, 61),
    ],
)
def test_what_a_layer_keeps_is_what_transformers_layers_keep(config: dict[str, Any], each: float) -> None:
    """Bytes of a token in units of the hidden size, as torch's hooks for saved tensors counted them in bf16."""
    plain = {"hidden_size": 512, "num_hidden_layers": 1, "num_attention_heads": 8, "intermediate_size": 1376}
    shape = hf.shape({**plain, "vocab_size": 1000, **config}, "c")
    assert 2 * layer_activations(shape) / shape.hidden == pytest.approx(each, rel=0.005)


@pytest.mark.parametrize(
    ("dtype", "accumulation", "each"),
    [(Dtype.BF16, None, 20), (Dtype.BF16, Dtype.FP32, 22), (Dtype.FP16, None, 20), (Dtype.FP32, None, 24)],
)
def test_full_offload_takes_20_to_24_bytes_a_parameter_and_not_8(
    dtype: Dtype, accumulation: Dtype | None, each: int
) -> None:
    setup = Setup(**FULL, dtype=dtype, accumulation_dtype=accumulation)
    host = per_host(LLAMA, setup, NODE)
    tensors = host.total - host.part(ROUNDING)
    assert tensors / LLAMA.parameters == pytest.approx(each, rel=1e-6)
    assert 0 <= host.part(ROUNDING) < tensors
    assert per_host(LLAMA, replace(setup, pinned=False), NODE).total < host.total


def test_host_memory_follows_the_model_and_not_the_memory_of_the_gpus() -> None:
    """Twice the GPU memory would be 1.2 TiB for a model that takes 7 GiB, and 96 GiB where 1.3 TiB are needed."""
    large, small = NODE, Machine(card=cards.find(FACTS, "4090"), gpus=2)
    assert per_host(SMALL, Setup(**FULL), large).total < 0.02 * 2 * large.gpus * large.card.memory
    llama70 = known.find(FACTS, "llama-2-70b")
    assert per_host(llama70, Setup(**FULL), small).total > 10 * 2 * small.gpus * small.card.memory
    cards_of_all_sizes = {per_host(LLAMA, Setup(**FULL), replace(NODE, card=each)).total for each in _cards()}
    assert len(cards_of_all_sizes) == 1


def test_a_model_that_every_rank_loads_for_itself_takes_more_than_its_training() -> None:
    setup = Setup(**FULL)
    alone = loading(LLAMA, setup, NODE, zero_init=False)
    assert alone.total / LLAMA.parameters == pytest.approx(32)
    assert alone.total > per_host(LLAMA, setup, NODE).total
    divided = loading(LLAMA, setup, NODE, zero_init=True)
    assert divided.total < alone.total
    assert loading(LLAMA, Setup(stage=2), NODE, zero_init=True).total == alone.total, "only ZeRO-3 divides it"
    tight = replace(NODE, ram=190 * GIB)
    rungs = {each: climb(LLAMA, tight, tuned(LLAMA, Setup(stage=3, zero_init=each))) for each in (True, False)}
    assert _rung(rungs[True], "offload-parameters").fits and not _rung(rungs[False], "offload-parameters").fits
    assert any("loading" in line for line in _rung(rungs[False], "offload-parameters").why)


def test_pinned_blocks_are_rounded_one_by_one() -> None:
    assert [rounded(size) for size in (1, 2, 3, 1024, 1025)] == [1, 2, 4, 1024, 2048]
    machine = Machine(card=A100, gpus=1)
    exact = _model(1 << 20)
    assert per_host(exact, Setup(**FULL), machine).part(ROUNDING) == 0
    # A power of two and a bit: each of the three blocks takes nearly twice its size.
    more = _model((1 << 20) + 2)
    host = per_host(more, Setup(**FULL), machine)
    assert host.part(ROUNDING) == pytest.approx(8 * more.parameters, rel=1e-4)
    # In sub-groups the fp32 gradients are several blocks of a power of two.
    split = per_host(more, Setup(**FULL, sub_group=1 << 18), machine)
    assert split.part(ROUNDING) == pytest.approx(4 * more.parameters, rel=1e-4)


@pytest.mark.parametrize(
    ("setup", "each"),
    [
        (Setup(stage=0), 20), (Setup(stage=0, dtype=Dtype.FP32), 16 + 4 * 5e8 / LLAMA.parameters),
        (Setup(stage=1), 4 + 18 / 8), (Setup(stage=2), 2 + 20 / 8), (Setup(stage=3, persistence=0), 22 / 8),
        (Setup(stage=3, persistence=0, dtype=Dtype.FP32), 24 / 8),
    ],
)  # fmt: skip
def test_states_on_the_gpu_while_the_optimizer_steps(setup: Setup, each: float) -> None:
    """Bytes of each parameter on one of 8 GPUs, as DeepSpeed 0.19.8 allocates them."""
    need = per_gpu(LLAMA, replace(setup, micro_batch=1, sequence=1, reduce_bucket=1, max_live=1), NODE)
    states = sum(part.value for part in need.parts if not _working(part.name))
    assert states / LLAMA.parameters == pytest.approx(each, rel=0.01)


@pytest.mark.parametrize("recompute", [True, False])
@pytest.mark.parametrize("accumulation", [1, 4])
def test_copies_of_one_step(recompute: bool, accumulation: int) -> None:
    setup = Setup(**FULL, recompute=recompute, accumulation=accumulation)
    moved, own, gathers = per_step(LLAMA, setup, NODE), LLAMA.parameters / 8, 3 if recompute else 2
    assert moved.part(TO_GPU) == pytest.approx(own * accumulation * (gathers * 2 + 2))
    assert moved.part(TO_HOST) == pytest.approx(own * (accumulation * 2 + 4))
    assert moved.part(NETWORK) == pytest.approx(accumulation * (gathers * 2 + 2) * LLAMA.parameters * 7 / 8)
    on_gpu = per_step(LLAMA, Setup(stage=3), NODE)
    assert on_gpu.part(TO_GPU) == on_gpu.part(TO_HOST) == 0
    assert per_step(LLAMA, setup, replace(NODE, gpus=1)).part(NETWORK) == 0


def test_time_of_a_link_is_left_out_where_nobody_gave_it() -> None:
    setup = Setup(stage=3, optimizer=Place.NVME, parameters=Place.NVME)
    names = {part.name for part in times(LLAMA, setup, replace(NODE, nodes=2)).parts}
    assert "NVMe read" not in names and "network between nodes" not in names and "compute" in names
    known_links = times(LLAMA, setup, replace(NODE, nodes=2, nvme=5e9, network=50e9))
    assert {"NVMe read", "NVMe written", "network between nodes"} <= {part.name for part in known_links.parts}
    # 16 bytes of each parameter leave the drives of two nodes at 5 GB/s each.
    assert known_links.part("NVMe read") == pytest.approx(LLAMA.parameters * 16 / 2 / 5e9, rel=0.01)


def test_a_checkpoint_is_as_large_as_it_is() -> None:
    assert checkpoint(LLAMA, Setup(stage=3)).total == 12 * LLAMA.parameters
    assert checkpoint(LLAMA, Setup(stage=2)).total == 14 * LLAMA.parameters


def test_nvme_holds_the_states_and_the_host_only_buffers() -> None:
    machine = replace(NODE, nvme=5e9)
    rungs = climb(LLAMA, machine, tuned(LLAMA, Setup(stage=3)))
    swapped, kept = _rung(rungs, "nvme"), _rung(rungs, "offload-parameters")
    assert swapped.nvme is not None and swapped.nvme.total == pytest.approx(16 * LLAMA.parameters, rel=1e-6)
    assert swapped.host.total < 0.5 * kept.host.total
    assert nvme(LLAMA, kept.setup, machine).total == 0
    assert not _rung(climb(LLAMA, NODE, Setup(stage=3)), "nvme").fits


def test_offload_that_a_stage_does_not_have_is_none() -> None:
    assert per_gpu(LLAMA, Setup(stage=2, parameters=Place.CPU), NODE) == per_gpu(LLAMA, Setup(stage=2), NODE)
    assert per_host(LLAMA, Setup(stage=0, optimizer=Place.CPU), NODE).total == 0
    assert Setup(stage=2, optimizer=Place.NVME).optimizer_place is Place.CPU


def test_what_cannot_fit_is_told_with_the_smallest_changes() -> None:
    machine = Machine(card=cards.find(FACTS, "4090"), gpus=2, ram=128 * GIB)
    large = known.find(FACTS, "llama-2-70b")
    wanted = tuned(large, Setup(stage=3))
    assert first(climb(large, machine, wanted)) is None
    changes = smallest(large, machine, wanted, _cards())
    memory = next(each for each in changes if "host memory" in each.what)
    needed = int(memory.what.split()[0].replace(",", "")) * GIB
    assert first(climb(large, replace(machine, ram=needed), wanted)) is not None
    assert first(climb(large, replace(machine, ram=needed - 8 * GIB), wanted)) is None
    nodes = next(each for each in changes if "nodes" in each.what)
    count = int(nodes.what.split()[0])
    assert first(climb(large, replace(machine, nodes=count), wanted)) is not None
    assert first(climb(large, replace(machine, nodes=count - 1), wanted)) is None
    assert smallest(LLAMA, NODE, tuned(LLAMA, Setup(stage=3))) == ()


def test_a_batch_too_large_is_the_first_thing_to_change() -> None:
    wanted = tuned(LLAMA, Setup(stage=3, micro_batch=256))
    assert smallest(LLAMA, NODE, wanted)[0].what == "a micro-batch of 16 instead of 256"
    setup = _rung(climb(LLAMA, NODE, wanted), "offload-parameters").setup
    assert largest(LLAMA, setup, NODE) == 16
    assert largest(known.find(FACTS, "llama-2-70b"), Setup(stage=0), NODE) == 0


def test_more_micro_steps_pay_for_the_optimizer_on_the_cpu() -> None:
    setup = tuned(LLAMA, Setup(**FULL, micro_batch=8))
    count = steps(LLAMA, setup, NODE)
    assert count > 1
    share = _share(setup, count)
    assert share <= 0.1 < _share(setup, count // 2)


_SHAPES = st.sampled_from(
    [known.find(FACTS, name) for name in ("gpt2", "350m", "llama-2-7b", "mixtral-8x7b", "gemma-2-9b")]
)
_PLACES = st.sampled_from([Place.GPU, Place.CPU, Place.NVME])
_SETUPS = st.builds(
    Setup, stage=st.integers(0, 3), optimizer=_PLACES, parameters=_PLACES, dtype=st.sampled_from(Dtype),
    accumulation_dtype=st.sampled_from([None, Dtype.FP32]), micro_batch=st.integers(1, 64),
    accumulation=st.integers(1, 16), sequence=st.integers(1, 1 << 17), recompute=st.booleans(), pinned=st.booleans(),
    persistence=st.integers(0, 10**6), max_live=st.integers(0, 10**10), sub_group=st.integers(10**6, 10**10),
    reduce_bucket=st.integers(1, 10**9), overlap=st.booleans(), zero_init=st.booleans(),
)  # fmt: skip
_MACHINES = st.builds(
    Machine, card=st.sampled_from([A100, cards.find(FACTS, "4090")]), gpus=st.integers(1, 16), nodes=st.integers(1, 64),
    ram=st.none() | st.integers(0, 1 << 42), nvme=st.none() | st.just(5e9), network=st.none() | st.just(50e9),
)  # fmt: skip


@given(_SHAPES, _SETUPS, _MACHINES)
def test_every_need_is_the_sum_of_parts_that_say_where_they_are_from(
    shape: Shape, setup: Setup, machine: Machine
) -> None:
    for need in _needs(shape, setup, machine):
        assert need.total == sum(part.value for part in need.parts)
        for part in need.parts:
            assert part.value > 0 and part.name and part.formula and part.numbers, part
            assert "e+" not in part.numbers or need.unit == "seconds", part


@given(_SHAPES, _SETUPS, _MACHINES, st.integers(1, 8))
def test_more_gpus_never_need_more_on_each(shape: Shape, setup: Setup, machine: Machine, more: int) -> None:
    gpu, host = per_gpu(shape, setup, machine), per_host(shape, setup, machine)
    nodes = replace(machine, nodes=machine.nodes + more)
    wider = replace(machine, gpus=machine.gpus + more)
    # Shares are rounded up to whole elements, in each of a handful of parts.
    assert per_gpu(shape, setup, nodes).total <= gpu.total + 64
    assert per_gpu(shape, setup, wider).total <= gpu.total + 64
    tensors, fewer = (need.total - need.part(ROUNDING) for need in (host, per_host(shape, setup, nodes)))
    assert fewer <= tensors + 64 * machine.gpus


@given(_SHAPES, _SETUPS, _MACHINES)
def test_a_longer_sequence_and_a_larger_batch_never_need_less(shape: Shape, setup: Setup, machine: Machine) -> None:
    before = per_gpu(shape, setup, machine).total
    for change in ({"sequence": setup.sequence + 128}, {"micro_batch": setup.micro_batch + 1}):
        after = replace(setup, **change)
        assert per_gpu(shape, after, machine).total >= before
        assert per_host(shape, after, machine) == per_host(shape, setup, machine)
        assert times(shape, after, machine).part("compute") > times(shape, setup, machine).part("compute")


@given(_SHAPES, _SETUPS, _MACHINES)
def test_a_rung_fits_exactly_when_all_its_needs_do(shape: Shape, setup: Setup, machine: Machine) -> None:
    for rung in climb(shape, machine, setup):
        fits = rung.gpu.total <= FILLED * machine.card.memory
        if machine.ram is not None:
            fits &= max(rung.host.total, rung.loading.total) <= FILLED * machine.ram
        assert rung.fits == (fits and (rung.nvme is None or machine.nvme is not None)) and rung.why


def _needs(shape: Shape, setup: Setup, machine: Machine) -> tuple[Need, ...]:
    return (
        per_gpu(shape, setup, machine), per_host(shape, setup, machine), per_step(shape, setup, machine),
        times(shape, setup, machine), nvme(shape, setup, machine), checkpoint(shape, setup),
        loading(shape, setup, machine, setup.zero_init),
    )  # fmt: skip


def _share(setup: Setup, count: int) -> float:
    took = times(LLAMA, replace(setup, accumulation=count), NODE)
    return (took.part("optimizer on the CPU") + took.part(TO_HOST)) / took.part("compute")


def _model(parameters: int) -> Shape:
    """A model that is one table of so many parameters."""
    from envbuild.sizing.shape import Block, Weight

    block = Block(name="layer", count=1, weights=(Weight(name="table", size=parameters),))
    return replace(SMALL, blocks=(block,))


def _working(name: str) -> bool:
    return name in ("context", "live parameters", "logits", "persistent parameters") or name.startswith(
        ("activations", "layer inputs", "reduce", "further")
    )


def _rung(rungs: tuple[Rung, ...], id: str) -> Rung:
    return next(each for each in rungs if each.id == id)


def _cards() -> list[Card]:
    return [cards.find(FACTS, name) for name in cards.names(FACTS)]


def _gib(need: Need | Any) -> float:
    return float(need.total) / GIB
