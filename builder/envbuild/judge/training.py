"""Is the training step right? Gradients, losses and parameters against plain torch.

Gradients come first: parameters under Adam cannot see a gradient that is off by a factor, because Adam divides it
out. With gradients doubled the parameters moved by 4e-6 and the losses by 6e-6, and the gradients were off by 1.0.
"""

from __future__ import annotations

from typing import Any

from envbuild.judge.number import count, counts, number, numbers, show
from envbuild.judge.outcome import dig
from envbuild.judge.run import Check, Problems, Run, told

# Pass conditions, with what was measured (see MEASURED in run.py) for a good run and for broken ones.
# Good 3.3e-7 (fp32) and 7.3e-3 (bf16); doubled 1.0, zero 1.0, not reduced between ranks 1.0.
GRADIENT_ERROR = {"fp32": 1e-5, "bf16": 5e-2}
# Both kinds of gradients that were never reduced differ from the right ones by 0.7, whatever the factor.
UNREDUCED_ERROR = {"fp32": 1e-4, "bf16": 5e-2}
# Good 1.2e-8 (fp32) and 2.2e-4 (bf16) away from 1; doubled 2.0, not reduced 1.4, zero 0.
GRADIENT_RATIO = 0.01
# Good 2.4e-7 (fp32) and 8.3e-4 (bf16); not reduced 4.5e-1, zero gradients 1.6.
LOSS_DIFFERENCE = {"fp32": 1e-5, "bf16": 5e-3}
# Good 1.5e-7; not reduced 3.3e-2. Only in fp32: in bf16 a good run has 6e-4, near what a broken one may have.
PARAMETER_ERROR = 1e-3
# The probe's task is to learn one batch by heart: a good run's loss falls from 3.74 to 2.16 in ten steps.
LEAST_PROGRESS = 0.1
LEAST_ACCUMULATION = 2
_WAYS = {"own": "its own data alone", "pieces": "each rank's own data, in that rank's part"}

_BAD_GRADIENTS = {
    "zero": "are all zero",
    "missing": "are missing",
    "nonfinite": "hold NaN or infinity",
    "reference_zero": "are zero in plain torch already",
}


def _gradient_error(run: Run) -> Problems:
    limit = GRADIENT_ERROR[run.dtype]
    for name, figures in run.figures:
        error = number(dig(figures, "gradients", "relative_error"))
        if error is None or error > limit:
            worst = dig(figures, "gradients", "worst", "name")
            where = f", worst in {show(worst)}" if worst else ""
            yield f"{name}: {told(figures, 'gradients', 'relative_error')}{where} (limit {limit:g})"


def _gradient_ratio(run: Run) -> Problems:
    for name, figures in run.figures:
        ratio = number(dig(figures, "gradients", "ratio"))
        norms = [number(dig(figures, "gradients", key)) for key in ("norm", "reference_norm")]
        if ratio is None or abs(ratio - 1) > GRADIENT_RATIO or not all(norms):
            sizes = f"{show(norms[0])} to {show(norms[1])}, limit {GRADIENT_RATIO:.0%}"
            yield f"{name}: {told(figures, 'gradients', 'ratio')} times the right one ({sizes})"


def _gradient_zero(run: Run) -> Problems:
    for name, figures in run.figures:
        trainable = count(dig(figures, "gradients", "trainable"))
        tensors = counts(dig(figures, "numels")) or []
        if not trainable or trainable != len(tensors):
            looked = told(figures, "gradients", "trainable")
            yield f"{name}: gradients looked at: {looked}, parameters of the model: {len(tensors)}"
        for key, meaning in _BAD_GRADIENTS.items():
            bad = count(dig(figures, "gradients", key))
            if bad is None or bad > 0:
                yield f"{name}: {told(figures, 'gradients', key)} of {show(trainable)} {meaning}"


def _gradient_reduce(run: Run) -> Problems:
    if len(run.ranks) < 2:
        return
    limit = UNREDUCED_ERROR[run.dtype]
    for name, figures in run.figures:
        for way, meaning in _WAYS.items():
            error = number(dig(figures, "unreduced", way, "error"))
            if error is None and number(dig(figures, "gradients", "norm")):
                yield f"{name}: no figure to tell: {told(figures, 'unreduced', way, 'error')}"
            elif error is not None and error <= limit:
                scale = number(dig(figures, "unreduced", way, "scale"))
                yield f"{name}: they are {show(scale)} times those of {meaning} (apart {error:.2g})"


def _not_finite(run: Run) -> Problems:
    for name, figures in run.figures:
        for key, who in (("losses", "DeepSpeed"), ("reference_losses", "plain torch")):
            losses = dig(figures, key)
            bad = [step for step, loss in enumerate(losses) if number(loss) is None] if isinstance(losses, list) else []
            if bad:
                yield f"{name}: {who}: {show(losses[bad[0]])} in step {bad[0]}"


def _accumulation(run: Run) -> Problems:
    for name, figures in run.figures:
        if (count(dig(figures, "accumulation")) or 0) < LEAST_ACCUMULATION:
            yield f"{name}: {told(figures, 'accumulation')}, not {LEAST_ACCUMULATION}"


