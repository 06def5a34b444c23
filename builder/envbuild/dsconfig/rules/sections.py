"""The other sections: activation checkpointing, checkpoints, monitors, profiling, data, elasticity."""

from __future__ import annotations

from collections.abc import Iterator

from envbuild.dsconfig.context import Context
from envbuild.dsconfig.problem import Problem
from envbuild.dsconfig.rules.asking import ERROR, INFO, WARNING
from envbuild.dsconfig.rules.rule import Rule
from envbuild.dsconfig.view import View
from envbuild.dsschema import release

_ACTIVATIONS = "deepspeed/runtime/activation_checkpointing/checkpointing.py"
_MONITORS = {"tensorboard": "tensorboard", "wandb": "wandb", "comet": "comet_ml"}
_TAGS = ("WARN", "IGNORE", "FAIL")
# torch.load reads nothing but weights by default from here on.
_WEIGHTS_ONLY = "2.6"


def contiguous(view: View, context: Context) -> Iterator[Problem]:
    """Activations lie together only where they are divided, and counted."""
    setting = view.get("activation_checkpointing.contiguous_memory_optimization")
    if not setting.on:
        return
    if not view.get("activation_checkpointing.partition_activations").on:
        yield setting.problem(
            ERROR, "contiguous_memory_optimization without partition_activations: "
            "deepspeed.checkpointing.configure ends with an AssertionError",
            fix="Set partition_activations to true, or remove it.",
        )  # fmt: skip
    if view.get("activation_checkpointing.number_checkpoints").value is None:
        yield setting.problem(
            ERROR, "contiguous_memory_optimization without number_checkpoints: "
            "deepspeed.checkpointing.configure ends with an AssertionError",
            fix="Add number_checkpoints: how many layers are checkpointed.",
        )  # fmt: skip


def activations(view: View, context: Context) -> Iterator[Problem]:
    """Who reads the section is said."""
    setting = view.get("activation_checkpointing")
    if setting.given and context.fills_auto:
        yield setting.problem(
            INFO, "activation_checkpointing is read by deepspeed.checkpointing only: Trainer's own does not look at it",
            fix="Set gradient_checkpointing in TrainingArguments.",
        )  # fmt: skip


def tags(view: View, context: Context) -> Iterator[Problem]:
    """checkpoint.tag_validation is a word that DeepSpeed knows."""
    setting = view.get("checkpoint.tag_validation")
    if setting.given and not (isinstance(setting.value, str) and setting.value.upper() in _TAGS):
        yield setting.problem(
            ERROR, f"checkpoint.tag_validation is {setting.value!r}: DeepSpeed ends when it starts",
            fix="Write Warn, Ignore or Fail.",
        )  # fmt: skip


def pipelined(view: View, context: Context) -> Iterator[Problem]:
    """checkpoint.parallel_write.pipeline_stage is true or false."""
    setting = view.get("checkpoint.parallel_write.pipeline_stage")
    if setting.given and setting.value not in (True, False):
        yield setting.problem(
            ERROR, f"pipeline_stage is {setting.value!r}: DeepSpeed ends when it starts", fix="Write true or false."
        )


def loading(view: View, context: Context) -> Iterator[Problem]:
    """DeepSpeed can load its own checkpoints with this torch."""
    if context.torch is not None and release(context.torch) >= release(_WEIGHTS_ONLY):
        yield Problem(
            path="checkpoint", severity=WARNING,
            message=f"DeepSpeed {context.deepspeed} cannot load its own checkpoints with torch {context.torch}",
            fix="Use DeepSpeed 0.16.0 or later, or torch below 2.6.",
            why="torch.load reads nothing but weights by default from 2.6 on, and this DeepSpeed does not ask "
            "otherwise: saving works, and the restart fails.",
        )  # fmt: skip


def monitors(view: View, context: Context) -> Iterator[Problem]:
    """What a monitor needs is said."""
    for section, package in _MONITORS.items():
        setting = view.get(f"{section}.enabled")
        if setting.on:
            yield setting.problem(
                INFO, f"{section} needs the Python package {package} in the image: without it, the start fails",
                fix=f"Add {package} to the image, or disable it.",
            )  # fmt: skip


def flops(view: View, context: Context) -> Iterator[Problem]:
    """What the flops profiler's figures are worth is said."""
    setting = view.get("flops_profiler.enabled")
    if setting.on and view.stage == 3:
        yield setting.problem(
            INFO, "the flops profiler counted no parameters in stage 3, and twice the operations with 2 micro-batches",
            fix="Do not rely on its figures without a check.", why="Seen with 0.19.8.",
        )  # fmt: skip


