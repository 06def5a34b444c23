"""Learning-rate schedulers: DeepSpeed's own, and torch's."""

from __future__ import annotations

from collections.abc import Iterator

from envbuild.dsconfig.context import Context
from envbuild.dsconfig.problem import Problem
from envbuild.dsconfig.rules.asking import BF16, ERROR, FP16, WARNING, at_least, dtype, grouped, members, whole
from envbuild.dsconfig.rules.rule import Rule
from envbuild.dsconfig.view import View

_ENGINE = "deepspeed/runtime/engine.py: _scheduler_from_config"
_SCHEDULES = "deepspeed/runtime/lr_schedules.py"
# What has to be given, of DeepSpeed's own schedulers; what else may be is in the release's schema.
_NEEDED = {
    "OneCycle": ("cycle_min_lr", "cycle_max_lr"), "WarmupDecayLR": ("total_num_steps",),
    "WarmupCosineLR": ("total_num_steps",),
}  # fmt: skip
TORCH = (
    "ChainedScheduler", "ConstantLR", "CosineAnnealingLR", "CosineAnnealingWarmRestarts", "CyclicLR", "ExponentialLR",
    "LRScheduler", "LambdaLR", "LinearLR", "MultiStepLR", "MultiplicativeLR", "OneCycleLR", "PolynomialLR",
    "ReduceLROnPlateau", "SequentialLR", "StepLR",
)  # fmt: skip


def has_it(view: View, context: Context) -> Iterator[Problem]:
    """The scheduler is one that DeepSpeed or torch has."""
    setting = view.get("scheduler.type")
    name = setting.value
    if not setting.given or not isinstance(name, str) or setting.auto or name in TORCH:
        return
    if name in view.schema.schedulers:
        return
    alike = next((each for each in (*view.schema.schedulers, *TORCH) if each.lower() == name.lower()), None)
    yield setting.problem(
        ERROR, f"neither DeepSpeed nor torch has a scheduler {name!r}: DeepSpeed ends when it starts",
        fix=f'Write "{alike}".' if alike else f"DeepSpeed has {', '.join(view.schema.schedulers)}.",
    )  # fmt: skip


def of_torch(view: View, context: Context) -> Iterator[Problem]:
    """torch's schedulers get an optimizer of torch's."""
    setting = view.get("scheduler.type")
    if not setting.given or setting.value not in TORCH:
        return
    wrapped = f"ZeRO stage {view.stage}" if view.stage else dtype(view)
    if view.stage or wrapped in (FP16, BF16):
        yield setting.problem(
            ERROR,
            f"torch's {setting.value} with {wrapped}: it is handed DeepSpeed's wrapper, and ends with a TypeError, "
            "'not an Optimizer'",
            fix=f"Use one of DeepSpeed's ({', '.join(view.schema.schedulers)}), or make the scheduler in the script.",
        )  # fmt: skip


def nameless(view: View, context: Context) -> Iterator[Problem]:
    """A scheduler section names one."""
    if view.section("scheduler") is not None and not view.has("scheduler.type"):
        yield view.get("scheduler").problem(
            ERROR, "a scheduler section without a type is ignored", fix='Add "type": "WarmupLR".'
        )


def parameters(view: View, context: Context) -> Iterator[Problem]:
    """The scheduler gets what it needs, and nothing that it does not know."""
    setting = view.get("scheduler.type")
    if not setting.given or not isinstance(setting.value, str):
        return
    if not view.has("scheduler.params"):
        yield setting.problem(
            ERROR, f"{setting.value} without params: DeepSpeed ends with a TypeError", fix='Add "params": {...}.'
        )
        return
    known = view.schema.schedulers.get(setting.value)
    if known is None:
        return
    given = members(view, "scheduler.params")
    for name in _NEEDED.get(setting.value, ()):
        if any(each.key == name for each in given):
            continue
        yield setting.problem(
            ERROR, f"{setting.value} needs {name}: DeepSpeed ends with a TypeError", fix=f"Add {name} to params."
        )
    for each in given:
        if each.key not in known:
            yield Problem(
                path=f"scheduler.params.{each.key}", severity=ERROR, place=each.place,
                message=f"{each.key} is no parameter of {setting.value}: DeepSpeed ends with a TypeError",
                fix=f"It takes {', '.join(sorted(known))}.",
            )  # fmt: skip


def steps(view: View, context: Context) -> Iterator[Problem]:
    """The schedule has a warm-up, and something after it."""
    warmup, total = view.get("scheduler.params.warmup_num_steps"), view.get("scheduler.params.total_num_steps")
    strict = at_least(context, "0.19.5") and warmup.given and warmup.number is not None
    if strict and (not isinstance(warmup.value, int) or warmup.value <= 0):
        yield warmup.problem(
            ERROR,
            f"warmup_num_steps is {warmup.number:g}: this DeepSpeed wants a whole number from 1 on, written without a "
            "point or an e",
            fix=f"Write {max(1, whole(warmup) or 1)}.",
        )
        return
    if not (warmup.given and total.given) or warmup.number is None or total.number is None:
        return
    if warmup.number > total.number:
        yield warmup.problem(
            WARNING,
            f"warmup_num_steps is {grouped(warmup.number)}, more than total_num_steps, {grouped(total.number)}: "
            "the learning rate never reaches its maximum",
            fix="Write less than total_num_steps.",
        )


RULES = (
    Rule(
        id="scheduler.type", title="the scheduler is one that DeepSpeed or torch has", judge=has_it, source=_ENGINE
    ),
    Rule(
        id="scheduler.torch", title="torch's schedulers are not handed ZeRO's optimizer", judge=of_torch,
        source=f"{_ENGINE} hands on the wrapper, which is no torch.optim.Optimizer",
    ),
    Rule(
        id="scheduler.nameless", title="a scheduler section names one", judge=nameless,
        source="deepspeed/runtime/config.py: get_scheduler_name, get_scheduler_params",
    ),
    Rule(
        id="scheduler.parameters", title="the scheduler gets what it needs and knows", judge=parameters,
        source=f"{_SCHEDULES}: __init__",
    ),
    Rule(
        id="scheduler.steps", title="the warm-up has a length, and an end", judge=steps,
        source=f"{_SCHEDULES}: __init__",
    ),
)  # fmt: skip
