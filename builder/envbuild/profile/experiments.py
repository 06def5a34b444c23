"""The experiments that findings propose: which of them can be run here, what each changes, and what it showed."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Literal

from envbuild.profile import comparing, summary
from envbuild.profile.again import Pairs
from envbuild.profile.document import Launch, Made, Measurement
from envbuild.profile.keys import Difference
from envbuild.profile.statistics import judge
from envbuild.profile.view import Found, percent

Verdict = Literal["confirmed", "not it", "inconclusive", "failed"]

# The least change that is looked for; a finding that explains more of the step has to give more of it back.
_LEAST = 0.05
_MOST_SHARE = 0.90
_ALIKE = 0.005
# They make NCCL talk, and change nothing.
_TALK = ("NCCL_DEBUG", "NCCL_DEBUG_SUBSYS")
_THREADS = re.compile(r"OpenMP threads of a rank: (\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What a proposed command changes.

    Attributes:
        settings, env: ``KEY=VALUE`` of the ds_config, and of the ranks' environment.
        data: ``synthetic``, or None where the data stays as it is.
    """

    settings: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    data: str | None = None
    threads: int | None = None
    checkpoint_every: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """A change that is to be measured against the present configuration.

    Attributes:
        command: The changed training, as a user would start it.
        share: Of the step, that the finding explains; None where nobody knows.
        changed: What the change comes to, before and after.
    """

    rule: str
    command: str
    change: Change
    share: float | None
    changed: tuple[Difference, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """A proposed experiment that is not run, and why.

    Attributes:
        command: To be run by the user; None where envbuild cannot start that training.
        change: What is different in it, in words.
    """

    rule: str
    command: str | None
    change: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What an experiment showed.

    Attributes:
        ratio: Of the changed configuration's time to the present one's, a step or, where a step became another
            amount of work, a sample; None where nothing was measured.
        wanted: The smallest gain that confirms the finding, as a share of the time.
        config: Where the resolved ds_configs differ.
        costs: What the change makes worse.
    """

    verdict: Verdict
    reason: str
    ratio: float | None = None
    wanted: float | None = None
    rounds: int = 0
    config: tuple[Difference, ...] = ()
    costs: tuple[str, ...] = ()


def choose(
    measured: Measurement, found: Sequence[Found], made: Made | None, *, obstacle: str | None = None
) -> tuple[tuple[Experiment, ...], tuple[Left, ...]]:
    """Which of the proposed experiments can be run here.

    Args:
        made: The present configuration; None where nobody knows it.
        obstacle: Why nothing can be run here at all.
    """
    chosen: list[Experiment] = []
    left: list[Left] = []
    known: set[Change] = set()
    for one in found:
        for proposal in one.proposals:
            change = change_of(proposal.options)
            reason = obstacle
            changed: tuple[Difference, ...] = ()
            if change is None:
                reason = reason or "it is no change that can be tried here"
            elif change == Change():
                reason = reason or "it changes nothing, it looks closer: run it, and read what it shows"
            elif reason is None and made is not None:
                changed = tuple(_differences(measured, made, change))
                if not changed:
                    reason = "the training is like that already"
                elif change in known:
                    reason = "another finding has the same experiment"
            if reason is not None or change is None or made is None:
                reason = reason or "nobody knows what was measured"
                left.append(
                    Left(rule=one.rule, command=proposal.command, change=proposal.words, reason=reason)
                )  # fmt: skip
                continue
            known.add(change)
            # What a transport costs is not known: its share only puts it first.
            share = one.share if one.rule != "transport" else None
            chosen.append(
                Experiment(rule=one.rule, command=proposal.command or "", change=change, share=share, changed=changed)
            )
    return tuple(chosen), tuple(left)


def change_of(options: Pairs) -> Change | None:
    """What the options of a proposed experiment change; None where nobody expected such ones."""
    settings: list[str] = []
    env: list[str] = []
    one: dict[str, str] = {}
    for name, value in options:
        if name == "--set":
            settings.append(value)
        elif name == "--env":
            env += [] if value.partition("=")[0] in _TALK else [value]
        elif name in ("--data", "--threads", "--checkpoint-every"):
            one[name] = value
        elif name != "--pass":
            return None
    if one.get("--data", "synthetic") != "synthetic":
        return None
    numbers = {name: int(one[name]) if name in one else None for name in ("--threads", "--checkpoint-every")}
    return Change(
        settings=tuple(settings), env=tuple(env), data=one.get("--data"), threads=numbers["--threads"],
        checkpoint_every=numbers["--checkpoint-every"],
    )  # fmt: skip


def _differences(measured: Measurement, made: Made, change: Change) -> list[Difference]:
    """What the change comes to; nothing where the training is like that already."""
    found: list[tuple[str, str, str, str]] = []
    for setting in change.settings:
        name, _, value = setting.partition("=")
        before = _word(_held(made.ds_config or {}, name.split(".")))
        # A section that is not there offloads nothing.
        same = _word(_read(value)) == before or (before == "-" and value == "none")
        found += [] if same else [("config", name, before, _word(_read(value)))]
    given = dict(each.partition("=")[::2] for each in made.env)
    threads = next((match[1] for note in measured.notes if (match := _THREADS.fullmatch(note))), "-")
    for setting in change.env:
        name, _, value = setting.partition("=")
        before = given.get(name, threads if name == "OMP_NUM_THREADS" else "-")
        found += [] if before == value else [("environment", name, before, value)]
    if change.data is not None and made.slow_data is not None:
        where = f"@{made.slow_data.rank}" if made.slow_data.rank is not None else ""
        found.append(("environment", "data", f"slow:{made.slow_data.milliseconds:g}{where}", change.data))
    if change.threads is not None and str(change.threads) != threads:
        found.append(("environment", "threads", threads, str(change.threads)))
    if change.checkpoint_every is not None and change.checkpoint_every != made.checkpoint_every:
        before = str(made.checkpoint_every) if made.checkpoint_every else "-"
        found.append(("environment", "checkpoint_every", before, str(change.checkpoint_every)))
    return [Difference(aspect=aspect, name=name, base=b, candidate=c) for aspect, name, b, c in found]


def _held(value: Any, path: Sequence[str]) -> Any:
    for name in path:
        if not isinstance(value, Mapping) or name not in value:
            return None
        value = value[name]
    return value


def _read(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _word(value: Any) -> str:
    return "-" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def launch_seconds(measured: Measurement) -> float | None:
    """What one launch takes; of a measurement that does not tell, importing, coming together and its steps at least.

    Returns None where nobody knows.
    """
    for launch in summary.timed(measured):
        if launch.seconds is not None and launch.outside is not None:
            return launch.seconds + launch.outside
        steps = summary.step_seconds(launch.model_copy(update={"warmup": 0}))
        talk = launch.communication
        return sum(steps) + (talk.import_seconds or 0.0) + (talk.startup_seconds or 0.0)
    return None


def answer(experiment: Experiment, base: Measurement, candidate: Measurement) -> Answer:
    """Judge an experiment by the statistics of a comparison.

    The finding says what share of the step it explains; it is confirmed where at least half of that comes back. So a
    large cause is told from none on a loud host, too, where five rounds would not tell 5 %.
    """
    share = min(experiment.share or 0.0, _MOST_SHARE)
    delta = max(_LEAST, 1 / (1 - share / 2) - 1)
    wanted = 1 - 1 / (1 + delta)
    pairs = comparing.rounds(base, candidate)
    work = [{each.samples_per_step for each in side} for side in (zip(*pairs, strict=True) if pairs else ((), ()))]
    other = len(work[0] | work[1]) > 1
    per_sample = other and None not in work[0] | work[1]
    times = [[_seconds(experiment, each, per_sample) for each in pair] for pair in pairs]
    judged = judge([pair[0] for pair in times], [pair[1] for pair in times], delta=delta)
    verdict, reason = _verdict(judged.verdict, judged.ratio, judged.reason, wanted)
    if other and not per_sample:
        verdict, reason = "inconclusive", "a step became another amount of work, and nobody knows which"
    unit = " for each sample" if per_sample else ""
    compared = comparing.compare(
        base, candidate, comparing.Asked(differs=frozenset({"image", "config"}), times=False)
    )  # fmt: skip
    costs = [each.figure for each in compared.structural if each.change == "worse"]
    if compared.convergence.verdict == "diverged" and not other:
        costs.append(f"losses: {compared.convergence.reason}")
    return Answer(
        verdict=verdict, reason=reason + unit if verdict == "confirmed" else reason, wanted=wanted,
        ratio=judged.ratio if judged.rounds else None, rounds=judged.rounds, config=compared.config,
        costs=tuple(costs),
    )  # fmt: skip


def _seconds(experiment: Experiment, launch: Launch, per_sample: bool) -> float:
    """A launch's time: the median step; of checkpoints in a few steps the mean, for a median would not see them."""
    if experiment.rule == "checkpoint":
        steps = summary.step_seconds(launch)
        value = fmean(steps) if steps else 0.0
    else:
        value = summary.launch_seconds(launch) or 0.0
    return value / launch.samples_per_step if per_sample and launch.samples_per_step else value


def _verdict(judged: str, ratio: float, reason: str, wanted: float) -> tuple[Verdict, str]:
    if judged == "faster":
        return "confirmed", f"faster by {percent(1 - ratio)}"
    change = f"faster by {percent(1 - ratio)}" if ratio < 1 else f"slower by {percent(ratio - 1)}"
    if abs(ratio - 1) < _ALIKE:
        change = "as fast as before"
    if judged in ("same", "regressed"):
        return "not it", f"{change}; at least {percent(wanted)} faster would confirm it"
    return "inconclusive", f"{change} so far: {reason}"