def curriculum(view: View, context: Context) -> Iterator[Problem]:
    """A curriculum has its metrics."""
    section = "data_efficiency.data_sampling.curriculum_learning"
    setting = view.get(f"{section}.enabled")
    if setting.on and not view.has(f"{section}.curriculum_metrics"):
        yield setting.problem(
            ERROR, "curriculum_learning without curriculum_metrics: DeepSpeed ends with an AssertionError",
            fix="Add curriculum_metrics.",
        )  # fmt: skip
    batching = view.get("data_efficiency.data_sampling.dynamic_batching.enabled")
    if batching.on and not view.has("data_efficiency.data_sampling.dynamic_batching.max_tokens"):
        yield batching.problem(
            ERROR, "dynamic_batching without max_tokens: DeepSpeed ends with an AssertionError", fix="Add max_tokens."
        )


def old_curriculum(view: View, context: Context) -> Iterator[Problem]:
    """The older curriculum says where it begins and ends."""
    setting = view.get("curriculum_learning.enabled")
    if not setting.on:
        return
    for name in ("min_difficulty", "max_difficulty", "schedule_type"):
        if not view.has(f"curriculum_learning.{name}"):
            yield setting.problem(
                ERROR, f"curriculum_learning without {name}: DeepSpeed ends with an AssertionError", fix=f"Add {name}."
            )


def elastic(view: View, context: Context) -> Iterator[Problem]:
    """Elastic training decides on the batch alone, within limits that it is given."""
    setting = view.get("elasticity.enabled")
    if not setting.on:
        return
    for name in ("max_train_batch_size", "micro_batch_sizes"):
        if not view.has(f"elasticity.{name}"):
            yield setting.problem(
                ERROR, f"elasticity without {name}: DeepSpeed ends with an ElasticityConfigError", fix=f"Add {name}."
            )
    if view.get("elasticity.ignore_non_elastic_batch_info").on:
        return
    for name in ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"):
        if view.has(name):
            yield view.get(name).problem(
                ERROR, f"{name} beside elasticity, which decides on it: DeepSpeed ends with an ElasticityConfigError",
                fix="Remove it, or set elasticity.ignore_non_elastic_batch_info to true.",
            )  # fmt: skip


RULES = (
    Rule(
        id="activation.contiguous", title="activations that lie together are divided and counted", judge=contiguous,
        source=f"{_ACTIVATIONS}: configure",
    ),
    Rule(
        id="activation.reader", title="who reads activation_checkpointing", judge=activations,
        source=f"{_ACTIVATIONS}: _configure_using_config_file",
    ),
    Rule(
        id="checkpoint.tag-validation", title="checkpoint.tag_validation is a word that DeepSpeed knows", judge=tags,
        source="deepspeed/runtime/config.py: get_checkpoint_tag_validation_mode",
    ),
    Rule(
        id="checkpoint.pipeline-stage", title="parallel_write.pipeline_stage is true or false", judge=pipelined,
        source="deepspeed/runtime/config.py: get_checkpoint_parallel_write_pipeline",
    ),
    Rule(
        id="checkpoint.loading", title="DeepSpeed can load its own checkpoints with this torch", judge=loading,
        before="0.16.0", source="deepspeed/runtime/checkpoint_engine/torch_checkpoint_engine.py: no weights_only=False;"
        " seen with 0.15.4 and torch 2.7.1",
    ),
    Rule(
        id="monitor.package", title="what a monitor needs is there", judge=monitors,
        source="deepspeed/monitor/utils.py: check_tb_availability, check_wandb_availability, check_comet_availability",
    ),
    Rule(
        id="profiler.flops", title="what the flops profiler's figures are worth", judge=flops, since="0.19.8",
        before="0.19.9", source="measured with 0.19.8",
    ),
    Rule(
        id="data.curriculum", title="a curriculum has its metrics, and dynamic batches their limit", judge=curriculum,
        since="0.9.2", source="deepspeed/runtime/data_pipeline/config.py",
    ),
    Rule(
        id="data.old-curriculum", title="the older curriculum says where it begins and ends", judge=old_curriculum,
        before="0.19.8", source="deepspeed/runtime/data_pipeline/curriculum_scheduler.py: __init__",
    ),
    Rule(
        id="elasticity.batch", title="elastic training decides on the batch alone", judge=elastic, before="0.19.8",
        source="deepspeed/elasticity/config.py; deepspeed/runtime/config.py: DeepSpeedConfig.__init__",
    ),
)  # fmt: skip
