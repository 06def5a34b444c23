"""The gate without noise: figures that the same inputs give on every machine, compared exactly; and the losses."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from statistics import fmean
from typing import Literal

from envbuild.profile.document import Launch, Measurement, Parity, Structure

Change = Literal["worse", "better", "changed"]
# Of the first loss, from the measurements of the parity gate: fp32 6e-7 and bf16 6e-4 were good.
_FIRST_LOSS = {"fp32": 1e-5, "low": 5e-3}
# Of the last quarter's mean loss. A convention: no measurement stands behind it.
_DRIFT = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Structural:
    """One exact figure that differs."""

    figure: str
    base: str
    candidate: str
    change: Change
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Convergence:
    """The losses of both sides, of the same seed.

    Attributes:
        first: Difference of the first step's loss.
        largest: The largest difference of one step.
        drift: Difference of the last quarter's mean, relative to the base.
    """

    verdict: Literal["same", "differs", "diverged", "unknown"]
    reason: str
    steps: int = 0
    first: float | None = None
    largest: float | None = None
    drift: float | None = None


def structure(measurement: Measurement) -> Structure:
    """The first of each exact figure that one of the launches has."""
    found: dict[str, object] = {}
    for launch in measurement.launches:
        filled = launch.structure
        names = set(filled.model_fields_set)
        if not filled.collectives or "collectives" in found:
            names -= {"collectives", "steps"}
        found.update({name: getattr(filled, name) for name in names if name not in found})
    return Structure.model_validate(found)


def compare(base: Measurement, candidate: Measurement) -> list[Structural]:
    """Every exact figure that both sides have and that differs."""
    ours, theirs = structure(base), structure(candidate)
    found = _collectives(ours, theirs)
    if ours.parameters and theirs.parameters:
        if ours.parameters != theirs.parameters:
            why = "another number of parameters is another model"
            found.append(_changed("parameters", ours.parameters, theirs.parameters, "changed", why))
        for name, what in (("host_tensor_bytes", "host memory"), ("checkpoint_bytes", "a checkpoint")):
            a, b = getattr(ours, name), getattr(theirs, name)
            if a is not None and b is not None and a * theirs.parameters != b * ours.parameters:
                per = [f"{each:.2f} B/parameter" for each in (a / ours.parameters, b / theirs.parameters)]
                change: Change = "worse" if b * ours.parameters > a * theirs.parameters else "better"
                why = f"what {what} holds per parameter follows from the configuration alone"
                found.append(Structural(figure=name, base=per[0], candidate=per[1], change=change, why=why))
    found += _parity(ours.parity, theirs.parity)
    for name in sorted({*ours.devices} & {*theirs.devices}):
        if ours.devices[name] != theirs.devices[name]:
            why = "offloading did not put it where it was"
            found.append(_changed(f"devices.{name}", ours.devices[name], theirs.devices[name], "worse", why))
    return found


def _collectives(ours: Structure, theirs: Structure) -> list[Structural]:
    if not (ours.collectives and theirs.collectives and ours.steps and theirs.steps):
        return []
    found = []
    a, b = ({each.op: each for each in side.collectives} for side in (ours, theirs))
    for op in sorted({*a, *b}):
        for name, why in (("count", "each has a latency of its own"), ("bytes", "each byte crosses the network")):
            left = getattr(a[op], name) if op in a else 0
            right = getattr(b[op], name) if op in b else 0
            if left is None or right is None:
                continue
            base, candidate = Fraction(left, ours.steps), Fraction(right, theirs.steps)
            if base != candidate:
                change: Change = "worse" if candidate > base else "better"
                texts = [f"{float(each):,.10g} a step" for each in (base, candidate)]
                found.append(
                    Structural(figure=f"{op}.{name}", base=texts[0], candidate=texts[1], change=change, why=why)
                )
    return found


def _parity(ours: tuple[Parity, ...], theirs: tuple[Parity, ...]) -> list[Structural]:
    before = {each.precision: each.passed for each in ours}
    why = "the step does not compute what plain torch computes"
    return [
        _changed(f"parity.{each.precision}", "passed" if before.get(each.precision) else "-", "failed", "worse", why)
        for each in theirs
        # A candidate that trains wrong is no candidate, whatever the base did.
        if not each.passed
    ]


def _changed(figure: str, base: object, candidate: object, change: Change, why: str) -> Structural:
    return Structural(figure=figure, base=str(base), candidate=str(candidate), change=change, why=why)


def convergence(base: Measurement, candidate: Measurement) -> Convergence:
    """Losses of the same seed, step by step."""
    ours, theirs = ({launch.seed: launch for launch in side.launches if _losses(launch)} for side in (base, candidate))
    if not ours or not theirs:
        return Convergence(verdict="unknown", reason="no losses on both sides")
    seeds = [seed for seed in ours if seed in theirs and seed is not None]
    if not seeds:
        return Convergence(verdict="unknown", reason="no launch of the same seed on both sides")
    a, b = _losses(ours[seeds[0]]), _losses(theirs[seeds[0]])
    steps = sorted(a.keys() & b.keys())
    if not steps:
        return Convergence(verdict="unknown", reason="no step on both sides")
    broken = [step for step in steps if math.isfinite(a[step]) and not math.isfinite(b[step])]
    if broken:
        reason = f"the candidate's loss is {b[broken[0]]} at step {broken[0]}"
        return Convergence(verdict="diverged", reason=reason, steps=len(steps))
    steps = [step for step in steps if math.isfinite(a[step])]
    if not steps:
        return Convergence(verdict="unknown", reason="the base's loss is no number either")
    gaps = [abs(a[step] - b[step]) for step in steps]
    last = steps[-max(1, len(steps) // 4) :]
    level = fmean(a[step] for step in last)
    drift = (fmean(b[step] for step in last) - level) / abs(level) if level else 0.0
    allowed = _FIRST_LOSS["low" if _low(base) or _low(candidate) else "fp32"]
    figures = {"steps": len(steps), "first": gaps[0], "largest": max(gaps), "drift": drift}
    if drift > _DRIFT:
        reason = f"the last quarter's loss is {drift:.1%} higher"
        return Convergence(verdict="diverged", reason=reason, **figures)  # type: ignore[arg-type]
    if gaps[0] > allowed:
        reason = f"the first loss differs by {gaps[0]:.1e}; {allowed:.0e} is what rounding explains"
        return Convergence(verdict="differs", reason=reason, **figures)  # type: ignore[arg-type]
    return Convergence(verdict="same", reason="the losses agree", **figures)  # type: ignore[arg-type]


def _losses(launch: Launch) -> dict[int, float]:
    """The mean loss of the ranks that have one, by step."""
    found: dict[int, list[float]] = {}
    for rank in launch.ranks:
        for number, loss in zip(rank.steps.number, rank.steps.loss, strict=False):
            if loss is not None:
                found.setdefault(number, []).append(loss)
    return {number: fmean(each) for number, each in found.items()}


def _low(measurement: Measurement) -> bool:
    config = measurement.config or {}
    return any(isinstance(config.get(key), dict) and config[key].get("enabled") for key in ("bf16", "bfloat16", "fp16"))
