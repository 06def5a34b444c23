"""Batch sizes: three keys that have to agree with one another and with the number of processes."""

from __future__ import annotations

from collections.abc import Iterator

from envbuild.dsconfig.context import Context
from envbuild.dsconfig.problem import Problem
from envbuild.dsconfig.rules.asking import ERROR, INFO, whole
from envbuild.dsconfig.rules.rule import Rule
from envbuild.dsconfig.view import Setting, View

TRAIN, MICRO, STEPS = "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"
KEYS = (TRAIN, MICRO, STEPS)
_SOURCE = "deepspeed/runtime/config.py: _set_batch_related_parameters, _batch_assertion"


def missing(view: View, context: Context) -> Iterator[Problem]:
    """One of the two batch sizes is there."""
    if view.has(TRAIN) or view.has(MICRO) or _elastic(view):
        return
    if context.fills_auto:
        yield Problem(
            path=MICRO, severity=INFO, message=f"neither {TRAIN} nor {MICRO} is there",
            fix=f'Write "{MICRO}": "auto".',
            why='Today\'s transformers and accelerate replace what is "auto" and add nothing that is missing.',
            source="transformers/integrations/deepspeed.py: fill_match",
        )  # fmt: skip
        return
    yield Problem(
        path=MICRO, severity=ERROR, message=f"neither {TRAIN} nor {MICRO} is there: DeepSpeed does not start",
        fix=f'Write "{MICRO}": what one GPU takes at a time.',
    )  # fmt: skip


def positive(view: View, context: Context) -> Iterator[Problem]:
    """Batch sizes are whole numbers above 0."""
    for setting in map(view.get, KEYS):
        number = setting.number
        if setting.given and number is not None and number <= 0:
            yield setting.problem(
                ERROR, f"{setting.path} is {number:g}: it has to be greater than 0", fix="Write a number from 1 on."
            )
        elif setting.given and number is not None and whole(setting) is None:
            yield setting.problem(ERROR, f"{setting.path} is {number:g}, not a whole number", fix="Write a whole one.")


def arithmetic(view: View, context: Context) -> Iterator[Problem]:
    """train_batch_size = micro-batch x accumulation steps x processes."""
    train, micro, steps = map(view.get, KEYS)
    # "auto" is another's sum, and what is no number is the schema's to say.
    if _elastic(view) or any(each.given and not (whole(each) or 0) > 0 for each in (train, micro, steps)):
        return
    if not train.given:
        return
    total = whole(train)
    assert total is not None
    known = {name: whole(each) for name, each in ((MICRO, micro), (STEPS, steps)) if each.given}
    ranks = _ranks(view, context)
    product = 1
    for value in known.values():
        assert value is not None
        product *= value
    written = " x ".join(f"{value} ({name})" for name, value in known.items())
    if ranks is None:
        if total % product:
            yield train.problem(
                ERROR, f"{TRAIN} is {total}, which is no multiple of {written or 1} on any number of processes",
                fix=f"Set {TRAIN} to {_nearest(total, product)}, or leave it out.", why=_WHY,
            )  # fmt: skip
        return
    product *= ranks
    written = f"{written} x {ranks} (processes)" if written else f"{ranks} (processes)"
    if len(known) == 2 and product != total:
        yield train.problem(
            ERROR, f"{TRAIN} is {total}, but {written} = {product}",
            fix=f"Set {TRAIN} to {product}, or leave it out: DeepSpeed computes it.", why=_WHY,
        )  # fmt: skip
    elif total % product:
        yield train.problem(
            ERROR, f"{TRAIN} is {total}, which is no multiple of {written} = {product}",
            fix=f"Set {TRAIN} to {_nearest(total, product)}.", why=_WHY,
        )  # fmt: skip


_WHY = f"DeepSpeed computes what is missing by dividing, and ends unless {TRAIN} = {MICRO} x {STEPS} x processes."


def _nearest(total: int, product: int) -> int:
    return max(product, round(total / product) * product)


def _elastic(view: View) -> bool:
    return view.get("elasticity.enabled").on


def _ranks(view: View, context: Context) -> int | None:
    """The processes that each take a batch of their own; None where the configuration alone does not say it."""
    if context.world is None or _several(view.get("tensor_parallel.autotp_size")) or view.has("pipeline"):
        return None
    sequence = whole(view.get("sequence_parallel_size")) or 1
    return context.world // sequence if sequence > 0 and context.world % sequence == 0 else None


def _several(setting: Setting) -> bool:
    return setting.given and setting.value not in (0, 1)


RULES = (
    Rule(id="batch.missing", title="a batch size is given", judge=missing, source=_SOURCE),
    Rule(id="batch.positive", title="batch sizes are whole numbers above 0", judge=positive, source=_SOURCE),
    Rule(
        id="batch.arithmetic", title="train_batch_size = micro-batch x accumulation steps x processes",
        judge=arithmetic, source=_SOURCE,
    ),
)  # fmt: skip
