"""What two sets of step times say about one another, by launches and not by steps.

Steps of one launch are autocorrelated: with 0.84 between neighbours, 40 of them are worth about four, and ten pairs of
single runs of one image gave ratios from 0.62 to 1.24. So the unit is the launch, two sides are launched in turns
(A B, B A, ...), each round gives one ratio of medians, and the ratios are judged by their ranks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist, median
from typing import Literal

Verdict = Literal["regressed", "same", "faster", "inconclusive", "incomparable"]

ALPHA = 0.05
# Chance of finding a shift as large as the minimum detectable effect.
POWER = 0.8
# Up to here the distribution of the signed ranks is counted out; above it is close enough to a normal one.
EXACT_ROUNDS = 25
# Makes the median absolute deviation of normal noise its standard deviation.
_NORMAL = 1.4826
# Beyond any ratio of two trainings, and far from where exponentials overflow.
_FARTHEST = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Middle and width of some numbers."""

    median: float
    mad: float
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """What the paired ratios of one figure say.

    Attributes:
        ratio: Median of the rounds' ratios, candidate to base.
        low, high: Bounds of that ratio, each with a chance of 5 % to be on the wrong side; None where there is none.
        slower, faster: One-sided p of "no slower" and of "no faster".
        detectable: The smallest change that so many rounds of such noise find four times in five; None where even a
            large one is not found.
    """

    verdict: Verdict
    ratio: float
    low: float | None
    high: float | None
    slower: float
    faster: float
    detectable: float | None
    rounds: int
    reason: str


def spread(values: Sequence[float]) -> Spread | None:
    """Median and median absolute deviation; None of nothing."""
    if not values:
        return None
    middle = median(values)
    return Spread(median=middle, mad=median(abs(each - middle) for each in values), count=len(values))


def signed_rank(differences: Sequence[float]) -> float:
    """One-sided p of Wilcoxon's signed-rank test: the chance of so large a sum of positive ranks without a shift.

    Exact up to 25 differences, ties included; those of zero are left out.
    """
    moved = [each for each in differences if each != 0]
    if not moved:
        return 1.0
    ranks = _doubled_ranks([abs(each) for each in moved])
    observed = sum(rank for rank, each in zip(ranks, moved, strict=True) if each > 0)
    if len(moved) > EXACT_ROUNDS:
        # Twice the ranks: mean and deviation of the sum double, too. Half a rank of continuity is 1.
        mean = sum(ranks) / 2
        deviation = math.sqrt(sum(rank * rank for rank in ranks)) / 2
        return 1 - NormalDist().cdf((observed - mean - 1) / deviation)
    # ways[s]: how many of the 2**n choices of signs give the sum s.
    ways = [1] + [0] * sum(ranks)
    for rank in ranks:
        for total in range(len(ways) - 1, rank - 1, -1):
            ways[total] += ways[total - rank]
    return float(sum(ways[observed:]) / 2 ** len(moved))


def judge(base: Sequence[float], candidate: Sequence[float], *, delta: float) -> Judgement:
    """Compare medians of launches, the nth of one side with the nth of the other.

    ``regressed`` needs both: the median ratio above ``1 + delta``, and ranks that chance would not give a change of
    half as much (p below 5 %; 1 % where the noise hides a change of ``delta``, and up to twice of it). Beyond that
    noise they must rule out ``delta`` itself (p below 0.25 %). So of an image with itself four comparisons in a
    thousand, of ten rounds, are ``regressed`` at the most (seen of normal noise of 3 to 50 %, 4,000 each). ``same``
    needs noise so small that a change of ``delta`` would have been seen, and bounds within it. Everything else is
    ``inconclusive``.

    Args:
        base: Seconds of each launch, in the order of the rounds.
        candidate: The same of the other side.
        delta: The change that matters, such as 0.05.
    """
    pairs = [(b, c) for b, c in zip(base, candidate, strict=True) if b > 0 and c > 0]
    if not pairs:
        return _undecided("no round has a time on both sides")
    logs = [max(-_FARTHEST, min(_FARTHEST, math.log(c) - math.log(b))) for b, c in pairs]
    ratio = math.exp(median(logs))
    low, high = _bounds(logs)
    slower, faster = signed_rank(logs), signed_rank([-each for each in logs])
    detectable = detectable_effect(logs)
    quiet = detectable is not None and detectable <= delta
    least, chance = math.log1p(delta / 2), ALPHA if quiet else ALPHA / 5
    if detectable is None or detectable > 2 * delta:
        least, chance = math.log1p(delta), ALPHA / 20
    verdict: Verdict = "inconclusive"
    if ratio > 1 + delta and signed_rank([each - least for each in logs]) < chance:
        verdict, reason = "regressed", f"the candidate is slower by more than {delta:.1%}, and not by chance"
    elif ratio < 1 / (1 + delta) and signed_rank([-each - least for each in logs]) < chance:
        verdict, reason = "faster", f"the candidate is faster by more than {delta:.1%}, and not by chance"
    elif len(pairs) < least_rounds():
        reason = f"{len(pairs)} round(s) cannot decide anything; {least_rounds()} is the fewest that can"
    elif not quiet:
        seen = "even a large change" if detectable is None else f"a change below {detectable:.1%}"
        reason = f"the noise hides {seen}, and {delta:.1%} was asked for: more rounds, or a quieter host"
    elif (high or math.inf) > 1 + delta or (low or 0) < 1 / (1 + delta):
        reason = f"the change may be on either side of {delta:.1%}: more rounds would tell"
    else:
        verdict, reason = "same", f"a change of {delta:.1%} would have been seen"
    return Judgement(
        verdict=verdict, ratio=ratio, low=low, high=high, slower=slower, faster=faster, detectable=detectable,
        rounds=len(pairs), reason=reason,
    )  # fmt: skip


