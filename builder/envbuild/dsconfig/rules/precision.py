"""Number formats: fp16, bf16, amp, autocast, master weights, and what gradients are summed in."""

from __future__ import annotations

from collections.abc import Iterator

from envbuild.dsconfig.context import Context
from envbuild.dsconfig.problem import Problem
from envbuild.dsconfig.rules.asking import (
    BF16,
    ERROR,
    FP32,
    TYPES,
    at_least,
    dtype,
    offloads,
    optimizer,
    precision,
)
from envbuild.dsconfig.rules.rule import Rule
from envbuild.dsconfig.view import View

# From here on the hardware computes bfloat16 (A100); below it is unsupported or emulated.
BF16_SM = 80
FP16_SM = 70
_ENGINE = "deepspeed/runtime/engine.py"
_CONFIG = "deepspeed/runtime/config.py"


def both(view: View, context: Context) -> Iterator[Problem]:
    """fp16 and bf16 are not both on."""
    if view.get("fp16.enabled").on and precision(view).on:
        yield precision(view).problem(
            ERROR, "fp16 and bf16 are both enabled: DeepSpeed ends with an AssertionError",
            fix="Enable one: bf16 from A100 on, fp16 on V100 and T4.",
        )  # fmt: skip


def bf16_on_gpu(view: View, context: Context) -> Iterator[Problem]:
    """The GPU computes bf16."""
    gpu, setting = context.gpu, precision(view)
    if gpu is not None and setting.on and gpu.sm < BF16_SM:
        yield setting.problem(
            ERROR, f"bf16 on {gpu.name} (sm_{gpu.sm}), which does not compute it: unsupported, or slowly emulated",
            fix="Enable fp16 instead.", why=f"bfloat16 begins with sm_{BF16_SM} (A100).",
        )  # fmt: skip


def fp16_on_gpu(view: View, context: Context) -> Iterator[Problem]:
    """The GPU is one on which DeepSpeed allows fp16."""
    gpu, setting = context.gpu, view.get("fp16.enabled")
    if gpu is not None and setting.on and gpu.sm < FP16_SM:
        yield setting.problem(
            ERROR, f"fp16 on {gpu.name} (sm_{gpu.sm}): DeepSpeed refuses it below sm_{FP16_SM}",
            fix="Train in fp32 there; sm_6x can be forced with DS_ALLOW_DEPRECATED_FP16=1.",
        )  # fmt: skip


def fp16_on_cpu(view: View, context: Context) -> Iterator[Problem]:
    """A row that trains on CPUs does not ask for fp16."""
    setting = view.get("fp16.enabled")
    if context.row is not None and context.row.accelerator == "cpu" and setting.on:
        yield setting.problem(
            ERROR, "fp16 on the CPU accelerator: DeepSpeed refuses it on all but CPUs that compute fp16",
            fix="Enable bf16, which every CPU is let do.",
        )  # fmt: skip


def amp(view: View, context: Context) -> Iterator[Problem]:
    """Apex's amp is not mixed with ZeRO, fp16 or bf16."""
    setting = view.get("amp.enabled")
    if not setting.on:
        return
    others = [f"ZeRO stage {view.stage}"] if view.stage else []
    others += [name for name, on in (("fp16", view.get("fp16.enabled").on), ("bf16", precision(view).on)) if on]
    if others:
        yield setting.problem(
            ERROR, f"amp together with {' and '.join(others)}: DeepSpeed ends when it starts",
            fix="Remove amp; fp16 does what its O2 does.",
        )  # fmt: skip


def accumulation(view: View, context: Context) -> Iterator[Problem]:
    """Gradients are summed in a format that goes with the model's."""
    setting, model = view.get("data_types.grad_accum_dtype"), dtype(view)
    if not setting.given or setting.value is None or model is None:
        return
    summed = TYPES.get(setting.value) if isinstance(setting.value, str) else None
    if summed is None:
        yield setting.problem(
            ERROR, f"{setting.value!r} is no format that gradients can be summed in", fix="Write fp32, fp16 or bf16."
        )
        return
    if view.stage:
        if summed != model and not at_least(context, "0.10") and not (
            model == BF16 and summed == FP32 and view.stage == 1
        ):  # fmt: skip
            yield setting.problem(
                ERROR, f"a model in {model} with gradients in {summed}: this DeepSpeed wants them alike under ZeRO",
                fix=f"Remove it, or use DeepSpeed 0.10 or later{', or ZeRO stage 1' if model == BF16 else ''}.",
            )  # fmt: skip
        return
    if summed != model and not (model == BF16 and summed == FP32 and not at_least(context, "0.19.8")):
        yield setting.problem(
            ERROR, f"a model in {model} with gradients in {summed}, without ZeRO: DeepSpeed ends when it starts",
            fix="Remove it, or use ZeRO stage 1.",
        )  # fmt: skip
    elif summed == model == BF16 and not at_least(context, "0.17.1") and not view.has("pipeline"):
        yield setting.problem(
            ERROR, "gradients in bf16 without ZeRO: this DeepSpeed wants fp32 there", fix="Write fp32, or remove it."
        )


