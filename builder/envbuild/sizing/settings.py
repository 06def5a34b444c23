"""The ds_config of an answer: every value with the reason for it and who says so."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from envbuild.sizing import gpu
from envbuild.sizing.part import number
from envbuild.sizing.setup import Dtype, Place
from envbuild.sizing.tuning import Answer, Target

DEEPSPEED, HF_TRAINER, ACCELERATE = "deepspeed", "hf-trainer", "accelerate"
LAUNCHERS = (DEEPSPEED, HF_TRAINER, ACCELERATE)
AUTO = "auto"

_ZERO = "deepspeed/runtime/zero/config.py"
_OFFLOAD = "deepspeed/runtime/zero/offload_config.py"
_CONFIG = "deepspeed/runtime/config.py"
_TRAINER = "transformers/integrations/deepspeed.py: trainer_config_finalize (what Hugging Face writes for auto)"
_FILLS = "transformers/integrations/deepspeed.py: trainer_config_process"
# DeepSpeed's default of stage3_max_reuse_distance.
_REUSED = 1_000_000_000
# What a learning rate has to be nobody can compute; it is there because DeepSpeed wants an optimizer.
_RATE = 1e-5
_LIVE = {
    3: "the layer that computes and two that are fetched",
    2: "the layer that computes and one that is fetched, as two would not fit",
    1: "the layer that computes, as one more would not fit",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One key of the file.

    Attributes:
        path: Such as ``zero_optimization.stage``.
        formula: How the value is computed, with its numbers; empty where it is a choice.
        option: The option of the trainer that has to say the same, where it is filled in from there.
    """

    path: str
    value: Any
    why: str
    source: str
    formula: str = ""
    option: str = ""


def settings(
    answer: Answer,
    launcher: str,
    nvme_path: str,
    knows: Callable[[str], bool] = lambda path: True,
    *,
    scatters_fp32: bool = True,
) -> tuple[Setting, ...]:
    """Every setting, in the order of the file.

    Args:
        launcher: Who reads the file; Hugging Face's Trainer fills in what is ``auto`` from its own arguments.
        nvme_path: Where the NVMe is mounted.
        knows: Whether the DeepSpeed release knows a key; what it does not know is left out.
        scatters_fp32: Whether its stages 1 and 2 can scatter gradients in fp32.
    """
    made = (*_batch(answer, launcher), *_types(answer, launcher), *_optimizer(answer, launcher),
            *_zero(answer), *_offload(answer, nvme_path))  # fmt: skip
    if not scatters_fp32:
        made += tuple(_unscattered(answer))
    return tuple(each for each in made if knows(each.path))


def _unscattered(answer: Answer) -> Iterator[Setting]:
    assert answer.chosen is not None
    if answer.question.dtype is Dtype.FP32 and answer.chosen.setup.stage in (1, 2):
        yield Setting(
            path="zero_optimization.reduce_scatter", value=False, source="deepspeed/runtime/zero/stage_1_and_2.py",
            why="this release scatters gradients of 16 bits only, and ends at once with others",
        )  # fmt: skip


def document(found: Iterable[Setting]) -> dict[str, Any]:
    """The settings as the file has them."""
    made: dict[str, Any] = {}
    for each in found:
        section = made
        *parents, last = each.path.split(".")
        for parent in parents:
            section = section.setdefault(parent, {})
        section[last] = each.value
    return made


def _batch(answer: Answer, launcher: str) -> Iterator[Setting]:
    assert answer.chosen is not None
    setup, world = answer.chosen.setup, answer.question.machine.world
    micro, steps = setup.micro_batch, setup.accumulation
    told = f"micro-batch {micro} x accumulation {steps} x {_gpus(world)}"
    for path, value, why, option in (
        ("train_batch_size", answer.global_batch, "the product, or DeepSpeed does not start", ""),
        ("train_micro_batch_size_per_gpu", micro, _reason(answer.why[1]), f"--per_device_train_batch_size {micro}"),
        ("gradient_accumulation_steps", steps, _reason(answer.why[2]), f"--gradient_accumulation_steps {steps}"),
    ):
        filled = launcher == HF_TRAINER
        yield Setting(
            path=path, value=AUTO if filled else value, why=why, formula=told if path == "train_batch_size" else "",
            source=_FILLS if filled else f"{_CONFIG}: _batch_assertion", option=option if filled else "",
        )  # fmt: skip


def _reason(why: str) -> str:
    """The reason alone: what it is for stands before it in the file."""
    return why.partition(": ")[2] or why


