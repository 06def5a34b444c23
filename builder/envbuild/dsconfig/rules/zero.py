"""ZeRO: stages, and the keys that one stage knows and another does not."""

from __future__ import annotations

from collections.abc import Iterator

from envbuild.dsconfig.context import Context
from envbuild.dsconfig.problem import Problem
from envbuild.dsconfig.rules.asking import (
    BYTES,
    ERROR,
    INFO,
    WARNING,
    at_least,
    dtype,
    grouped,
    members,
    offloads,
    size,
)
from envbuild.dsconfig.rules.rule import Rule
from envbuild.dsconfig.view import View

Z = "zero_optimization"
_STAGE3 = "deepspeed/runtime/zero/stage3.py"
_STAGE12 = "deepspeed/runtime/zero/stage_1_and_2.py"
_CONFIG = "deepspeed/runtime/zero/config.py"
# Of stage 3 alone, whichever way they are spelt.
_STAGE3_ONLY = (
    "prefetch_bucket_size", "param_persistence_threshold", "model_persistence_threshold", "max_live_parameters",
    "max_reuse_distance", "gather_16bit_weights_on_model_save", "module_granularity_threshold",
    "use_all_reduce_for_fetch_params", "allgather_sequential", "zero_hpz_partition_size", "zero_quantized_weights",
    "zero_quantized_nontrainable_weights", "zero_quantized_gradients", "mics_shard_size", "sub_group_size",
    "mics_hierarchical_params_gather", "stage3_gather_fp16_weights_on_model_save",
)  # fmt: skip
_LARGE_BUCKET = 500_000_000
_TINY_GROUP = 1_000_000


def removed_stage1(view: View, context: Context) -> Iterator[Problem]:
    """The first implementation of stage 1 is gone."""
    setting = view.get(f"{Z}.legacy_stage1")
    if setting.on and view.stage:
        yield setting.problem(ERROR, "legacy_stage1: DeepSpeed ends, saying that 0.5.8 had it last", fix="Remove it.")


def elastic_checkpoint(view: View, context: Context) -> Iterator[Problem]:
    """Stage 3 has no elastic checkpoints."""
    setting = view.get(f"{Z}.elastic_checkpoint")
    if not (setting.on and view.stage == 3):
        return
    if at_least(context, "0.19.5"):
        yield setting.problem(WARNING, "elastic_checkpoint has no effect in stage 3", fix="Use universal checkpoints.")
    elif not at_least(context, "0.19.1"):
        yield setting.problem(
            ERROR, "elastic_checkpoint in stage 3: the first checkpoint ends with NotImplementedError", fix="Remove it."
        )


def allgather_bucket(view: View, context: Context) -> Iterator[Problem]:
    """allgather_bucket_size is even."""
    setting = view.get(f"{Z}.allgather_bucket_size")
    if setting.given and view.stage in (1, 2) and setting.number is not None and setting.number % 2:
        yield setting.problem(
            ERROR, f"allgather_bucket_size is {grouped(setting.number)}, an odd number: DeepSpeed ends when it starts",
            fix=f"Write {grouped(setting.number + 1)}.",
        )  # fmt: skip


def scaled_gradients(view: View, context: Context) -> Iterator[Problem]:
    """Gradients are not divided beforehand where ZeRO scatters them."""
    stages = (2, 3) if at_least(context, "0.13.1") else (1, 2, 3)
    if view.stage not in stages or not view.get(f"{Z}.reduce_scatter").on:
        return
    before, factor = view.get("prescale_gradients"), view.get("gradient_predivide_factor")
    for setting, wrong in ((before, before.on), (factor, factor.number not in (None, 1))):
        if setting.given and wrong:
            yield setting.problem(
                ERROR, f"{setting.path} with ZeRO stage {view.stage} and reduce_scatter: DeepSpeed ends when it starts",
                fix=f"Remove it, or set {Z}.reduce_scatter to false.",
            )  # fmt: skip


def summed_gradients(view: View, context: Context) -> Iterator[Problem]:
    """gradient_allreduce_op is mean, or sum in stages below 3."""
    setting = view.get("gradient_allreduce_op")
    word = setting.value.lower() if isinstance(setting.value, str) else setting.value
    if setting.given and word not in ("mean", "sum"):
        yield setting.problem(
            ERROR,
            f"gradient_allreduce_op is {setting.value!r}: DeepSpeed ends with a ValueError",
            fix="Write mean or sum.",
        )
    elif setting.given and word == "sum" and view.stage == 3:
        yield setting.problem(
            ERROR, 'gradient_allreduce_op "sum" in ZeRO stage 3: DeepSpeed ends with a ValueError', fix="Remove it."
        )