def master_weights(view: View, context: Context) -> Iterator[Problem]:
    """Master weights in 16 bits come with the ZeRO stage, the offload and the optimizer that they need."""
    brain = precision(view).path.partition(".")[0]
    for path in ("fp16.fp16_master_weights_and_grads", f"{brain}.bf16_master_weights_and_grads"):
        setting = view.get(path)
        if not setting.on or setting.key is None:
            continue
        stages = (1, 2, 3) if at_least(context, "0.18.3") else (2,)
        states = view.get(f"{brain}.bf16_optimizer_states").on and path.startswith(brain)
        if view.stage not in stages:
            wanted = "1, 2 or 3" if len(stages) > 1 else "2"
            yield setting.problem(
                ERROR, f"{setting.name} needs ZeRO stage {wanted}", fix="Remove it, or set the stage."
            )
        elif not states and not (offloads(view) and optimizer(view) in ("adam", "adamw", None)):
            yield setting.problem(
                ERROR, f"{setting.name} needs the optimizer offloaded, and DeepSpeed's CPU Adam",
                fix='Add "offload_optimizer": {"device": "cpu"} and an Adam, or remove it.',
            )  # fmt: skip
    states_too = view.get(f"{brain}.bf16_optimizer_states")
    if states_too.on and states_too.key is not None and not view.get(f"{brain}.bf16_master_weights_and_grads").on:
        yield states_too.problem(
            ERROR, "bf16_optimizer_states needs bf16_master_weights_and_grads", fix="Enable both, or none."
        )


def parameters(view: View, context: Context) -> Iterator[Problem]:
    """data_types.param_dtype is what fp16 and bf16 say."""
    setting, model = view.get("data_types.param_dtype"), dtype(view)
    if not setting.given or setting.value is None or model is None:
        return
    said = TYPES.get(setting.value) if isinstance(setting.value, str) else None
    if said != model:
        yield setting.problem(
            ERROR, f"param_dtype is {setting.value}, but fp16 and bf16 make the model {model}",
            fix="Remove param_dtype, or enable the format it names.",
        )  # fmt: skip


def autocast(view: View, context: Context) -> Iterator[Problem]:
    """torch_autocast has a format, and is not mixed with quantised weights."""
    kind = view.get("torch_autocast.dtype")
    if kind.given and (not isinstance(kind.value, str) or kind.value not in TYPES):
        yield kind.problem(
            ERROR, f"torch_autocast.dtype is {kind.value!r}: DeepSpeed ends with a ValueError",
            fix="Write bfloat16 or float16.",
        )  # fmt: skip
    if view.get("torch_autocast.enabled").on and view.get("zero_optimization.zero_quantized_weights").on:
        yield view.get("torch_autocast.enabled").problem(
            ERROR, "torch_autocast together with zero_quantized_weights: DeepSpeed ends with an AssertionError",
            fix="Remove one of the two.",
        )  # fmt: skip


RULES = (
    Rule(id="precision.both", title="fp16 and bf16 are not both on", judge=both, source=f"{_CONFIG}: assertion"),
    Rule(
        id="precision.bf16-gpu", title="the GPU computes bf16", judge=bf16_on_gpu,
        source="NVIDIA's compute capabilities; accelerator/cuda_accelerator.py: is_bf16_supported asks torch",
    ),
    Rule(
        id="precision.fp16-gpu", title="DeepSpeed allows fp16 on the GPU", judge=fp16_on_gpu, since="0.13.1",
        source="accelerator/cuda_accelerator.py: is_fp16_supported",
    ),
    Rule(
        id="precision.fp16-cpu", title="no fp16 on the CPU accelerator", judge=fp16_on_cpu, since="0.13.1",
        source="accelerator/cpu_accelerator.py: is_fp16_supported; engine.py: _do_sanity_check",
    ),
    Rule(
        id="precision.amp", title="amp is not mixed with ZeRO, fp16 or bf16", judge=amp, before="0.19.8",
        source=f"{_ENGINE}: _do_optimizer_sanity_check",
    ),
    Rule(
        id="precision.accumulation", title="gradients are summed in a format that goes with the model's",
        judge=accumulation, source=f"{_ENGINE}: get_data_types, _do_optimizer_sanity_check",
    ),
    Rule(
        id="precision.master-weights", title="16-bit master weights have what they need", judge=master_weights,
        source=f"{_CONFIG}: _do_error_check; runtime/zero/stage_1_and_2.py and stage3.py: _configure_master_weights",
    ),
    Rule(
        id="precision.parameters", title="data_types.param_dtype agrees with fp16 and bf16", judge=parameters,
        since="0.19.5", source=f"{_ENGINE}: _assert_valid_mixed_precision_config",
    ),
    Rule(
        id="precision.autocast", title="torch_autocast has a format, and no quantised weights", judge=autocast,
        since="0.17.6", source="deepspeed/runtime/torch_autocast.py: _validate_auto_cast_settings",
    ),
)  # fmt: skip
