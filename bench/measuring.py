"""What measuring costs, and how often its verdicts are right: sessions of real launches, for soak.py. Hours of them.

A comparison that has ended is kept until its check has: one that was killed goes on where it was.
"""

from __future__ import annotations

import dataclasses
import sys
import time
from collections import Counter

from envbuild import store
from envbuild.errors import GateError
from envbuild.pipeline import profiling, sessions
from envbuild.pipeline.profile_wish import Wish
from envbuild.pipeline.workbench import Workbench
from envbuild.profile import comparing, summary
from envbuild.profile.comparing import Asked, Comparison

ROW = "cpu"
ROUNDS = 10
# Changes of the median step by being measured, and what is asked of the verdicts. So small a change takes more rounds.
LIMIT, OVERHEAD_ROUNDS = 0.03, 30
EQUAL, SLOWER, FOUND = 20, 10, 8
SLOW = 0.1
_WISH = Wish(passes=("timing",), steps=40, warmup=5)


def _session(bench: Workbench, base: Wish, candidate: Wish, rounds: int) -> sessions.Session:
    sides = [sessions.Side(subject=profiling.subject(bench, ROW, None, wish), wish=wish) for wish in (base, candidate)]
    return sessions.session_of(sides[0], sides[1], rounds)


def _compared(bench: Workbench, session: sessions.Session) -> Comparison:
    return comparing.compare(*sessions.launch(bench, session), Asked())


def overhead(bench: Workbench, rounds: int = OVERHEAD_ROUNDS) -> list[str]:
    """The timing pass changes the median step by less than 3 %."""
    session = _session(bench, dataclasses.replace(_WISH, unobserved=True), _WISH, rounds)
    found = _compared(bench, session)
    sessions.finish(session.name)
    judged = found.timing.judgement if found.timing else None
    if judged is None or judged.low is None or judged.high is None:
        raise GateError("there were no times to judge, or too few")
    seen = (
        f"measured to unmeasured: {judged.ratio:.4f}, with a chance of 90 % from {judged.low:.4f} to "
        f"{judged.high:.4f}; {judged.rounds} rounds"
    )
    if judged.low <= 1 - LIMIT or judged.high >= 1 + LIMIT:
        raise GateError(seen)
    return [seen]


def equal(bench: Workbench, times: int = EQUAL, rounds: int = ROUNDS) -> list[str]:
    """The image against itself, twenty times: never `regressed`."""
    told = _several(bench, "equal", _WISH, times, rounds)
    if told.verdicts["regressed"]:
        raise GateError(told.text)
    return [told.text, "", *told.table]


def slower(bench: Workbench, times: int = SLOWER, rounds: int = ROUNDS) -> list[str]:
    """A busy wait of 10 % of the step is found in eight of ten comparisons."""
    wait = _wait(bench)
    told = _several(bench, "slower", dataclasses.replace(_WISH, straggle=(wait, None)), times, rounds)
    text = f"{wait:.1f} ms more in each forward pass. {told.text}"
    if told.verdicts["regressed"] < FOUND:
        raise GateError("\n".join([text, "", *told.table]))
    return [text, "", *told.table]


def _wait(bench: Workbench) -> float:
    """Milliseconds of a tenth of the step, for each forward pass of it; the same when the check is begun again."""
    place = store.home() / "soak" / "wait.json"
    subject = profiling.subject(bench, ROW, None, _WISH)
    kept = store.read_json(place) if place.is_file() else None
    if isinstance(kept, dict) and kept.get("image") == subject.info.id:
        return float(kept["wait"])
    steps = [summary.step_median(profiling.profile_image(bench, subject, _WISH)) for _ in range(3)]
    times = sorted(step for step in steps if step is not None)
    if not times:
        raise GateError("the step has no time")
    wait: float = round(1000 * SLOW * times[len(times) // 2] / subject.config.values["gradient_accumulation_steps"], 3)
    store.make_folder(place.parent)
    store.write_json(place, {"image": subject.info.id, "wait": wait})
    return wait


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Told:
    verdicts: Counter[str]
    text: str
    table: list[str]


def _several(bench: Workbench, name: str, candidate: Wish, times: int, rounds: int) -> _Told:
    """Comparisons of the row with itself, the candidate with something added."""
    place = store.home() / "soak" / f"{name}.json"
    question = _session(bench, _WISH, candidate, rounds).name.rpartition("-")[0]
    kept = store.read_json(place) if place.is_file() else None
    rows: list[list[str]] = []
    if isinstance(kept, dict) and kept.get("question") == question:
        rows = kept["rows"]
    store.make_folder(place.parent)
    while len(rows) < times:
        session = _session(bench, _WISH, candidate, rounds)
        found = _compared(bench, session)
        rows.append([found.verdict, *_figures(found), time.strftime("%Y-%m-%d %H:%M", time.gmtime())])
        store.write_json(place, {"question": question, "rows": rows})
        sessions.finish(session.name)
        print(f"soak: {name}: {len(rows)} of {times}: {', '.join(rows[-1])}", file=sys.stderr, flush=True)
    place.unlink()
    verdicts = Counter(row[0] for row in rows)
    heads = ("comparison", "verdict", "ratio", "at least", "at most", "would have seen", "ended (UTC)")
    table = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    table += [f"| {' | '.join([str(number), *row])} |" for number, row in enumerate(rows, 1)]
    told = ", ".join(f"{verdict} {count}" for verdict, count in verdicts.most_common())
    return _Told(verdicts=verdicts, text=f"{times} comparisons, {rounds} rounds each: {told}.", table=table)


def _figures(found: Comparison) -> list[str]:
    judged = found.timing.judgement if found.timing else None
    if judged is None:
        return ["-"] * 4
    bounds = [judged.low, judged.high, 1 + judged.detectable if judged.detectable is not None else None]
    return [f"{judged.ratio:.3f}", *("-" if each is None else f"{each:.3f}" for each in bounds)]