def gradient_norm(view: View, context: Context) -> Iterator[Problem]:
    """The gradients' norm is left out only where nothing needs it."""
    setting = view.get(f"{Z}.compute_grad_norm")
    if not setting.given or setting.value is not False:
        return
    if view.stage not in (1, 2):
        needed = f"ZeRO stage 1 or 2; this is {view.stage}"
    elif (view.get("gradient_clipping").number or 0) > 0:
        default = "" if view.has("gradient_clipping") else " (this release's default is another)"
        needed = f"gradient_clipping to be 0{default}"
    elif offloads(view):
        needed = "the optimizer to stay on the GPU"
    else:
        return
    yield setting.problem(ERROR, f"compute_grad_norm: false needs {needed}", fix="Remove it.")


def hierarchical(view: View, context: Context) -> Iterator[Problem]:
    """The processes can be divided into groups of zero_hpz_partition_size."""
    setting = view.get(f"{Z}.zero_hpz_partition_size")
    number, ranks = setting.number, context.world
    if view.stage == 3 and number and number > 1 and ranks is not None and ranks % min(int(number), ranks):
        yield setting.problem(
            ERROR, f"{ranks} processes cannot be divided into groups of {int(number)}",
            fix=f"Write a divisor of {ranks}: best the number of GPUs on one node.",
        )  # fmt: skip


def stage3_keys(view: View, context: Context) -> Iterator[Problem]:
    """Keys of stage 3 are said to have no effect below it."""
    if view.stage == 3:
        return
    found = [
        each
        for each in members(view, Z)
        if each.key.removeprefix("stage3_") in _STAGE3_ONLY or each.key in _STAGE3_ONLY
    ]
    if found:
        yield Problem(
            path=f"{Z}.{found[0].key}", severity=INFO, place=found[0].place,
            message=f"no effect below ZeRO stage 3: {', '.join(each.key for each in found)}",
            fix="Remove them, or set stage to 3.",
        )  # fmt: skip


def stage12_keys(view: View, context: Context) -> Iterator[Problem]:
    """Keys of stages 1 and 2 are said to have no effect in others."""
    if view.stage in (1, 2):
        return
    for name in ("ignore_unused_parameters", "round_robin_gradients", "parameter_alignment"):
        setting = view.get(f"{Z}.{name}")
        if setting.given and setting.key is not None:
            yield setting.problem(INFO, f"{name} has no effect but in ZeRO stages 1 and 2", fix="Remove it.")


def prefetch(view: View, context: Context) -> Iterator[Problem]:
    """Not more is fetched ahead than may be there."""
    ahead, live = view.get(f"{Z}.stage3_prefetch_bucket_size"), view.get(f"{Z}.stage3_max_live_parameters")
    if view.stage != 3 or not (ahead.given or live.given) or ahead.number is None or live.number is None:
        return
    if ahead.number > live.number > 0:
        place = ahead if ahead.given else live
        yield place.problem(
            WARNING,
            f"stage3_prefetch_bucket_size is {grouped(ahead.number)}, "
            f"more than stage3_max_live_parameters, {grouped(live.number)}",
            fix=f"Write at most {grouped(live.number)}, or allow more live parameters.",
            why="What is fetched ahead is the smaller of it and of what live parameters leave: the rest is never used.",
        )  # fmt: skip


def bucket(view: View, context: Context) -> Iterator[Problem]:
    """What a large bucket takes on each GPU is said."""
    setting = view.get(f"{Z}.reduce_bucket_size")
    number, kind = setting.number, dtype(view)
    if not (setting.given and view.stage == 3 and view.get(f"{Z}.contiguous_gradients").on):
        return
    if number and number >= _LARGE_BUCKET and kind:
        yield setting.problem(
            INFO, f"reduce_bucket_size takes {size(number * BYTES[kind])} on each GPU ({kind}); it counts elements"
        )


def sub_groups(view: View, context: Context) -> Iterator[Problem]:
    """A step in tiny pieces is said to be one."""
    setting = view.get(f"{Z}.sub_group_size")
    if setting.given and view.stage == 3 and setting.number is not None and setting.number < _TINY_GROUP:
        yield setting.problem(
            INFO, f"sub_group_size is {grouped(setting.number)}: the optimizer steps tensor by tensor",
            fix="Leave it at 1e9, unless memory forbids.",
        )  # fmt: skip


