"""The optimizer: its name, its parameters, and whether it goes with ZeRO and with offloading."""

from __future__ import annotations

from collections.abc import Iterator

from envbuild.dsconfig.context import Context
from envbuild.dsconfig.problem import Problem
from envbuild.dsconfig.rules.asking import (
    ERROR,
    INFO,
    ONE_BIT,
    OWN_OPTIMIZERS,
    WARNING,
    at_least,
    members,
    offloads,
    optimizer,
)
from envbuild.dsconfig.rules.rule import Rule
from envbuild.dsconfig.view import View

_ENGINE = "deepspeed/runtime/engine.py"
# What a name that is none of DeepSpeed's is looked up in: torch.optim, with capitals, up to torch 2.13.
TORCH = (
    "ASGD", "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "LBFGS", "Muon", "NAdam", "RAdam", "RMSprop",
    "Rprop", "SGD", "SparseAdam",
)  # fmt: skip
_ADAM = {"lr", "betas", "eps", "weight_decay", "amsgrad"}
_LION = {"lr", "betas", "weight_decay"}
# What each class's __init__ takes, the same from 0.8.3 to 0.19.8.
_TAKES = {
    "CPUAdam": _ADAM | {"bias_correction", "fp32_optimizer_states"},
    "FusedAdam": _ADAM | {"bias_correction", "set_grad_none"},
    "torch's Adam": _ADAM | {"foreach", "maximize", "capturable", "differentiable", "fused"},
    "CPULion": _LION | {"fp32_optimizer_states"},
    "FusedLion": _LION | {"set_grad_none"},
    "FusedLamb": _ADAM | {"bias_correction", "eps_inside_sqrt", "max_coeff", "min_coeff"},
}
# What the engine itself takes out of the parameters before that.
_TAKEN = {"adam": {"torch_adam", "adam_w_mode"}, "adamw": {"torch_adam", "adam_w_mode"}}
# On NVMe or in host memory these run where the parameters are.
_ON_CPU = ("adam", "adamw", "adagrad", "lion", "muon")
_CUDA_ONLY = ("lamb",)


def has_it(view: View, context: Context) -> Iterator[Problem]:
    """The type is one that DeepSpeed or torch has."""
    setting, name = view.get("optimizer.type"), optimizer(view)
    if name is None or setting.auto or name in TORCH:
        return
    if name in view.schema.optimizers:
        return
    if name in OWN_OPTIMIZERS:
        yield setting.problem(
            ERROR, f"DeepSpeed {context.deepspeed} has no optimizer {setting.value}",
            fix=f'Use "AdamW", or another of {", ".join(view.schema.optimizers)}.',
        )  # fmt: skip
        return
    if name in ONE_BIT:
        yield setting.problem(
            ERROR, f"{setting.value}: DeepSpeed {context.deepspeed} has no 1-bit optimizers any more",
            fix='Use "AdamW", or DeepSpeed 0.19.5 or older.',
        )  # fmt: skip
        return
    alike = next((each for each in TORCH if each.lower() == str(name).lower()), None)
    yield setting.problem(
        ERROR, f"neither DeepSpeed nor torch.optim has an optimizer {setting.value!r}: DeepSpeed ends when it starts",
        fix=f'Write "{alike}": torch\'s names are compared with their capitals.' if alike else 'Write "AdamW".',
    )  # fmt: skip


def nameless(view: View, context: Context) -> Iterator[Problem]:
    """An optimizer section names one."""
    if view.section("optimizer") is not None and not view.has("optimizer.type"):
        yield view.get("optimizer").problem(
            ERROR, "an optimizer section without a type is ignored", fix='Add "type": "AdamW".'
        )


def clipping(view: View, context: Context) -> Iterator[Problem]:
    """Gradients are clipped by gradient_clipping."""
    setting = view.get("optimizer.params.max_grad_norm")
    if setting.given:
        yield setting.problem(
            ERROR, "max_grad_norm is no parameter of the optimizer: DeepSpeed ends with a ValueError",
            fix=f'Move it to the top: "gradient_clipping": {setting.value}.',
        )  # fmt: skip