def losses(run: Run) -> Problems:
    """Where the losses of a pass are not plain torch's."""
    limit = LOSS_DIFFERENCE[run.dtype]
    own = [numbers(dig(figures, "losses")) or [] for _, figures in run.figures]
    if any(_not_finite(run)):
        return  # told by a rule of its own
    if not own or any(len(each) != run.steps for each in own):
        yield from (f"{name}: {_why_unusable(dig(figures, 'losses'), run.steps)}" for name, figures in run.figures)
        return
    # A rank's loss is the mean of its own equal parts of the batch, so the mean over ranks is the batch's.
    means = [sum(step) / len(step) for step in zip(*own, strict=True)]
    for name, figures in run.figures:
        expected = numbers(dig(figures, "reference_losses"))
        if expected is None or len(expected) != len(means):
            yield f"{name}: plain torch: {_why_unusable(dig(figures, 'reference_losses'), run.steps)}"
            continue
        apart = [abs(mean - right) for mean, right in zip(means, expected, strict=True)]
        step = max(range(len(apart)), key=apart.__getitem__)
        if apart[step] > limit:
            yield (
                f"{name}: {means[step]:.7g} in step {step}, plain torch has {expected[step]:.7g} "
                f"(apart {apart[step]:.2g}, limit {limit:g})"
            )


def _why_unusable(losses: Any, steps: int | None) -> str:
    if not isinstance(losses, list):
        return "losses missing"
    bad = [show(item) for item in losses if number(item) is None]
    return f"{len(losses)} losses for {show(steps)} steps" + (f", among them {bad[0]}" if bad else "")


def _progress(run: Run) -> Problems:
    if any(_not_finite(run)):
        return
    for name, figures in run.figures:
        for key, who in (("losses", "DeepSpeed"), ("reference_losses", "plain torch")):
            losses = numbers(dig(figures, key))
            if not losses or losses[0] <= 0:
                yield f"{name}: {who}: {_why_unusable(dig(figures, key), run.steps)}"
            elif losses[-1] > losses[0] * (1 - LEAST_PROGRESS):
                yield f"{name}: {who}: from {losses[0]:.5g} to {losses[-1]:.5g} in {len(losses)} steps"


def _parameters(run: Run) -> Problems:
    for name, figures in run.figures:
        error = number(dig(figures, "parameters", "relative_error"))
        if error is None or (run.dtype == "fp32" and error > PARAMETER_ERROR):
            yield f"{name}: relative error {told(figures, 'parameters', 'relative_error')} (limit {PARAMETER_ERROR:g})"
        if not number(dig(figures, "parameters", "reference_norm")):
            yield f"{name}: norm in plain torch {told(figures, 'parameters', 'reference_norm')}"
        for key in ("missing", "nonfinite"):
            if count(dig(figures, "parameters", key)) != 0:
                yield f"{name}: {key}: {told(figures, 'parameters', key)}"


_PASSES = ("fp32", "bf16")

CHECKS = (
    Check(
        rule="smoke.loss.nan",
        what="a loss is not a number",
        fix="Something overflows or divides by zero: look at the ops (cpu_baseline, compiler) and at patches.",
        problems=_not_finite,
        passes=(*_PASSES, "nvme"),
    ),
    Check(
        rule="smoke.grad.zero",
        what="not every parameter has a gradient",
        fix="Some parameters would never train. Look at DeepSpeed's version and patches.",
        problems=_gradient_zero,
        passes=_PASSES,
    ),
    Check(
        rule="smoke.grad.reduce",
        what="the gradients were not reduced between ranks",
        fix="Every rank trains on its own data only. Look at DeepSpeed's version and patches, and at the collective "
        "library.",
        problems=_gradient_reduce,
        passes=_PASSES,
    ),
    Check(
        rule="smoke.grad.ratio",
        what="the gradients' norm before the first step is off",
        fix="A constant factor is a wrong average over ranks or accumulation steps; training would look fine for long.",
        problems=_gradient_ratio,
        passes=_PASSES,
    ),
    Check(
        rule="smoke.grad.error",
        what="the gradients before the first step are not those of plain torch",
        fix="The reduced gradients are wrong: look at DeepSpeed's version and patches, and at the collective library.",
        problems=_gradient_error,
        passes=_PASSES,
    ),
    Check(
        rule="smoke.accumulation",
        what="gradients were not accumulated over micro-batches",
        fix="Run smoke again with the probe of this envbuild.",
        problems=_accumulation,
        passes=_PASSES,
    ),
    Check(
        rule="smoke.loss",
        what="the losses are not those of plain torch",
        fix="The steps part from plain torch: look at the optimizer op and its compilation, then at the gradients.",
        problems=losses,
        passes=_PASSES,
    ),
    Check(
        rule="smoke.progress",
        what="the loss does not fall",
        fix="The optimizer does not move the parameters.",
        problems=_progress,
        passes=_PASSES,
    ),
    Check(
        rule="smoke.params",
        what="the parameters after the last step are not those of plain torch",
        fix="The optimizer op computes something else than Adam: look at how it was compiled (cpu_baseline).",
        problems=_parameters,
        passes=_PASSES,
    ),
)