def _types(answer: Answer, launcher: str) -> Iterator[Setting]:
    machine, dtype = answer.question.machine, answer.question.dtype
    filled = launcher == HF_TRAINER
    clip = "clips the norm of the gradients, as most recipes do: a choice, not a sum"
    yield Setting(
        path="gradient_clipping", value=AUTO if filled else 1.0, why=clip, source=_FILLS if filled else _CONFIG,
        option="--max_grad_norm 1.0" if filled else "",
    )  # fmt: skip
    if dtype is Dtype.FP32:
        return
    why = {
        Dtype.BF16: f"{machine.card.title} (sm_{machine.card.sm.replace('.', '')}) computes in bf16, "
        "which needs no loss scaling",
        Dtype.FP16: f"{machine.card.title} (sm_{machine.card.sm.replace('.', '')}): fp16, with DeepSpeed's dynamic "
        "loss scaling",
    }[dtype]
    yield Setting(
        path=f"{dtype.value}.enabled", value=True, why=why, source="deepspeed/runtime/precision_config.py",
        option=f"--{dtype.value}" if filled else "",
    )  # fmt: skip


def _optimizer(answer: Answer, launcher: str) -> Iterator[Setting]:
    if launcher == ACCELERATE:
        # With a section here, Accelerate wants DummyOptim in the script; without one it takes the script's AdamW.
        return
    filled = launcher == HF_TRAINER
    assert answer.chosen is not None
    on_cpu = answer.chosen.setup.optimizer_place is not Place.GPU
    why = "DeepSpeedCPUAdam with offload: another class stops the start" if on_cpu else "FusedAdam on the GPU"
    source = "deepspeed/runtime/engine.py: _configure_optimizer"
    yield Setting(path="optimizer.type", value="AdamW", why=why, source=source)
    rate = "from the Trainer's arguments" if filled else "a placeholder: the learning rate is yours to say"
    yield Setting(
        path="optimizer.params.lr", value=AUTO if filled else _RATE, why=rate, source=_FILLS if filled else source,
        option="--learning_rate ..." if filled else "",
    )  # fmt: skip
    for name in ("betas", "eps", "weight_decay") if filled else ():
        yield Setting(path=f"optimizer.params.{name}", value=AUTO, why="from the Trainer's arguments", source=_FILLS)


