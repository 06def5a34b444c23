"""What comes after the first steps: a checkpoint and back, bf16, states on disk, minutes of training."""

from __future__ import annotations

from typing import Any

from envbuild.judge.number import count, counts, number, numbers, show
from envbuild.judge.outcome import dig
from envbuild.judge.run import Check, Problems, Run, told
from envbuild.judge.setting import LEAST_STEPS
from envbuild.judge.training import losses

LEAST_KEPT_STEPS = 3
# Both ways after a checkpoint: losses 1.2e-7 apart, parameters 7e-9. Without loading 1.7.
# On a GPU sums may come in another order; unverified.
CHECKPOINT_LOSS = {"cpu": 1e-6, "cuda": 1e-5}
CHECKPOINT_PARAMETERS = 1e-6
# What is read back is what was written: 0.
CHECKPOINT_STATE = 1e-9
# A network of other weights started 1.7 away from where the trained one went on.
LEAST_BLANK_DIFFERENCE = 1e-3
# Adam's parameter, gradient and two moments of each swapped tensor.
_NVME_FILES = 4
# In 36 steps of a good run the mean of a tenth fell from 3.4 to 2.0, in 108 to 1.2.
LONG_PROGRESS = 0.05
# In 36 and in 70 steps a good run's memory grew by less than 1 MiB of 760; with 2 MB kept at every step by 63 MiB.
LONG_GROWTH_BYTES = 16 * 1024 * 1024
LONG_GROWTH = 0.02
LEAST_SAMPLES = 8


def _checkpoint(run: Run) -> Problems:
    for name, figures in run.figures:
        yield from (f"{name}: {problem}" for problem in _there_and_back(run, dig(figures, "checkpoint")))


def _there_and_back(run: Run, seen: Any) -> Problems:
    noted, again = numbers(dig(seen, "losses")), numbers(dig(seen, "losses_again"))
    step, blank = count(dig(seen, "step")), number(dig(seen, "blank_loss"))
    if not (count(dig(seen, "saved", "files")) and count(dig(seen, "saved", "bytes"))):
        yield f"files saved: {told(seen, 'saved', 'files')}"
    if dig(seen, "loaded", "path") is not True:
        yield f"DeepSpeed says that it loaded nothing ({told(seen, 'loaded', 'path')})"
    for key in ("client_step", "global_steps"):
        if not step or count(dig(seen, "loaded", key)) != step:
            yield f"{key} after loading is {told(seen, 'loaded', key)}, saved was {show(step)}"
    counters = counts(dig(seen, "loaded", "optimizer_steps"))
    if not counters or counters != counts(dig(seen, "saved", "optimizer_steps")):
        was = told(seen, "saved", "optimizer_steps")
        yield f"the optimizer's step after loading is {told(seen, 'loaded', 'optimizer_steps')}, saved was {was}"
    for key, what in (("parameter_error", "parameters"), ("moment_error", "moments")):
        error = number(dig(seen, "loaded", key))
        if error is None or error > CHECKPOINT_STATE:
            yield f"relative error of the {what} after loading: {told(seen, 'loaded', key)}"
    if not noted or not again or len(noted) != len(again) or len(noted) < LEAST_KEPT_STEPS:
        yield f"losses after saving: {told(seen, 'losses')}, after loading: {told(seen, 'losses_again')}"
        return
    limit = CHECKPOINT_LOSS.get(run.accelerator, CHECKPOINT_LOSS["cpu"])
    apart = max(abs(one - two) for one, two in zip(noted, again, strict=True))
    if apart > limit:
        yield f"the losses went on otherwise: {again} in place of {noted} (apart {apart:.2g}, limit {limit:g})"
    if blank is None or abs(blank - noted[0]) < LEAST_BLANK_DIFFERENCE:
        yield f"the other weights it was loaded into cannot be told from the trained ones (loss {show(blank)})"
    error, moved = number(dig(seen, "parameter_error")), number(dig(seen, "moved"))
    if error is None or error > CHECKPOINT_PARAMETERS:
        yield f"the parameters went on otherwise: {told(seen, 'parameter_error')} (limit {CHECKPOINT_PARAMETERS:g})"
    if not moved:
        yield f"the steps after loading moved nothing ({show(moved)})"


def _bf16(run: Run) -> Problems:
    for name, figures in run.figures:
        supported = dig(figures, "bf16", "supported")
        if not isinstance(supported, bool):
            yield f"{name}: whether the device has it: {told(figures, 'bf16', 'supported')}"
        elif supported and not isinstance(dig(figures, "passes", "bf16"), dict):
            yield f"{name}: the device has it, and no pass used it"
        capability = counts(dig(figures, "device", "capability"))
        if supported is False and capability and capability >= [8, 0]:
            yield f"{name}: sm_{capability[0]}{capability[-1]} has it, torch says no"


