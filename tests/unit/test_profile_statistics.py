"""The verdicts: exact against enumeration, and on series as noisy and as autocorrelated as real step times."""

from __future__ import annotations

import itertools
import math
import random
from statistics import median

import pytest

from envbuild.profile.statistics import Verdict, detectable_effect, judge, signed_rank, spread

RHO = 0.84
STEPS = 40
ROUNDS = 10
SERIES = 40


def launch(rng: random.Random, *, seconds: float, step_noise: float, launch_noise: float) -> float:
    """The median of one launch: steps that remember the step before, on a level of the launch's own."""
    level = math.log(seconds) + rng.gauss(0, launch_noise)
    state = rng.gauss(0, step_noise)
    steps = []
    for _ in range(STEPS):
        state = RHO * state + rng.gauss(0, step_noise * math.sqrt(1 - RHO * RHO))
        steps.append(math.exp(level + state))
    return median(steps)


def verdicts(shift: float, *, step_noise: float, launch_noise: float) -> dict[Verdict, int]:
    counted: dict[Verdict, int] = dict.fromkeys(("regressed", "same", "faster", "inconclusive"), 0)
    for seed in range(SERIES):
        rng = random.Random(f"{shift} {step_noise} {launch_noise} {seed}")
        noise = {"step_noise": step_noise, "launch_noise": launch_noise}
        base = [launch(rng, seconds=0.4, **noise) for _ in range(ROUNDS)]
        candidate = [launch(rng, seconds=0.4 * (1 + shift), **noise) for _ in range(ROUNDS)]
        counted[judge(base, candidate, delta=0.05).verdict] += 1
    return counted


# Name, noise of the steps, noise of the launches: as on a machine of one's own, on a shared one, on a loud one.
QUIET, SHARED, LOUD = (0.02, 0.01), (0.08, 0.03), (0.25, 0.12)


@pytest.mark.parametrize("noise", [QUIET, SHARED, LOUD])
def test_without_a_shift_nothing_ever_regressed(noise: tuple[float, float]) -> None:
    found = verdicts(0, step_noise=noise[0], launch_noise=noise[1])
    assert found["regressed"] == found["faster"] == 0, found


@pytest.mark.parametrize(
    ("shift", "noise", "verdict", "least"),
    [
        (0.20, QUIET, "regressed", SERIES),
        (0.10, QUIET, "regressed", SERIES),
        (0.20, SHARED, "regressed", SERIES * 8 // 10),
        (-0.20, QUIET, "faster", SERIES),
        (0.0, QUIET, "same", SERIES * 9 // 10),
    ],
)
def test_a_known_shift_is_found(shift: float, noise: tuple[float, float], verdict: Verdict, least: int) -> None:
    found = verdicts(shift, step_noise=noise[0], launch_noise=noise[1])
    assert found[verdict] >= least, found


def test_noise_is_never_called_the_same() -> None:
    assert verdicts(0.05, step_noise=LOUD[0], launch_noise=LOUD[1])["same"] == 0
    assert verdicts(0.10, step_noise=SHARED[0], launch_noise=SHARED[1])["same"] == 0


def test_the_documentation_tells_the_rates_that_are_measured_here() -> None:
    from pathlib import Path

    page = (Path(__file__).parents[2] / "docs" / "profile.md").read_text()
    for name, noise in (("quiet", QUIET), ("shared", SHARED), ("loud", LOUD)):
        rates = [verdicts(shift, step_noise=noise[0], launch_noise=noise[1]) for shift in (0.0, 0.05, 0.10, 0.20)]
        cells = (f"{each['regressed'] / SERIES:.0%}, {each['inconclusive'] / SERIES:.0%}" for each in rates)
        assert f"| {name} | {' | '.join(cells)} |" in page


@pytest.mark.parametrize("seed", range(12))
def test_the_exact_p_is_the_share_of_all_signs(seed: int) -> None:
    rng = random.Random(seed)
    # Rounded: some are tied, and some may be zero.
    values = [round(rng.gauss(0.3, 1), 1) for _ in range(rng.randint(1, 9))]
    moved = [each for each in values if each]
    sizes = sorted(map(abs, moved))
    ranks = [median([n + 1 for n, size in enumerate(sizes) if size == abs(each)]) for each in moved]
    observed = sum(rank for rank, each in zip(ranks, moved, strict=True) if each > 0)
    sums = [
        sum(rank for rank, sign in zip(ranks, signs, strict=True) if sign)
        for signs in itertools.product((0, 1), repeat=len(moved))
    ]
    assert signed_rank(values) == pytest.approx(sum(each >= observed for each in sums) / len(sums))


def test_p_against_published_critical_values() -> None:
    # One-sided 5 %: n = 10 has the critical value 10, so 55 - 10 positive is still significant, and one less is not.
    assert signed_rank([*range(5, 11), -4.0, *range(1, 4)]) < 0.05
    ten = [-1.0, -2.0, -3.0, -4.0, *range(5, 11)]
    assert signed_rank(ten) == pytest.approx(43 / 1024)
    eleven = [1.0, -2.0, -3.0, -4.0, -5.0, *range(6, 11)]
    assert signed_rank(eleven) > 0.05


def test_many_rounds_are_close_to_exact() -> None:
    rng = random.Random(4)
    values = [rng.gauss(0.3, 1) for _ in range(26)]
    from envbuild.profile import statistics

    about = signed_rank(values)
    kept, statistics.EXACT_ROUNDS = statistics.EXACT_ROUNDS, 40
    try:
        assert about == pytest.approx(signed_rank(values), abs=0.005)
    finally:
        statistics.EXACT_ROUNDS = kept


def test_few_or_no_rounds_decide_nothing_and_say_so() -> None:
    few = judge([1.0] * 4, [2.0] * 4, delta=0.05)
    assert few.verdict == "inconclusive" and "5 is the fewest" in few.reason and few.low is None
    none = judge([0.0], [1.0], delta=0.05)
    assert none.verdict == "inconclusive" and none.rounds == 0


def test_equal_times_are_the_same_and_the_effect_shrinks_with_rounds() -> None:
    assert judge([1.0] * 10, [1.0] * 10, delta=0.05).verdict == "same"
    rng = random.Random(1)
    few = [rng.gauss(0, 0.1) for _ in range(8)]
    assert (detectable_effect(few * 4) or 0) < (detectable_effect(few) or 0)
    assert spread([]) is None and (spread([1.0, 2.0, 9.0]) or spread([0])).mad == 1.0  # type: ignore[union-attr]