def _zero(answer: Answer) -> Iterator[Setting]:
    assert answer.chosen is not None
    setup, shape = answer.chosen.setup, answer.question.shape
    width = f"h = {number(shape.hidden)}"
    yield Setting(path="zero_optimization.stage", value=setup.stage, why=_reason(answer.why[0]), source=_ZERO)
    if not setup.stage:
        return
    yield Setting(
        path="zero_optimization.overlap_comm", value=True, source=_ZERO,
        why="gradients are reduced while the backward pass goes on",
    )  # fmt: skip
    yield Setting(
        path="zero_optimization.contiguous_gradients", value=True, source=_ZERO,
        why="gradients are copied into one buffer as they come: no fragments",
    )  # fmt: skip
    size = setup.dtype.bytes
    buckets = 2 if setup.stage < 3 else gpu.BUCKETS
    yield Setting(
        path="zero_optimization.reduce_bucket_size", value=setup.reduce_bucket, source=_TRAINER,
        why=f"{_mib(buckets * size * setup.reduce_bucket)} of GPU memory in {buckets} buckets",
        formula=f"h^2, {width}",
    )  # fmt: skip
    if setup.stage < 3:
        # Stages 1 and 2 stop at an odd size (nccl_start_alignment_factor).
        even = max(2, setup.reduce_bucket // 2 * 2)
        yield Setting(
            path="zero_optimization.allgather_bucket_size", value=even, formula=f"h^2 made even, {width}",
            why="as large as the reduce bucket", source="deepspeed/runtime/zero/stage_1_and_2.py",
        )  # fmt: skip
        return
    yield from _zero3(answer, width)


def _zero3(answer: Answer, width: str) -> Iterator[Setting]:
    assert answer.chosen is not None
    setup, shape = answer.chosen.setup, answer.question.shape
    size = setup.dtype.bytes
    yield Setting(
        path="zero_optimization.stage3_prefetch_bucket_size", value=setup.prefetch_bucket, source=_TRAINER,
        why="parameters that are fetched before they are needed", formula=f"0.9 h^2, {width}",
    )  # fmt: skip
    kept = shape.persistent(setup.persistence, setup.max_persistence)
    layers = max(1, setup.max_live // max(1, shape.layer))
    yield Setting(
        path="zero_optimization.stage3_param_persistence_threshold", value=setup.persistence, source=_TRAINER,
        why=f"smaller tensors (norms, biases: {number(kept)} elements, {_mib(size * kept)}) stay whole on every GPU",
        formula=f"10 h, {width}",
    )  # fmt: skip
    yield Setting(
        path="zero_optimization.stage3_max_live_parameters", value=setup.max_live,
        why=f"{_LIVE.get(layers, 'what fits')}: {_mib(size * setup.max_live)}; beyond it nothing is prefetched",
        formula=f"{layers} x {number(shape.layer)}, the largest layer",
        source="deepspeed/runtime/zero/partitioned_param_coordinator.py: fetch_sub_module",
    )  # fmt: skip
    less = setup.max_live < _REUSED
    yield Setting(
        path="zero_optimization.stage3_max_reuse_distance", value=min(setup.max_live, _REUSED),
        why=f"with the default of 1e9 up to {_mib(size * _REUSED)} of layers would stay where forward turns to backward"
        if less else f"DeepSpeed's default: {_mib(size * _REUSED)} of layers may stay where forward turns to backward",
        formula="as max_live_parameters" if less else "",
        source="deepspeed/runtime/zero/partitioned_param_coordinator.py: __params_to_release",
    )  # fmt: skip
    if gathers(answer):
        yield Setting(
            path="zero_optimization.stage3_gather_16bit_weights_on_model_save", value=True, source=_ZERO,
            why=f"save_16bit_model and save_model then write whole weights: {_mib(size * shape.parameters)} in the "
            "host memory of rank 0 while they do",
        )  # fmt: skip


def gathers(answer: Answer) -> bool:
    """Whether the weights can be gathered in rank 0's host memory beside what is there, to be saved whole."""
    assert answer.chosen is not None
    ram, chosen = answer.question.machine.ram, answer.chosen
    return ram is None or chosen.host.total + chosen.setup.dtype.bytes * answer.question.shape.parameters <= 0.9 * ram


def _offload(answer: Answer, nvme_path: str) -> Iterator[Setting]:
    assert answer.chosen is not None
    setup = answer.chosen.setup
    pinned = "page-locked memory: copies run beside the computation, and each block takes a power of two of bytes"
    if setup.optimizer_place is not Place.GPU:
        at = "zero_optimization.offload_optimizer"
        place = setup.optimizer_place.value
        yield Setting(path=f"{at}.device", value=place, why=_because(answer, "the optimizer"), source=_OFFLOAD)
        if setup.optimizer_place is Place.NVME:
            yield Setting(
                path=f"{at}.nvme_path", value=nvme_path, why="--nvme-path: local to each node", source=_OFFLOAD
            )
            yield Setting(
                path=f"{at}.buffer_count", value=setup.optimizer_buffers, source=_OFFLOAD,
                why="Adam has four states: parameter, gradient and two moments",
            )  # fmt: skip
        yield Setting(path=f"{at}.pin_memory", value=True, why=pinned, source=_OFFLOAD)
    if setup.parameter_place is not Place.GPU:
        at = "zero_optimization.offload_param"
        place = setup.parameter_place.value
        yield Setting(path=f"{at}.device", value=place, why=_because(answer, "the parameters"), source=_OFFLOAD)
        if setup.parameter_place is Place.NVME:
            yield Setting(
                path=f"{at}.nvme_path", value=nvme_path, why="--nvme-path: local to each node", source=_OFFLOAD
            )
            yield Setting(
                path=f"{at}.buffer_count", value=setup.parameter_buffers, source=_OFFLOAD, why="DeepSpeed's default"
            )
            yield Setting(
                path=f"{at}.buffer_size", value=setup.buffer_size, source=_OFFLOAD,
                why="a buffer holds the largest share of a tensor, or the default where that is less",
                formula=f"max(1e8, {number(answer.question.shape.largest_weight.size)} / "
                f"{_gpus(answer.question.machine.world)})",
            )  # fmt: skip
        yield Setting(path=f"{at}.pin_memory", value=True, why=pinned, source=_OFFLOAD)
    if Place.NVME in (setup.optimizer_place, setup.parameter_place):
        yield Setting(
            path="zero_optimization.sub_group_size", value=setup.sub_group, source=_ZERO,
            why=f"each of {setup.optimizer_buffers} swap buffers holds a sub-group in fp32: "
            f"{_mib(4.0 * setup.optimizer_buffers * setup.sub_group)} of page-locked memory a rank",
        )  # fmt: skip
        for name, value in (("block_size", 1 << 20), ("queue_depth", 8), ("overlap_events", True)):
            yield Setting(
                path=f"aio.{name}", value=value, source="deepspeed/runtime/swap_tensor/constants.py",
                why="DeepSpeed's default; envbuild doctor --nvme PATH --bench measures the drive",
            )  # fmt: skip


def _because(answer: Answer, what: str) -> str:
    if answer.question.forced:
        return f"{what}: asked for"
    if answer.question.target is Target.FIT:
        return f"{what}: the GPU keeps room (--target fit)"
    return f"{what} would not fit the GPU"


def _gpus(count: int) -> str:
    return f"{count} GPU" if count == 1 else f"{count} GPUs"


def _mib(value: float) -> str:
    if value < 10 << 20:
        return f"{value / (1 << 20):,.1f} MiB"
    return f"{value / (1 << 20):,.0f} MiB" if value < 10 << 30 else f"{value / (1 << 30):,.0f} GiB"
