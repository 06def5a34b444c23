"""Rules about ranks together: communication, transports, a straggler."""

from __future__ import annotations

from statistics import fmean, median, median_low

from envbuild.profile import summary
from envbuild.profile.figures import Kind, Part
from envbuild.profile.summary import Share, Sums, Traffic, counted
from envbuild.profile.view import Abstained, Answer, Cleared, Found, View, percent, rate, seconds

OVERLAP = 0.30
EXPOSED = 0.20
# Where nothing overlaps because each collective is waited for, more has to be said than that.
LARGE = 0.40
_BUCKET = "zero_optimization.reduce_bucket_size"
MORE = 1.2
SLOWER = 0.90
SCORE = 0.75
SKEW = (0.10, 0.20)
# How far the mean utilisation, in points, or its deviation over ranks, in times, has to move to be called so.
_POINTS = 5.0
_WIDER = 1.5
_LESS = 0.05


def communication(view: View) -> Answer:
    """Collectives take the step: slower than before, or not hidden behind the computation."""
    slower, more = _slower(view), _more(view)
    exposed = summary.inside(view.measurement, "exposed_communication")
    whole = summary.inside(view.measurement, "communication")
    if exposed is None and whole is None and not _timed(view):
        return Abstained(rule="communication", missing="times of collectives (see --pass comms)")
    evidence = [text for text, _ in slower] + more
    share = sum(cost for _, cost in slower) / view.step if view.step else 0.0
    if exposed is not None and (exposed.share or 0) >= EXPOSED:
        evidence.append(f"{percent(exposed.share or 0)} of the step waits for the network and computes nothing")
        share = max(share, exposed.share or 0)
        hidden = 1 - exposed.seconds / whole.seconds if whole is not None and whole.seconds else 1.0
        if hidden < OVERLAP:
            evidence.append(f"{percent(max(hidden, 0.0))} of the communication is hidden behind computation")
    elif exposed is None and whole is not None and (whole.share or 0) >= LARGE:
        evidence.append(f"collectives take {percent(whole.share or 0)} of the step where each is waited for")
        share = max(share, whole.share or 0)
    if not evidence:
        return Cleared(rule="communication", evidence=_calm(view, exposed, whole))
    unequal = _utilisation(view)
    return Found(
        rule="communication", title="the network, or an unequal partition of the model, holds the ranks back",
        share=min(1.0, share) or None,
        confidence="high" if slower and unequal else "medium" if slower else "low",
        evidence=(*evidence, *unequal),
        why=(
            "a collective ends when its last rank arrives: a slow link and a rank that has more to do look the same in "
            "its time. A bus bandwidth that fell on every rank is the network; ranks of unequal use are the work"
        ),
        experiment=(
            "Run the same steps with ZeRO stage 2 and stage 3: stage 2 does not gather parameters, so if it gains the "
            "lost time back, the gathering of stage 3 is what the network cannot carry. If both are slow, it is the "
            "network itself or one slow rank."
        ),
        proposals=(
            view.propose("--set", "zero_optimization.stage=2", "--pass", "comms"),
            view.propose("--set", "zero_optimization.stage=3", "--pass", "comms"),
            *([view.propose("--set", f"{_BUCKET}=500000000", "--pass", "comms")] if more else []),
            view.propose("--env", "NCCL_DEBUG=INFO", "--pass", "comms"),
        ),
    )  # fmt: skip


def _more(view: View) -> list[str]:
    """Collectives that are made more often than in the baseline: each has a latency of its own."""
    before = view.before
    if before is None:
        return []
    found = []
    for each in view.traffic.values():
        earlier = before.traffic.get(each.op)
        now, then = _per_step(each), _per_step(earlier) if earlier is not None else 0.0
        if then and now / then >= MORE:
            found.append(f"{each.op} is called {now:.0f} times a step, in the baseline {then:.0f}: smaller buckets?")
    return found


def _timed(view: View) -> list[Traffic]:
    return [each for each in view.traffic.values() if each.sums.seconds is not None and each.sums.count]