def default_clipping(view: View, context: Context) -> Iterator[Problem]:
    """That gradients are clipped is said, where nobody asked for it."""
    setting = view.get("gradient_clipping")
    if not setting.given and not context.fills_auto:
        yield Problem(
            path="gradient_clipping", severity=INFO,
            message=f"gradients are clipped to {setting.value}: this release's default; older ones did not clip",
            fix='Write what is meant: "gradient_clipping": 0 is none.',
        )  # fmt: skip


def parameters(view: View, context: Context) -> Iterator[Problem]:
    """The optimizer's class takes every parameter."""
    name = optimizer(view)
    kind = _class(view, name)
    if kind is None or name is None:
        return
    allowed = _TAKES[kind] | _TAKEN.get(name, set())
    if name in ("adam", "adamw") and at_least(context, "0.19.8"):
        # Newer engines take it out for every Adam.
        allowed = allowed | {"fp32_optimizer_states"}
    for each in members(view, "optimizer.params"):
        if each.key not in allowed and each.key != "max_grad_norm":
            fix = f"It takes {', '.join(sorted(allowed))}."
            if each.key in ("gradient_clipping", "clip_grad"):
                fix = "Move it to the top, as gradient_clipping."
            yield Problem(
                path=f"optimizer.params.{each.key}", severity=ERROR, place=each.place, fix=fix,
                message=f"{each.key} is no parameter of {kind}, which this configuration ends up with: TypeError",
            )  # fmt: skip
    setting = view.get("optimizer.params.amsgrad")
    if kind in ("FusedAdam", "FusedLamb") and setting.on:
        yield setting.problem(ERROR, f"{kind} has no AMSGrad: DeepSpeed ends when it starts", fix="Remove amsgrad.")


def _class(view: View, name: str | None) -> str | None:
    if name in ("adam", "adamw"):
        if view.get("optimizer.params.torch_adam").on:
            return "torch's Adam"
        return "CPUAdam" if offloads(view) else "FusedAdam"
    if name == "lion":
        return "CPULion" if offloads(view) else "FusedLion"
    return "FusedLamb" if name == "lamb" else None


def one_bit(view: View, context: Context) -> Iterator[Problem]:
    """1-bit optimizers are used without ZeRO."""
    name = optimizer(view)
    if name in ONE_BIT and view.stage:
        yield view.get("optimizer.type").problem(
            ERROR, f"{view.get('optimizer.type').value} with ZeRO stage {view.stage}: DeepSpeed ends when it starts",
            fix="Set zero_optimization.stage to 0, or use AdamW.",
        )  # fmt: skip


def untested(view: View, context: Context) -> Iterator[Problem]:
    """ZeRO is used with an optimizer it was tested with, or that is allowed."""
    name = optimizer(view)
    if not view.stage or name is None or name in ONE_BIT or view.get("zero_allow_untested_optimizer").on:
        return
    tested = {"adam", "adamw"}
    if at_least(context, "0.9.2"):
        tested |= {"adagrad", "Adagrad"}
    tested |= {"lion", "muon"} & set(view.schema.optimizers)
    if name not in tested and (name in OWN_OPTIMIZERS or name in TORCH):
        yield view.get("optimizer.type").problem(
            ERROR, f"ZeRO was not tested with {view.get('optimizer.type').value}: DeepSpeed ends when it starts",
            fix='Add "zero_allow_untested_optimizer": true, and compare a short run; or use AdamW.',
        )  # fmt: skip


def offloaded(view: View, context: Context) -> Iterator[Problem]:
    """An offloaded optimizer runs on CPUs, and fast."""
    name = optimizer(view)
    if not offloads(view) or not view.stage or name is None:
        return
    setting = view.get("optimizer.type")
    if name in _CUDA_ONLY:
        yield setting.problem(
            ERROR, f"{setting.value} has no CPU implementation, and the optimizer is offloaded",
            fix="Use AdamW, or keep the optimizer on the GPU.",
        )  # fmt: skip
    elif view.get("optimizer.params.torch_adam").on:
        yield view.get("optimizer.params.torch_adam").problem(
            WARNING, "torch_adam with an offloaded optimizer: torch's Adam steps on the CPU, not DeepSpeed's kernel",
            fix="Remove torch_adam: DeepSpeedCPUAdam is taken then.",
        )  # fmt: skip
    elif name not in _ON_CPU and name in TORCH:
        yield setting.problem(
            WARNING, f"{setting.value} with an offloaded optimizer: torch's steps on the CPU, not DeepSpeed's kernel",
            fix="Use AdamW, Adagrad or Lion, which DeepSpeed has for CPUs.",
        )  # fmt: skip


