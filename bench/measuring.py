"""What measuring costs, and how often its verdicts are right: sessions of real launches, for soak.py. Hours of them."""

from __future__ import annotations

import dataclasses
from collections import Counter

from envbuild.errors import GateError
from envbuild.pipeline import profiling, sessions
from envbuild.pipeline.profile_wish import Wish
from envbuild.pipeline.workbench import Workbench
from envbuild.profile import comparing, summary
from envbuild.profile.comparing import Asked, Comparison

ROW = "cpu"
ROUNDS = 10
# Changes of the median step by being measured, and what is asked of the verdicts.
LIMIT = 0.03
EQUAL, SLOWER, FOUND = 20, 10, 8
_WISH = Wish(passes=("timing",), steps=40, warmup=5)


def _compared(bench: Workbench, base: Wish, candidate: Wish, rounds: int) -> Comparison:
    sides = [sessions.Side(subject=profiling.subject(bench, ROW, None, wish), wish=wish) for wish in (base, candidate)]
    session = sessions.session_of(sides[0], sides[1], rounds)
    found = comparing.compare(*sessions.launch(bench, session), Asked())
    sessions.finish(session.name)
    return found


def overhead(bench: Workbench, rounds: int = ROUNDS) -> list[str]:
    """The timing pass changes the median step by less than 3 %."""
    found = _compared(bench, dataclasses.replace(_WISH, unobserved=True), _WISH, rounds)
    judged = found.timing.judgement if found.timing else None
    if judged is None:
        raise GateError("there were no times to judge")
    seen = f"measured to unmeasured: {judged.ratio:.4f} (90 %: {judged.low} to {judged.high}), {judged.rounds} rounds"
    if abs(judged.ratio - 1) >= LIMIT:
        raise GateError(seen)
    return [seen]


def equal(bench: Workbench, times: int = EQUAL, rounds: int = ROUNDS) -> list[str]:
    """The image against itself, twenty times: never `regressed`."""
    verdicts = Counter(_compared(bench, _WISH, _WISH, rounds).verdict for _ in range(times))
    if verdicts["regressed"]:
        raise GateError(f"of {times} comparisons of the image with itself: {dict(verdicts)}")
    return [f"{times} comparisons, {rounds} rounds each: {dict(verdicts)}"]


def slower(bench: Workbench, times: int = SLOWER, rounds: int = ROUNDS) -> list[str]:
    """A busy wait of 10 % of the step is found in eight of ten comparisons."""
    subject = profiling.subject(bench, ROW, None, _WISH)
    step = summary.step_median(profiling.profile_image(bench, subject, _WISH))
    if step is None:
        raise GateError("the step has no time")
    wait = 1000 * 0.1 * step / subject.config.values["gradient_accumulation_steps"]
    busy = dataclasses.replace(_WISH, straggle=(round(wait, 3), None))
    verdicts = Counter(_compared(bench, _WISH, busy, rounds).verdict for _ in range(times))
    told = f"{times} comparisons, {rounds} rounds each, {wait:.1f} ms more in each forward pass: {dict(verdicts)}"
    if verdicts["regressed"] < FOUND:
        raise GateError(told)
    return [told]