def _slower(view: View) -> list[tuple[str, float]]:
    """Collectives that take longer than in the baseline: the evidence, and what that costs a step."""
    before = view.before
    if before is None:
        return []
    found = []
    for each in _timed(view):
        earlier = before.traffic.get(each.op)
        if earlier is None or earlier.sums.seconds is None or not earlier.sums.count:
            continue
        now, then = (each.sums.seconds or 0) / each.sums.count, earlier.sums.seconds / earlier.sums.count
        if then > 0 and then / max(now, 1e-12) < SLOWER and _alike(each.sums, earlier.sums):
            text = f"{each.op} takes {seconds(now)} each, in the baseline {seconds(then)}"
            if each.sums.bus_bandwidth and earlier.sums.bus_bandwidth:
                speeds = rate(earlier.sums.bus_bandwidth), rate(each.sums.bus_bandwidth)
                text += f"; its bus bandwidth fell from {speeds[0]} to {speeds[1]}"
            found.append((text, (now - then) * _per_step(each)))
    return found


def _alike(now: Sums, then: Sums) -> bool:
    """Whether the messages are of one size; where nobody knows, they are taken for it."""
    if now.bytes is None or then.bytes is None:
        return True
    sizes = now.bytes / now.count, then.bytes / then.count
    return abs(sizes[0] - sizes[1]) <= 0.02 * max(sizes)


def _per_step(each: Traffic) -> float:
    """How often a rank does it in one step."""
    return each.sums.count / each.steps if each.steps else 0.0


def _utilisation(view: View) -> list[str]:
    """What else changed: the speed, the level of the GPUs' utilisation, and how unequal the ranks are."""
    found = []
    tokens = [summary.tokens_per_second(side) if side else None for side in (view.measurement, view.baseline)]
    if tokens[0] and tokens[1] and tokens[0] / tokens[1] < 1 - _LESS:
        found.append(f"{tokens[0]:,.0f} tokens a second, in the baseline {tokens[1]:,.0f}")
    kind: Kind = "gpu_percent"
    now = summary.series_means(view.measurement, kind)
    then = summary.series_means(view.baseline, kind) if view.baseline is not None else []
    if not now or not then:
        return found
    if fmean(then) - fmean(now) >= _POINTS:
        found.append(f"GPU utilisation fell from {fmean(then):.0f} % to {fmean(now):.0f} %")
    wide = summary.spread_over_ranks(now), summary.spread_over_ranks(then)
    if wide[0] is not None and wide[1] is not None and wide[0] > _WIDER * max(wide[1], 0.5):
        found.append(f"it varies more over the ranks: a deviation of {wide[0]:.1f} points, before {wide[1]:.1f}")
    return found


def _calm(view: View, exposed: Share | None, whole: Share | None) -> str:
    if exposed is not None and exposed.share is not None:
        return f"{percent(exposed.share)} of the step waits for the network"
    if whole is not None and whole.share is not None:
        return f"collectives take {percent(whole.share)} of the step where each is waited for"
    return "collectives take as long as in the baseline" if view.baseline else "no collective is slow by itself"


def transport(view: View) -> Answer:
    """NCCL talks over something else than before."""
    now = summary.transports(view.measurement)
    then = summary.transports(view.baseline) if view.baseline is not None else frozenset()
    if not now or not then:
        return Abstained(rule="transport", missing="transports of NCCL on both sides (NCCL_DEBUG=INFO tells them)")
    if now == then:
        return Cleared(rule="transport", evidence=f"NCCL talks over {', '.join(sorted(now))}, as before")
    image = view.measurement.key.image != (view.baseline.key.image if view.baseline else None)
    return Found(
        rule="transport", title="NCCL talks over something else" + (" in this image" if image else ""),
        confidence="high",
        # Said first: everything that the network costs follows from it.
        share=1.0,
        evidence=(
            *(f"gone: {each}" for each in sorted(then - now)),
            *(f"new: {each}" for each in sorted(now - then)),
        ),
        why="an image without the network's plug-in or its libraries falls back to a slower transport, silently",
        experiment="Compare the two images' NCCL libraries and plug-ins, and look why NCCL did not take the transport.",
        proposals=(view.propose("--env", "NCCL_DEBUG=INFO", "--env", "NCCL_DEBUG_SUBSYS=INIT,NET", "--pass", "comms"),),
    )  # fmt: skip


