"""Two measurements against one another: the key, the exact figures, the losses, and the times by rounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from envbuild.profile import keys, structural, summary
from envbuild.profile.document import Launch, Measurement
from envbuild.profile.keys import Aspect, Difference
from envbuild.profile.statistics import Judgement, Spread, Verdict, judge, spread
from envbuild.profile.structural import Convergence, Structural

# Why two sides are incomparable whose parity fails alike.
WRONG = "neither step computes what plain torch does"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a comparison is to decide.

    Attributes:
        delta: The change of the step time that matters.
        differs: In what the two sides may differ; in nothing else.
        times: Whether the times are judged, too: not in CI, on hosts that nobody knows.
    """

    delta: float = 0.05
    differs: frozenset[Aspect] = frozenset({"image"})
    times: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """The step times.

    Attributes:
        interleaved: Whether the two sides were launched in turns, in one session.
        judgement: None where there was nothing to judge.
        means: Median of the rounds' ratios of mean steps: what is slow in few of the steps is in no median.
    """

    interleaved: bool
    base: Spread | None
    candidate: Spread | None
    judgement: Judgement | None
    verdict: Verdict
    reason: str
    means: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PartChange:
    """A piece of the step on both sides, in seconds."""

    name: str
    base: float | None
    candidate: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Everything that was compared, and what it comes to.

    Attributes:
        declared: Differences of the keys that were allowed.
        undeclared: Those that were not: the two cannot be compared.
        unknown: What neither or only one side knows of its key, so that nobody can say whether it differs.
        timing: None where the times were not to be judged.
    """

    verdict: Verdict
    reason: str
    declared: tuple[Difference, ...]
    undeclared: tuple[Difference, ...]
    unknown: tuple[str, ...]
    config: tuple[Difference, ...]
    structural: tuple[Structural, ...]
    timing: Timing | None
    parts: tuple[PartChange, ...]
    convergence: Convergence


def compare(base: Measurement, candidate: Measurement, asked: Asked) -> Comparison:
    """Judge the candidate by the base."""
    found = keys.differences(base.key, candidate.key)
    # Exact figures are the same on every machine: without times it may be another one.
    differs = asked.differs if asked.times else asked.differs | {"hardware"}
    undeclared = tuple(each for each in found if each.aspect not in differs)
    exact = structural.compare(base, candidate)
    doubt = _doubt(base, candidate, exact, asked)
    if "config" in asked.differs:
        # Another stage has other collectives: that was the wish. Whether it trains right, and where, stays a gate.
        exact = [_wished(each) for each in exact]
    losses = structural.convergence(base, candidate)
    times = _timing(base, candidate, asked) if asked.times else None
    verdict, reason = _verdict(undeclared, exact, losses, times, doubt)
    return Comparison(
        verdict=verdict, reason=reason, undeclared=undeclared, timing=times, convergence=losses,
        declared=tuple(each for each in found if each.aspect in differs),
        unknown=_unknown(base, candidate),
        config=tuple(keys.config_changes(base, candidate)),
        structural=tuple(exact),
        parts=_parts(base, candidate),
    )  # fmt: skip


def rounds(base: Measurement, candidate: Measurement) -> list[tuple[Launch, Launch]]:
    """The launches of one session that stood in one round, a pair each, in order."""
    sides: list[dict[tuple[str, int], Launch]] = []
    for measurement in (base, candidate):
        known: dict[tuple[str, int], Launch] = {}
        for launch in summary.timed(measurement):
            if launch.turn is not None:
                known.setdefault((launch.turn.session, launch.turn.position // 2), launch)
        sides.append(known)
    shared = sorted(sides[0].keys() & sides[1].keys())
    return [
        (sides[0][each], sides[1][each])
        for each in shared
        # The same place twice is one document against itself, and no round.
        if _place(sides[0][each]) != _place(sides[1][each])
    ]


def _place(launch: Launch) -> int | None:
    return launch.turn.position if launch.turn is not None else None


def _timing(base: Measurement, candidate: Measurement, asked: Asked) -> Timing:
    before, after = (_medians(summary.timed(side)) for side in (base, candidate))
    ours, theirs = spread(before), spread(after)
    if not before or not after:
        which = "neither side" if not before and not after else "only one side"
        reason = f"{which} has step times"
        return Timing(
            interleaved=False, judgement=None, verdict="inconclusive", reason=reason, base=ours, candidate=theirs
        )
    paired = rounds(base, candidate)
    if not paired:
        reason = (
            "the two sides were not launched in turns: what the host did meanwhile cannot be told from what the "
            "candidate does, so their times decide nothing"
        )
        return Timing(
            interleaved=False, judgement=None, verdict="inconclusive", reason=reason, base=ours, candidate=theirs
        )
    columns = [_medians(side) for side in zip(*paired, strict=True)]
    judgement = judge(columns[0], columns[1], delta=asked.delta)
    verdict, reason = judgement.verdict, judgement.reason
    ratios = [after / before for pair in paired for before, after in [_means(pair)] if before and after]
    if verdict in ("same", "faster") and ratios and min(ratios) > 1 + asked.delta:
        verdict = "inconclusive"
        reason = (
            f"the median step is not slower, but the mean is in every round, by {median(ratios) - 1:.1%} in their "
            "middle: some of the candidate's steps take longer"
        )
    means = median(ratios) if ratios else None
    return Timing(
        interleaved=True, judgement=judgement, verdict=verdict, reason=reason, means=means, base=ours, candidate=theirs
    )


def _means(pair: tuple[Launch, Launch]) -> tuple[float | None, float | None]:
    return summary.step_mean(pair[:1]), summary.step_mean(pair[1:])


def _medians(launches: Sequence[Launch]) -> list[float]:
    return [value for launch in launches if (value := summary.launch_seconds(launch)) is not None]


def _verdict(
    undeclared: Sequence[Difference], exact: Sequence[Structural], losses: Convergence, times: Timing | None,
    doubt: str | None,
) -> tuple[Verdict, str]:  # fmt: skip
    if undeclared:
        names = ", ".join(sorted({each.aspect for each in undeclared}))
        return "incomparable", f"they differ in what was not declared: {names}"
    if any(each.figure == "parameters" and each.change == "changed" for each in exact):
        return "incomparable", "the models have different numbers of parameters"
    worse = [each.figure for each in exact if each.change == "worse"]
    if worse:
        return "regressed", f"exact figures are worse: {', '.join(worse)}"
    if losses.verdict == "diverged":
        return "regressed", f"it does not learn as the base does: {losses.reason}"
    wrong = [each.figure for each in exact if each.figure.startswith(structural.PARITY) and each.change == "changed"]
    if wrong and not (times is not None and times.verdict == "regressed"):
        why = f"{', '.join(wrong)} failed on both sides: {WRONG}, so that one is no measure of the other"
        return "incomparable", why
    if times is not None and times.verdict not in ("same", "faster"):
        return times.verdict, times.reason
    missing = [each.figure for each in exact if each.change == "missing"]
    if missing:
        return "inconclusive", f"the candidate lacks exact figures that the base has: {', '.join(missing)}"
    if doubt is not None:
        return "inconclusive", doubt
    if times is not None:
        return times.verdict, times.reason
    if any(each.change == "better" for each in exact):
        return "faster", "exact figures are better, and none is worse"
    return "same", "no exact figure is worse"


def _doubt(base: Measurement, candidate: Measurement, exact: Sequence[Structural], asked: Asked) -> str | None:
    """Why exact figures that are not worse are no pass yet."""
    if not asked.times and not structural.shared(base, candidate):
        return "there is no exact figure on both sides"
    less = [each.figure for each in exact if each.change in ("better", "changed")]
    if "config" in asked.differs or not less or structural.right(candidate):
        return None
    return (
        f"{', '.join(less)}: less may be an improvement, or a step that leaves something out; the candidate's parity "
        "would tell (envbuild profile ... --pass parity)"
    )


def _wished(found: Structural) -> Structural:
    if found.figure.startswith(("parity", "devices.")) or found.figure == "parameters":
        return found
    return Structural(
        figure=found.figure, base=found.base, candidate=found.candidate, change="changed",
        why="the ds_configs differ, as declared",
    )  # fmt: skip


def _unknown(base: Measurement, candidate: Measurement) -> tuple[str, ...]:
    names = ("image", "config", "model", "world_size", "deepspeed", "torch")
    missing = [name for name in names if getattr(base.key, name) is None or getattr(candidate.key, name) is None]
    if not (base.key.hardware.cpu or base.key.hardware.gpus) or not (
        candidate.key.hardware.cpu or candidate.key.hardware.gpus
    ):
        missing.append("hardware")
    return tuple(missing)


def _parts(base: Measurement, candidate: Measurement) -> tuple[PartChange, ...]:
    before, after = ({each.name: each.seconds for each in summary.shares(side)} for side in (base, candidate))
    return tuple(
        PartChange(name=name, base=before.get(name), candidate=after.get(name))
        for name in (*summary.PARTS, "other")
        if name in before or name in after
    )
