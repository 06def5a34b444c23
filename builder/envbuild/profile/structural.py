"""The gate without noise: figures that the same inputs give on every machine, compared exactly; and the losses."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import cycle
from statistics import fmean
from typing import Literal

from envbuild.profile.document import Launch, Measurement, Parity, Structure

Change = Literal["worse", "better", "changed", "missing"]
# Of the first loss, from the measurements of the parity gate: fp32 6e-7 and bf16 6e-4 were good.
_FIRST_LOSS = {"fp32": 1e-5, "low": 5e-3}
# Of the last quarter's mean loss. A convention: no measurement stands behind it.
_DRIFT = 0.01
# Of a base whose loss is nothing but rounding.
_MOST_DRIFT = 1e9
# What a figure is called that says whether the step is right.
PARITY = "parity."
_WORST = ("diverged", "differs", "unknown", "same")


@dataclass(frozen=True, slots=True, kw_only=True)
class Structural:
    """One exact figure that differs, or that the candidate lacks.

    Attributes:
        change: ``changed`` is neither better nor worse by itself: it is another thing, or none is left of it.
    """

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
    """The first of each exact figure that one of the launches has; a parity that failed in any of them failed."""
    found: dict[str, object] = {}
    checked: dict[str, Parity] = {}
    for launch in measurement.launches:
        filled = launch.structure
        names = set(filled.model_fields_set) - {"parity"}
        for each in filled.parity:
            if not each.passed or each.precision not in checked:
                checked[each.precision] = each
        if not filled.collectives or "collectives" in found:
            names -= {"collectives", "steps"}
        found.update({name: getattr(filled, name) for name in names if name not in found})
    return Structure.model_validate({**found, "parity": tuple(checked.values())})


def shared(base: Measurement, candidate: Measurement) -> bool:
    """Whether there is any exact figure that both sides have."""
    ours, theirs = (_names(structure(side)) for side in (base, candidate))
    return bool(ours & theirs)


def right(measured: Measurement) -> bool:
    """Whether its step was held against plain torch, and computes the same."""
    checked = structure(measured).parity
    return bool(checked) and all(each.passed for each in checked)


def compare(base: Measurement, candidate: Measurement) -> list[Structural]:
    """Every exact figure of the base that the candidate has not, or another one of."""
    ours, theirs = structure(base), structure(candidate)
    why = "what was not measured was not seen to be right"
    found = [_changed(name, "measured", "-", "missing", why) for name in sorted(_names(ours) - _names(theirs))]
    found += _collectives(ours, theirs)
    if ours.parameters and theirs.parameters:
        if ours.parameters != theirs.parameters:
            why = "another number of parameters is another model"
            found.append(_changed("parameters", ours.parameters, theirs.parameters, "changed", why))
        for name, what in (("host_tensor_bytes", "host memory"), ("checkpoint_bytes", "a checkpoint")):
            a, b = getattr(ours, name), getattr(theirs, name)
            if a is not None and b is not None and a * theirs.parameters != b * ours.parameters:
                per = [f"{each:.2f} B/parameter" for each in (a / ours.parameters, b / theirs.parameters)]
                change = _change(Fraction(a, ours.parameters), Fraction(b, theirs.parameters))
                why = f"what {what} holds per parameter follows from the configuration alone"
                found.append(Structural(figure=name, base=per[0], candidate=per[1], change=change, why=why))
    found += _parity(ours.parity, theirs.parity)
    for name in sorted({*ours.devices} & {*theirs.devices}):
        if ours.devices[name] != theirs.devices[name]:
            why = "offloading did not put it where it was"
            found.append(_changed(f"devices.{name}", ours.devices[name], theirs.devices[name], "worse", why))
    return found


def _names(found: Structure) -> set[str]:
    """The exact figures that there are."""
    sizes = ("parameters", "host_tensor_bytes", "checkpoint_bytes")
    names = {name for name in sizes if getattr(found, name) is not None}
    if found.collectives and found.steps:
        names.add("collectives")
    if found.parity:
        names.add("parity")
    return names | {f"devices.{name}" for name in found.devices}


def _change(base: Fraction, candidate: Fraction) -> Change:
    # Of nothing nobody knows whether it was spared, left out, or not found.
    return "worse" if candidate > base else "better" if candidate else "changed"


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
                change = _change(base, candidate)
                texts = [f"{float(each):,.10g} a step" for each in (base, candidate)]
                found.append(
                    Structural(figure=f"{op}.{name}", base=texts[0], candidate=texts[1], change=change, why=why)
                )
    return found


def _parity(ours: tuple[Parity, ...], theirs: tuple[Parity, ...]) -> list[Structural]:
    before = {each.precision: each.passed for each in ours}
    said = {True: "passed", False: "failed", None: "-"}
    why = "the step does not compute what plain torch computes"
    found = []
    for each in theirs:
        if not each.passed:
            held = before.get(each.precision)
            # What fails on both sides alike is the training's, or this check's: the candidate has not brought it.
            change: Change = "changed" if held is False else "worse"
            found.append(_changed(f"{PARITY}{each.precision}", said[held], "failed", change, why))
    return found


def _changed(figure: str, base: object, candidate: object, change: Change, why: str) -> Structural:
    return Structural(figure=figure, base=str(base), candidate=str(candidate), change=change, why=why)


def convergence(base: Measurement, candidate: Measurement) -> Convergence:
    """Losses of the same seed, step by step: the worst that one of the candidate's launches shows."""
    ours, theirs = ([launch for launch in side.launches if _losses(launch)] for side in (base, candidate))
    if not ours or not theirs:
        return Convergence(verdict="unknown", reason="no losses on both sides")
    allowed = _FIRST_LOSS["low" if _low(base) or _low(candidate) else "fp32"]
    found = [
        _learned(_losses(before), _losses(after), allowed)
        for seed in dict.fromkeys(launch.seed for launch in ours if launch.seed is not None)
        # The nth with the nth; where one side has more of them, its first ones are taken again.
        for before, after in _pairs(*([each for each in side if each.seed == seed] for side in (ours, theirs)))
    ]
    if not found:
        return Convergence(verdict="unknown", reason="no launch of the same seed on both sides")
    return min(found, key=lambda each: _WORST.index(each.verdict))


def _pairs(ours: Sequence[Launch], theirs: Sequence[Launch]) -> list[tuple[Launch, Launch]]:
    if len(ours) > len(theirs):
        return list(zip(ours, cycle(theirs), strict=False)) if theirs else []
    return list(zip(cycle(ours), theirs, strict=False))


def _learned(a: dict[int, float], b: dict[int, float], allowed: float) -> Convergence:
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
    drift = min((fmean(b[step] for step in last) - level) / abs(level), _MOST_DRIFT) if level else 0.0
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
    # Not fmean, which refuses infinities of both signs: their mean is no number, like one that a rank has.
    return {number: sum(each) / len(each) for number, each in found.items()}


def _low(measurement: Measurement) -> bool:
    config = measurement.config or {}
    return any(isinstance(config.get(key), dict) and config[key].get("enabled") for key in ("bf16", "bfloat16", "fp16"))