def saving(view: View, context: Context) -> Iterator[Problem]:
    """Whether whole weights can be saved is said."""
    setting = view.get(f"{Z}.stage3_gather_16bit_weights_on_model_save")
    if view.stage != 3 or view.get(f"{Z}.stage3_gather_fp16_weights_on_model_save").on:
        return
    if setting.value is False and (setting.given or context.fills_auto):
        yield setting.problem(
            INFO, "whole 16-bit weights are not gathered on save: save_16bit_model and save_pretrained write none",
            fix=f"Set {setting.path} to true, or convert checkpoints with zero_to_fp32.py.",
        )  # fmt: skip


def pipeline(view: View, context: Context) -> Iterator[Problem]:
    """Pipeline parallelism is used with stage 1 at most."""
    setting = view.get("pipeline")
    if setting.given and view.stage >= 2:
        yield setting.problem(
            WARNING, f"a pipeline section with ZeRO stage {view.stage}: a PipelineModule ends with an AssertionError",
            fix="Set stage to 1, or remove the section where the model is no PipelineModule.",
        )  # fmt: skip


RULES = (
    Rule(
        id="zero.legacy-stage1", title="the first implementation of stage 1 is not asked for", judge=removed_stage1,
        source="deepspeed/runtime/engine.py: _configure_zero_optimizer",
    ),
    Rule(
        id="zero.elastic-checkpoint", title="stage 3 has no elastic checkpoints", judge=elastic_checkpoint,
        source=f"{_STAGE3}: state_dict, load_state_dict (to 0.19.0); zero/config.py (from 0.19.5)",
    ),
    Rule(
        id="zero.allgather-bucket", title="allgather_bucket_size is even", judge=allgather_bucket,
        source=f"{_STAGE12}: __init__, nccl_start_alignment_factor",
    ),
    Rule(
        id="zero.scaled-gradients", title="gradients that ZeRO scatters are not divided beforehand",
        judge=scaled_gradients, source=f"{_STAGE12} and {_STAGE3}: __init__",
    ),
    Rule(
        id="zero.summed-gradients", title="gradient_allreduce_op is mean, or sum below stage 3", judge=summed_gradients,
        since="0.19.8", source="deepspeed/runtime/config.py: _do_error_check",
    ),
    Rule(
        id="zero.gradient-norm", title="the gradients' norm is left out only where nothing needs it",
        judge=gradient_norm, since="0.19.8", source=f"{_CONFIG}: compute_grad_norm_valid; {_STAGE12}: __init__",
    ),
    Rule(
        id="zero.hpz", title="the processes can be divided into groups of zero_hpz_partition_size", judge=hierarchical,
        since="0.10.3", source="deepspeed/utils/groups.py: _create_zero_param_parallel_group",
    ),
    Rule(
        id="zero.stage3-keys", title="keys of stage 3 stand in stage 3", judge=stage3_keys,
        source="deepspeed/runtime/engine.py: _configure_zero_optimizer hands them to stage 3 only",
    ),
    Rule(
        id="zero.stage12-keys", title="keys of stages 1 and 2 stand there", judge=stage12_keys,
        source="deepspeed/runtime/engine.py: _configure_zero_optimizer hands them to stages 1 and 2 only",
    ),
    Rule(
        id="zero.prefetch", title="not more is fetched ahead than may be live", judge=prefetch,
        source="deepspeed/runtime/zero/partitioned_param_coordinator.py: fetch_sub_module",
    ),
    Rule(
        id="zero.bucket", title="what a large bucket takes is known", judge=bucket,
        source=f"{_STAGE3}: with contiguous_gradients the bucket is allocated on the GPU",
    ),
    Rule(
        id="zero.sub-groups", title="the optimizer does not step in tiny pieces", judge=sub_groups,
        source=f"{_STAGE3}: _create_fp16_sub_groups",
    ),
    Rule(
        id="zero.saving", title="whether whole weights are saved is known", judge=saving,
        source="deepspeed/runtime/engine.py: save_16bit_model",
    ),
    Rule(
        id="zero.pipeline", title="pipeline parallelism is used with stage 1 at most", judge=pipeline,
        source="deepspeed/runtime/pipe/engine.py: PipelineEngine.__init__",
    ),
)  # fmt: skip
