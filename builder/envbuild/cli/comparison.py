"""Comparisons, baselines and bottlenecks for people and for programs."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import typer

from envbuild.cli import output
from envbuild.errors import FINDINGS, GATE, USAGE
from envbuild.profile import summary
from envbuild.profile.again import in_turns
from envbuild.profile.keys import ASPECTS, Aspect
from envbuild.profile.view import percent, seconds

if TYPE_CHECKING:
    from envbuild.profile.baselines import Stored
    from envbuild.profile.bottleneck import Diagnosis
    from envbuild.profile.comparing import Asked, Comparison, Timing
    from envbuild.profile.document import Measurement
    from envbuild.profile.view import Found

EXIT_CODES = {"same": 0, "faster": 0, "regressed": FINDINGS, "incomparable": USAGE, "inconclusive": GATE}
_COLOURS = {"same": "32", "faster": "32", "regressed": "1;31", "incomparable": "33", "inconclusive": "33"}


def share(text: str) -> float:
    """``5%`` or ``0.05``, understood."""
    found = re.fullmatch(r"(\d{1,3}(?:\.\d+)?)\s*(%?)", text.strip())
    value = float(found[1]) / (100 if found[2] else 1) if found else math.nan
    if not 0 < value < 1:
        raise typer.BadParameter(f"--delta: '{text}' is no share; say 5% or 0.05")
    return value


def aspects(named: Iterable[str]) -> frozenset[Aspect]:
    """What may differ: the image always."""
    known: dict[str, Aspect] = {name: name for name in ASPECTS}
    for name in named:
        if name not in known:
            raise typer.BadParameter(f"--differs: there is no '{name}'; one of {', '.join(ASPECTS)}")
    return frozenset({"image", *(known[name] for name in named)})


def as_dict(found: Comparison, asked: Asked) -> dict[str, Any]:
    """For ``--json``: what is not known is null."""
    body = dataclasses.asdict(found)
    return {**body, "delta": asked.delta, "differs": sorted(asked.differs)}


def show(found: Comparison, base: Measurement, candidate: Measurement) -> None:
    """The verdict first, then what it stands on."""
    output.paragraph(f"{output.paint(found.verdict, _COLOURS[found.verdict])}: ", found.reason)
    for title, rows in (("may not differ", found.undeclared), ("differs, as declared", found.declared)):
        for each in rows:
            output.text(f"  {title}: {each.name}: {_short(each.base)} -> {_short(each.candidate)}")
    if found.unknown:
        output.text(f"  not known on both sides: {', '.join(found.unknown)}")
    for each in found.config:
        output.text(f"  ds_config {each.name}: {each.base} -> {each.candidate}")
    for exact in found.structural:
        output.text(f"  {exact.change}: {exact.figure}: {exact.base} -> {exact.candidate} ({exact.why})")
    losses = found.convergence
    output.text(f"  losses: {losses.verdict}: {losses.reason}")
    if found.timing is not None:
        _show_timing(found.timing, found)
        if not found.timing.interleaved and found.timing.base and found.timing.candidate:
            line, why = in_turns(base, candidate)
            output.paragraph("  next: ", "launch both in turns, on one host and with nothing beside them" + why)
            if line is not None:
                output.text(f"    {line}")
    if found.undeclared:
        flags = " ".join(f"--differs {each}" for each in sorted({each.aspect for each in found.undeclared}))
        output.narrate(f"hint: where that difference is what you compare, declare it: {flags}")


def _show_timing(timing: Timing, found: Comparison) -> None:
    for name, side in (("base", timing.base), ("candidate", timing.candidate)):
        if side is not None:
            output.text(f"  {name}: step {seconds(side.median)}, MAD {seconds(side.mad)}, {side.count} launch(es)")
    judged = timing.judgement
    if judged is not None:
        bounds = f" ({judged.low:.3f} to {judged.high:.3f})" if judged.low and judged.high else ""
        output.text(
            f"  ratio {judged.ratio:.3f}{bounds} over {judged.rounds} rounds; p of no slower {judged.slower:.3f}, "
            f"of no faster {judged.faster:.3f}"
        )
        if timing.means is not None:
            output.text(f"  ratio of the mean steps {timing.means:.3f}")
        seen = "none" if judged.detectable is None else percent(judged.detectable)
        output.text(f"  minimum detectable effect: {seen}")
    for part in found.parts:
        values = [seconds(value) if value is not None else "-" for value in (part.base, part.candidate)]
        output.text(f"  {part.name}: {values[0]} -> {values[1]}")


def _short(value: str) -> str:
    return f"{value[:19]}..." if re.fullmatch(r"(sha256:)?[0-9a-f]{64}", value) else value


def step_of(measurement: Measurement) -> str:
    """The median step for people."""
    value = summary.step_median(measurement)
    return seconds(value) if value is not None else "-"


def show_baseline(stored: Stored) -> None:
    """One baseline with its history."""
    made = stored.baseline
    key = made.measurement.key
    output.pairs(
        [
            ("name", made.name), ("file", str(stored.path)), ("step", step_of(made.measurement)),
            ("image", key.image or "-"), ("ds_config", key.config or "-"), ("model", key.model or "-"),
            ("ranks", str(key.world_size or "-")),
            ("hardware", key.hardware.cpu or ", ".join(key.hardware.gpus) or "-"),
            ("deepspeed", key.deepspeed or "-"), ("torch", key.torch or "-"),
        ]
    )  # fmt: skip
    output.text("history:")
    for each in made.history:
        step = f" ({seconds(each.step_seconds)})" if each.step_seconds is not None else ""
        output.paragraph(f"  {each.at:%Y-%m-%d}  ", f"{each.reason}{step}")


def diagnosis_dict(found: Diagnosis) -> dict[str, Any]:
    """For ``--json``."""
    return {name: [dataclasses.asdict(each) for each in getattr(found, name)] for name in _KINDS.values()} | {
        "findings": [_finding(each) for each in found.found]
    }


def _finding(found: Found) -> dict[str, Any]:
    body = dataclasses.asdict(found)
    del body["proposals"]
    return {**body, "commands": list(found.commands), "changes": list(found.changes)}


_KINDS = {"not it": "cleared", "not looked at": "abstained"}


def show_diagnosis(found: Diagnosis, measured: Measurement) -> None:
    """Findings, worst first; then what it is not."""
    mean = summary.step_mean(summary.timed(measured))
    output.text(f"step {step_of(measured)}" + (f", on average {seconds(mean)}" if mean is not None else ""))
    tokens, start = summary.tokens_per_second(measured), summary.startup_seconds(measured)
    if tokens is not None:
        output.text(f"  {tokens:,.0f} tokens a second")
    if start is not None:
        output.text(f"  start of the communication: {seconds(start)}, once")
    for each in summary.shares(measured):
        part = f", {percent(each.share)}" if each.share is not None else ""
        output.text(f"  {each.name}: {seconds(each.seconds)}{part}")
    if not found.found:
        output.text("No rule finds a bottleneck.")
    for number, one in enumerate(found.found, 1):
        cost = f", about {percent(one.share)} of the step" if one.share is not None and one.rule != "transport" else ""
        output.paragraph(
            f"{number}. ", f"{output.paint(one.title, '1')} [{one.rule}] ({one.confidence} confidence{cost})"
        )
        for line in one.evidence:
            output.paragraph("     ", line)
        output.paragraph("   why: ", one.why)
        output.paragraph("   next: ", one.experiment)
        for command in one.commands:
            output.text(f"     {command}")
        for change in one.changes:
            output.paragraph("     in the training itself: ", change)
    for cleared in found.cleared:
        output.paragraph("not it: ", f"{cleared.rule}: {cleared.evidence}")
    for abstained in found.abstained:
        output.paragraph("not looked at: ", f"{abstained.rule}: no {abstained.missing}")