def _nvme(run: Run) -> Problems:
    if not run.expected.nvme and not run.has("nvme"):
        return
    run = run.of_pass("nvme")
    disk = dig(run.report, "surroundings", "nvme")
    if dig(disk, "direct") is not True:
        yield (
            f"the folder cannot be used: {told(disk, 'error')} (file system {told(disk, 'kind')}); "
            "async_io opens files past the page cache (O_DIRECT)"
        )
        return
    if run.steps is None or run.steps < LEAST_STEPS:
        yield f"steps: {show(run.steps)}, at least {LEAST_STEPS} are needed"
    for name, figures in run.figures:
        sizes = counts(dig(figures, "swapped_bytes"))
        files, held = count(dig(figures, "swapped", "files")), count(dig(figures, "swapped", "bytes"))
        if not sizes or (files or 0) < _NVME_FILES * len(sizes) or (held or 0) < _NVME_FILES * sum(sizes) * 0.99:
            found = f"{told(figures, 'swapped', 'files')} files of {show(held)} bytes"
            yield f"{name}: on disk lay {found}, of {_NVME_FILES} times {show(sizes)}"
        if count(dig(figures, "swapped", "tensors")) != len(sizes or ()):
            yield f"{name}: tensors swapped: {told(figures, 'swapped', 'tensors')}, not {len(sizes or ())}"
        for key, right in (("config_optimizer", "nvme"), ("swapper", "PartitionedOptimizerSwapper")):
            if dig(figures, "swapped", key) != right:
                yield f"{name}: {key} is {told(figures, 'swapped', key)}, not {right}"
    yield from losses(run)


def _long_report(run: Run) -> Problems:
    for name, figures in run.figures:
        seconds = number(dig(figures, "long", "seconds"))
        if seconds is None or seconds < run.expected.seconds:
            yield f"{name}: {told(figures, 'long', 'seconds')} s of {run.expected.seconds:g}"
        for half in (0, 1):
            found = len(_samples(figures, half, "loss"))
            if found < LEAST_SAMPLES:
                yield f"{name}: {found} samples in half {half + 1}, at least {LEAST_SAMPLES} are needed"


def _samples(figures: Any, half: int, key: str) -> list[float]:
    samples = dig(figures, "long", "samples")
    values = [dig(item, key) for item in samples if dig(item, "half") == half] if isinstance(samples, list) else []
    return numbers(values) or []


def _long_loss(run: Run) -> Problems:
    """Fresh batches, so single losses scatter: the means of the first and of the last tenth are compared."""
    for name, figures in run.figures:
        course = _samples(figures, 0, "loss") + _samples(figures, 1, "loss")
        part = max(1, len(course) // 10)
        first, last = (sum(each) / part for each in (course[:part], course[-part:]))
        if not course or last > first * (1 - LONG_PROGRESS):
            yield f"{name}: from {first:.4g} to {last:.4g}" if course else f"{name}: no losses"


def _long_memory(run: Run) -> Problems:
    for name, figures in run.figures:
        for key in ("rss_bytes", "gpu_bytes") if run.accelerator == "cuda" else ("rss_bytes",):
            for half in (0, 1):
                values = _samples(figures, half, key)
                if len(values) < LEAST_SAMPLES:
                    yield f"{name}: {key}: {len(values)} samples in half {half + 1}"
                    continue
                # The first quarter is warm-up; medians, because a single sample may catch a buffer.
                settled = values[len(values) // 4 :]
                third = max(1, len(settled) // 3)
                early, late = _median(settled[:third]), _median(settled[-third:])
                if late - early > max(LONG_GROWTH_BYTES, early * LONG_GROWTH):
                    yield f"{name}: {key} grew from {early / 2**20:.0f} to {late / 2**20:.0f} MiB in half {half + 1}"


def _median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


def _long_checkpoint(run: Run) -> Problems:
    for name, figures in run.figures:
        yield from (f"{name}: {problem}" for problem in _there_and_back(run, dig(figures, "long", "checkpoint")))


CHECKS = (
    Check(
        rule="smoke.checkpoint",
        what="training does not go on from a checkpoint as it would have without",
        fix="Checkpoints of this image cannot be relied on: look at the versions of torch and DeepSpeed.",
        problems=_checkpoint,
    ),
    Check(
        rule="smoke.bf16",
        what="bf16 was not looked at",
        fix="Run smoke again with the probe of this envbuild.",
        problems=_bf16,
    ),
    Check(
        rule="smoke.nvme",
        what="training with optimizer states on disk is not right",
        fix="async_io does not do its work: look at libaio, and at the folder's disk (the cache folder of envbuild).",
        problems=_nvme,
    ),
)

LONG_CHECKS = (
    Check(
        rule="smoke.long",
        what="the long training is not complete",
        fix="Give it more time (--timeout), or fewer minutes.",
        problems=_long_report,
    ),
    Check(
        rule="smoke.long.loss",
        what="the loss does not fall over minutes",
        fix="Training does not learn a learnable task: look at the optimizer and at the gradients.",
        problems=_long_loss,
    ),
    Check(
        rule="smoke.long.memory",
        what="memory creeps",
        fix="Something is kept at every step: look at DeepSpeed's version and patches.",
        problems=_long_memory,
    ),
    Check(
        rule="smoke.long.checkpoint",
        what="the long training does not go on from its checkpoint as it would have without",
        fix="Checkpoints of this image cannot be relied on: look at the versions of torch and DeepSpeed.",
        problems=_long_checkpoint,
    ),
)
