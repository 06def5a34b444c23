"""``"auto"``: a word of Hugging Face's, that DeepSpeed itself does not understand."""

from __future__ import annotations

from collections.abc import Iterator

from envbuild.dsconfig.context import Context
from envbuild.dsconfig.document import Member
from envbuild.dsconfig.problem import Problem
from envbuild.dsconfig.rules.asking import ERROR, WARNING, at_least, walk
from envbuild.dsconfig.rules.rule import Rule
from envbuild.dsconfig.view import AUTO, View

# What Trainer and Accelerate write instead of it.
FILLED = frozenset(
    {
        "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "gradient_clipping",
        "optimizer.params.lr", "optimizer.params.betas", "optimizer.params.eps", "optimizer.params.weight_decay",
        "scheduler.params.warmup_min_lr", "scheduler.params.warmup_max_lr", "scheduler.params.warmup_num_steps",
        "scheduler.params.total_num_steps", "fp16.enabled", "bf16.enabled", "amp.enabled", "amp.opt_level",
        "zero_optimization.reduce_bucket_size", "zero_optimization.stage3_prefetch_bucket_size",
        "zero_optimization.stage3_param_persistence_threshold",
        "zero_optimization.stage3_gather_16bit_weights_on_model_save",
    }
)  # fmt: skip
# Where DeepSpeed itself gives it a meaning.
_OWN = ("autotuning", "pipeline", "data_types", "compile", "zero_optimization.zenflow", "tensor_parallel")
# Read by models that drop what is "auto" before they look at it.
_MODELS = ("zero_optimization", "tensorboard", "wandb", "csv_monitor", "comet", "hybrid_engine")
_NUMBERS = (
    "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "gradient_clipping",
    "wall_clock_breakdown", "flops_profiler.enabled",
)  # fmt: skip


def rejected(view: View, context: Context) -> Iterator[Problem]:
    """What DeepSpeed computes with is no "auto"."""
    for path, member in _left(view, context):
        if path in _NUMBERS or path.startswith(("optimizer.params.", "scheduler.params.", "aio.")):
            yield Problem(
                path=path, severity=ERROR, message=f'{member.key} is "auto", which DeepSpeed takes for a text',
                place=member.node.place, fix="Write a number" + _or_launcher(path, context),
                why="Only Hugging Face's Trainer and Accelerate replace it, and only where they know the value.",
            )  # fmt: skip


def default(view: View, context: Context) -> Iterator[Problem]:
    """An "auto" that DeepSpeed drops says what it becomes."""
    for path, member in _left(view, context):
        if not path.startswith(tuple(f"{section}." for section in _MODELS)):
            continue
        known = view.get(path)
        value = known.key.default if known.key else None
        yield Problem(
            path=path, severity=WARNING,
            message=f'{member.key} is "auto": DeepSpeed drops it without a word, and the default counts'
            + (f": {_written(value)}" if value is not None else ""),
            place=member.node.place,
            fix="Write the value that is meant, or remove the key" + _or_launcher(path, context),
        )  # fmt: skip


def enabled(view: View, context: Context) -> Iterator[Problem]:
    """Whether fp16 or bf16 is on is said, where nobody replaces "auto"."""
    if context.fills_auto:
        return
    for section in ("fp16", "bf16", "bfloat16"):
        setting = view.get(f"{section}.enabled")
        if not setting.auto:
            continue
        if at_least(context, "0.17.6"):
            said = "DeepSpeed drops it without a word, and trains in fp32"
        elif not at_least(context, "0.17.1"):
            said = "this DeepSpeed takes any text for true"
        else:
            continue
        yield setting.problem(
            ERROR,
            f'{section}.enabled is "auto": {said}',
            fix="Write true or false" + _or_launcher(setting.path, context),
        )


def _left(view: View, context: Context) -> Iterator[tuple[str, Member]]:
    """Every "auto" that stays one until DeepSpeed reads it, and means nothing to it."""
    if view.get("autotuning.enabled").on:
        return
    for path, member in walk(view.root):
        if member.node.value != AUTO or path.startswith(tuple(f"{section}." for section in _OWN)):
            continue
        if not (context.fills_auto and path in FILLED):
            yield path, member


def _or_launcher(path: str, context: Context) -> str:
    if context.fills_auto or path not in FILLED:
        return "."
    return ", or lint with --with hf-trainer if Trainer reads the file."


def _written(value: object) -> str:
    return {True: "true", False: "false"}[value] if isinstance(value, bool) else str(value)


RULES = (
    Rule(
        id="auto.rejected", title='no "auto" is left where DeepSpeed computes', judge=rejected,
        source="deepspeed/runtime/config.py: get_scalar_param hands it on; seen: TypeError with 0.19.8",
    ),
    Rule(
        id="auto.default", title='no "auto" is left that silently becomes the default', judge=default,
        source='deepspeed/runtime/config_utils.py: DeepSpeedConfigModel.__init__ leaves out what is "auto"',
    ),
    Rule(
        id="auto.precision", title='fp16 and bf16 are no "auto" in plain DeepSpeed', judge=enabled,
        source="deepspeed/runtime/config.py: get_fp16_enabled (to 0.17.0); precision_config.py (from 0.17.6)",
    ),
)  # fmt: skip
