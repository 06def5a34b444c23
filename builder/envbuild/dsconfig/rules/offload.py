"""Offloading to host memory: what moves, in which stage, and what has no effect there."""

from __future__ import annotations

from collections.abc import Iterator

from envbuild.dsconfig.context import Context
from envbuild.dsconfig.problem import Problem
from envbuild.dsconfig.rules.asking import ERROR, INFO, WARNING, at_least, members, optimizer
from envbuild.dsconfig.rules.rule import Rule
from envbuild.dsconfig.view import View

Z = "zero_optimization"
_OFFLOAD = "deepspeed/runtime/zero/offload_config.py"
_ENGINE = "deepspeed/runtime/engine.py"
# Of the NVMe swappers alone.
_NVME_ONLY = {
    "optimizer": ("nvme_path", "buffer_count", "pipeline", "pipeline_read", "pipeline_write", "fast_init"),
    "param": ("nvme_path", "buffer_count", "buffer_size", "max_in_cpu"),
}
_REPLACED = (
    ("cpu_offload", "offload_optimizer"),
    ("cpu_offload_param", "offload_param"),
    ("stage3_gather_fp16_weights_on_model_save", "stage3_gather_16bit_weights_on_model_save"),
)


def parameters_below_3(view: View, context: Context) -> Iterator[Problem]:
    """Parameters are offloaded in stage 3 only."""
    if view.device("param") is None or view.stage == 3:
        return
    old = view.get(f"{Z}.cpu_offload_param")
    setting = old if view.section(f"{Z}.offload_param") is None else view.get(f"{Z}.offload_param.device")
    yield setting.problem(
        ERROR, f"parameters are offloaded in stage 3 only; this is {view.stage}, where offload_param is ignored",
        fix=f"Set {Z}.stage to 3, or remove offload_param.",
        why="The file is accepted, nothing is offloaded, and the GPU holds every parameter.",
    )  # fmt: skip


def optimizer_without_zero(view: View, context: Context) -> Iterator[Problem]:
    """The optimizer is offloaded from stage 1 on."""
    if view.device("optimizer") is None or view.stage:
        return
    old = view.get(f"{Z}.cpu_offload")
    setting = old if view.section(f"{Z}.offload_optimizer") is None else view.get(f"{Z}.offload_optimizer.device")
    yield setting.problem(
        ERROR, "the optimizer is offloaded from ZeRO stage 1 on; this is stage 0",
        fix=f"Set {Z}.stage to 1, 2 or 3, or remove offload_optimizer.",
        why="DeepSpeed takes its CPU optimizer nevertheless, which refuses parameters that lie on a GPU.",
    )  # fmt: skip


def nvme_below_3(view: View, context: Context) -> Iterator[Problem]:
    """NVMe is for stage 3."""
    setting = view.get(f"{Z}.offload_optimizer.device")
    if view.device("optimizer") == "nvme" and view.stage in (1, 2):
        what = "host memory is used instead" if at_least(context, "0.10.3") else "it is not offloaded"
        yield setting.problem(
            ERROR, f"offload_optimizer to nvme in ZeRO stage {view.stage}: NVMe is for stage 3; {what}",
            fix=f"Set {Z}.stage to 3, or device to cpu.",
        )  # fmt: skip


def old_and_new(view: View, context: Context) -> Iterator[Problem]:
    """A deprecated key does not stand beside the one that replaced it."""
    for old, new in _REPLACED:
        setting = view.get(f"{Z}.{old}")
        if setting.given and view.has(f"{Z}.{new}"):
            yield setting.problem(
                ERROR, f"{setting.name} beside {view.get(f'{Z}.{new}').name}, which replaced it: DeepSpeed ends",
                fix=f"Remove {setting.name}.",
            )  # fmt: skip


def ratio(view: View, context: Context) -> Iterator[Problem]:
    """A part of the optimizer is offloaded in stage 3 only, and with Adam."""
    setting = view.get(f"{Z}.offload_optimizer.ratio")
    number = setting.number
    if not setting.given or number is None or not 0 <= number < 1:
        return
    if view.stage != 3:
        said = "DeepSpeed ends when it starts" if at_least(context, "0.15.0") else "it is ignored"
        yield setting.problem(
            ERROR, f"ratio {number:g} in ZeRO stage {view.stage}: a part is offloaded in stage 3 only; {said}",
            fix="Remove ratio, or set stage to 3.",
        )  # fmt: skip
    elif view.device("optimizer") is not None and optimizer(view) not in (None, "adam", "adamw"):
        yield setting.problem(
            ERROR, f"ratio {number:g} with {optimizer(view)}: DeepSpeed does that with its CPU Adam only",
            fix='Remove ratio, or set optimizer.type to "AdamW".',
        )  # fmt: skip


def superoffload(view: View, context: Context) -> Iterator[Problem]:
    """super_offload is for stage 3."""
    setting = view.get(f"{Z}.offload_optimizer.super_offload")
    if setting.on and view.stage != 3:
        yield setting.problem(
            WARNING, f"super_offload is for stage 3; this is {view.stage}, where it is ignored", fix="Remove it."
        )


def nvme_keys(view: View, context: Context) -> Iterator[Problem]:
    """Keys of the NVMe swappers are said to have no effect elsewhere."""
    for what, names in _NVME_ONLY.items():
        if view.device(what) == "nvme":
            continue
        found = [each for each in members(view, f"{Z}.offload_{what}") if each.key in names and each.node.value]
        if found:
            yield Problem(
                path=f"{Z}.offload_{what}.{found[0].key}", severity=INFO, place=found[0].place,
                message=f"no effect without NVMe: {', '.join(each.key for each in found)}", fix="Remove them.",
            )  # fmt: skip


RULES = (
    Rule(
        id="offload.parameters-stage", title="parameters are offloaded in stage 3", judge=parameters_below_3,
        source=f"{_ENGINE}: _configure_zero_optimizer hands offload_param to stage 3 only; seen with 0.19.8",
    ),
    Rule(
        id="offload.optimizer-stage", title="the optimizer is offloaded from stage 1 on", judge=optimizer_without_zero,
        source=f"{_ENGINE}: zero_use_cpu_optimizer does not ask for the stage",
    ),
    Rule(
        id="offload.nvme-stage", title="NVMe is for stage 3", judge=nvme_below_3,
        source="deepspeed/runtime/zero/stage_1_and_2.py: any device but none is host memory",
    ),
    Rule(
        id="offload.old-and-new", title="no deprecated key stands beside its replacement", judge=old_and_new,
        source="deepspeed/runtime/config_utils.py: _process_deprecated_field",
    ),
    Rule(
        id="offload.ratio", title="a part of the optimizer is offloaded in stage 3 only, and with Adam", judge=ratio,
        since="0.12.3", source="deepspeed/runtime/zero/config.py: offload_ratio_check; stage3.py: backup_optimizer",
    ),
    Rule(
        id="offload.super-offload", title="super_offload is for stage 3", judge=superoffload, since="0.18.0",
        source=f"{_OFFLOAD}: super_offload",
    ),
    Rule(
        id="offload.nvme-keys", title="keys of the NVMe swappers stand with NVMe", judge=nvme_keys,
        source="deepspeed/runtime/swap_tensor: nothing else reads them",
    ),
)  # fmt: skip