def straggler(view: View) -> Answer:
    """One rank is slower, and the others wait for it."""
    own = _work(view)
    if len(own) < 2:
        return Abstained(rule="straggler", missing="times of two or more ranks (a log has one)")
    # Of two ranks the other one.
    middle = median_low(own.values())
    rank, slowest = max(own.items(), key=lambda each: each[1])
    lost = slowest - middle
    skew = lost / view.step if view.step else lost / middle if middle else 0.0
    score = middle / slowest if slowest else 1.0
    if skew < SKEW[0] or score >= 1 - SKEW[0]:
        return Cleared(rule="straggler", evidence=f"the slowest rank ({rank}) is {percent(max(skew, 0.0))} behind")
    where, mates = _place(view, rank, own, middle * (1 + SKEW[0]))
    return Found(
        rule="straggler", share=min(1.0, skew),
        title=f"node {where} is slower than the others" if mates else f"rank {rank}{where} is slower than the others",
        confidence="high" if score < SCORE or skew >= SKEW[1] else "medium",
        evidence=(
            f"rank {rank} works {seconds(slowest)} of a step by itself, the median rank {seconds(middle)}",
            f"its score is {score:.2f} (1 is the median; below {SCORE} is a straggler)",
            *(
                (f"all ranks of {where} are slow ({', '.join(map(str, mates))}), and none of another node is",)
                if mates
                else ()
            ),
        ),
        why="the others wait for it in the next collective, so their times look like slow communication",
        experiment=(
            (f"Leave the node out: ENVBUILD_SLURM_OPTIONS=--exclude={where}. " if mates else "")
            + "Exchange the ranks' machines or GPUs: if the slow rank moves along, it is the hardware. It is "
            "the one that waits least in collectives."
        ),
        proposals=(view.propose("--pass", "comms"),),
    )  # fmt: skip


def _place(view: View, slowest: int, own: dict[int, float], limit: float) -> tuple[str, tuple[int, ...]]:
    """The node of the slowest rank; and that node's ranks, where they are slow and no other is: then it is the node."""
    nodes = summary.nodes(view.measurement)
    name = nodes.get(slowest)
    if name is None:
        return "", ()
    slow = {rank for rank, work in own.items() if work > limit}
    mates = tuple(sorted(rank for rank in own if nodes.get(rank) == name))
    return (name, mates) if len(mates) > 1 and slow == set(mates) else (f" (node {name})", ())


def _work(view: View) -> dict[int, float]:
    """Seconds of a step that each rank works by itself, by medians: one hiccup makes no straggler.

    Waiting in collectives hides in the forward and the backward of the ranks that are early; where it was measured, the
    rest of the step is the rank's own.
    """
    columns: dict[int, list[float]] = {}
    for launch in view.measurement.launches:
        for rank in launch.ranks:
            steps, waits = rank.steps.seconds, rank.steps.inside.get("communication", ())
            if steps and waits:
                pairs = zip(steps[launch.warmup :], waits[launch.warmup :], strict=False)
                columns.setdefault(rank.rank, []).extend(s - w for s, w in pairs if s is not None and w is not None)
    if len([values for values in columns.values() if values]) > 1:
        return {rank: max(0.0, median(values)) for rank, values in columns.items() if values}
    parts: tuple[Part, ...] = ("data_wait", "forward", "backward", "optimizer")
    found: dict[int, list[float]] = {}
    for launch in summary.timed(view.measurement):
        for rank in launch.ranks:
            known = [values for part in parts if (values := counted(launch, rank.steps.parts.get(part, ())))]
            if known:
                found.setdefault(rank.rank, []).append(sum(median(values) for values in known))
    return {rank: median(works) for rank, works in found.items()}