def client(view: View, context: Context) -> Iterator[Problem]:
    """A script's own optimizer is let be offloaded."""
    if optimizer(view) is not None or not offloads(view) or not view.stage or context.fills_auto:
        return
    forced = view.get("zero_force_ds_cpu_optimizer")
    if forced.value is False:
        return
    yield Problem(
        path="optimizer", severity=WARNING, place=view.get("zero_optimization.offload_optimizer").place,
        message="the optimizer is offloaded, and none is configured: one that the script makes itself is refused, "
        "unless it is DeepSpeedCPUAdam" + (" or DeepSpeedCPULion" if at_least(context, "0.11.1") else ""),
        fix='Add an optimizer section, or "zero_force_ds_cpu_optimizer": false.',
    )  # fmt: skip


def muon(view: View, context: Context) -> Iterator[Problem]:
    """Muon in stage 3 does not scatter gradients."""
    if optimizer(view) == "muon" and view.stage == 3 and view.get("zero_optimization.reduce_scatter").on:
        yield view.get("optimizer.type").problem(
            ERROR, "Muon in ZeRO stage 3 with reduce_scatter: DeepSpeed ends with a ValueError",
            fix="Set zero_optimization.reduce_scatter to false.",
        )  # fmt: skip


def lamb(view: View, context: Context) -> Iterator[Problem]:
    """LAMB has a dynamic loss scale."""
    name, setting = optimizer(view), view.get("fp16.loss_scale")
    if name in ("lamb", "onebitlamb") and view.get("fp16.enabled").on and setting.number:
        yield setting.problem(
            ERROR, f"LAMB with a static loss scale of {setting.number:g}: DeepSpeed ends when it starts",
            fix="Set loss_scale to 0, which is a dynamic one.",
        )  # fmt: skip


RULES = (
    Rule(
        id="optimizer.type", title="the optimizer is one that DeepSpeed or torch has", judge=has_it,
        source=f"{_ENGINE}: _is_supported_optimizer",
    ),
    Rule(
        id="optimizer.nameless", title="an optimizer section names one", judge=nameless,
        source="deepspeed/runtime/config.py: get_optimizer_name, get_optimizer_params",
    ),
    Rule(
        id="optimizer.clipping", title="gradients are clipped by gradient_clipping", judge=clipping,
        source=f"{_ENGINE}: _configure_basic_optimizer",
    ),
    Rule(
        id="optimizer.default-clipping", title="clipping by default is known", judge=default_clipping, since="0.19.5",
        source="deepspeed/runtime/constants.py: GRADIENT_CLIPPING_DEFAULT, 0 up to 0.19.0",
    ),
    Rule(
        id="optimizer.parameters", title="the optimizer takes every parameter", judge=parameters,
        source=f"deepspeed/ops: __init__ of CPUAdam, FusedAdam, CPULion, FusedLion, FusedLamb; {_ENGINE}",
    ),
    Rule(
        id="optimizer.one-bit", title="1-bit optimizers are used without ZeRO", judge=one_bit, before="0.19.8",
        source=f"{_ENGINE}: _configure_basic_optimizer",
    ),
    Rule(
        id="optimizer.untested", title="ZeRO was tested with the optimizer, or it is allowed", judge=untested,
        source="deepspeed/runtime/zero/utils.py: ZERO_SUPPORTED_OPTIMIZERS",
    ),
    Rule(
        id="optimizer.offloaded", title="an offloaded optimizer runs on CPUs", judge=offloaded,
        source=f"{_ENGINE}: _configure_basic_optimizer",
    ),
    Rule(
        id="optimizer.client", title="a script's own optimizer may be offloaded", judge=client,
        source=f"{_ENGINE}: _configure_optimizer",
    ),
    Rule(
        id="optimizer.muon", title="Muon in stage 3 does not scatter gradients", judge=muon, since="0.19.0",
        source="deepspeed/runtime/zero/stage3.py: __init__",
    ),
    Rule(
        id="optimizer.lamb", title="LAMB has a dynamic loss scale", judge=lamb,
        source=f"{_ENGINE}: _do_sanity_check",
    ),
)  # fmt: skip