def detectable_effect(logs: Sequence[float]) -> float | None:
    """The smallest relative change that these rounds' noise lets the test find four times in five.

    From the rounds' own spread around their median (its robust deviation), by the usual formula of a one-sided test of
    a mean, widened by 3/pi: the efficiency of signed ranks on normal noise.
    """
    if len(logs) < least_rounds():
        return None
    middle = median(logs)
    deviation = max(
        _NORMAL * median(abs(each - middle) for each in logs),
        # One wild round in ten does not move the median deviation, but it moves the ranks.
        math.sqrt(sum((each - middle) ** 2 for each in logs) / (len(logs) - 1)) / 2,
    )
    normal = NormalDist()
    needed = normal.inv_cdf(1 - ALPHA) + normal.inv_cdf(POWER)
    return math.expm1(needed * deviation * math.sqrt(math.pi / 3 / len(logs)))


def least_rounds() -> int:
    """The fewest rounds that can give a p below 5 %, were all of one sign."""
    return math.ceil(math.log2(1 / ALPHA))


def _doubled_ranks(sizes: Sequence[float]) -> list[int]:
    """Ranks times two, so that the middle ranks of ties are whole."""
    order = sorted(range(len(sizes)), key=sizes.__getitem__)
    ranks = [0] * len(sizes)
    start = 0
    while start < len(order):
        end = start
        while end + 1 < len(order) and sizes[order[end + 1]] == sizes[order[start]]:
            end += 1
        for place in range(start, end + 1):
            ranks[order[place]] = start + end + 2
        start = end + 1
    return ranks


def _bounds(logs: Sequence[float]) -> tuple[float | None, float | None]:
    """Ratios that the signed ranks do not rule out, each way at 5 %: the ends of the Walsh averages that remain."""
    walsh = sorted((a + b) / 2 for place, a in enumerate(logs) for b in logs[place:])
    count = len(logs)
    if count < least_rounds():
        return None, None
    cut = max(_cut(count), 1)
    return math.exp(walsh[cut - 1]), math.exp(walsh[-cut])


def _cut(count: int) -> int:
    """How many Walsh averages lie outside the bound at each end."""
    if count > EXACT_ROUNDS:
        deviation = math.sqrt(count * (count + 1) * (2 * count + 1) / 24)
        return int(count * (count + 1) / 4 - NormalDist().inv_cdf(1 - ALPHA) * deviation)
    ways = [1] + [0] * (count * (count + 1) // 2)
    for rank in range(1, count + 1):
        for total in range(len(ways) - 1, rank - 1, -1):
            ways[total] += ways[total - rank]
    chance, below = 0.0, 0
    for total, each in enumerate(ways):
        chance += each / 2**count
        if chance > ALPHA:
            below = total
            break
    return below


def _undecided(reason: str) -> Judgement:
    return Judgement(
        verdict="inconclusive", ratio=1.0, low=None, high=None, slower=1.0, faster=1.0, detectable=None, rounds=0,
        reason=reason,
    )  # fmt: skip
