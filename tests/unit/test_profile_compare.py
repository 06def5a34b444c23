"""Comparisons: what may be compared, the exact gate, the losses, the pairing of launches; and baselines in a folder."""

from __future__ import annotations

import datetime
import json
import math
from pathlib import Path
from typing import Any

import pytest

from envbuild import store
from envbuild.errors import InputError
from envbuild.profile import baselines, files, keys
from envbuild.profile.comparing import Asked, compare, rounds
from measured import key, launch, measurement, turns

NOISE = (1.00, 1.01, 0.99, 1.005, 0.995, 1.0, 1.012, 0.99, 1.003, 0.998)
NOW = datetime.datetime(2026, 3, 4, tzinfo=datetime.timezone.utc)
STRUCTURE: dict[str, Any] = {
    "steps": 10, "parameters": 1000, "host_tensor_bytes": 20_080, "checkpoint_bytes": 12_000,
    "collectives": [{"op": "all_gather_into_tensor", "count": 40, "bytes": 4000}],
    "parity": [{"precision": "fp32", "passed": True}], "devices": {"optimizer": "cpu"},
}  # fmt: skip


def sides(factor: float = 1.0, **more: Any) -> tuple[Any, Any]:
    base = measurement(*turns("base", NOISE))
    return base, measurement(*turns("candidate", [each * factor for each in reversed(NOISE)]), side="candidate", **more)


@pytest.mark.parametrize(("factor", "verdict"), [(1.0, "same"), (1.2, "regressed"), (0.8, "faster")])
def test_launches_in_turns_decide(factor: float, verdict: str) -> None:
    found = compare(*sides(factor), Asked())
    assert found.verdict == verdict
    assert found.timing and found.timing.interleaved and found.timing.judgement and found.timing.judgement.rounds == 10


def test_a_stored_baseline_and_a_fresh_run_decide_nothing_about_times() -> None:
    base = measurement(*[launch([1.0] * 5) for _ in range(10)])
    fresh = measurement(*[launch([3.0] * 5) for _ in range(10)], side="candidate")
    found = compare(base, fresh, Asked())
    assert found.verdict == "inconclusive" and found.timing and not found.timing.interleaved
    assert "not launched in turns" in found.reason
    assert compare(base, fresh, Asked(times=False)).reason == "there is no exact figure on both sides"


def test_a_measurement_against_itself_is_no_comparison_in_turns() -> None:
    base, _ = sides()
    assert rounds(base, base) == []


def test_only_launches_of_one_session_and_round_are_pairs() -> None:
    base, candidate = sides()
    paired = rounds(base, candidate)
    assert [(a.turn and a.turn.position, b.turn and b.turn.position) for a, b in paired[:3]] == [(0, 1), (3, 2), (4, 5)]
    other = measurement(*[launch([1.0], turn={"session": "s2", "position": n}) for n in range(1, 20, 2)])
    assert rounds(base, other) == []


@pytest.mark.parametrize(
    ("change", "aspect"),
    [
        ({"config": "d" * 64}, "config"),
        ({"model": "7b"}, "model"),
        ({"world_size": 4}, "world"),
        ({"hardware": {"cpu": "EPYC", "cpus": 4}}, "hardware"),
        ({"probe": "2"}, "probe"),
    ],
)
def test_what_was_not_declared_makes_them_incomparable(change: dict[str, Any], aspect: Any) -> None:
    base, _ = sides()
    other = measurement(*turns("candidate", NOISE), side="candidate", key=key("candidate", **change))
    found = compare(base, other, Asked())
    assert found.verdict == "incomparable" and aspect in found.reason
    assert compare(base, other, Asked(differs=frozenset({"image", aspect}))).verdict == "same"


def test_exact_figures_are_compared_on_any_machine_and_times_are_not() -> None:
    base = measurement(launch([1.0], structure=STRUCTURE))
    other = key("candidate", hardware={"cpu": "Xeon", "cpus": 4})
    there = measurement(launch([1.0], structure=STRUCTURE), side="candidate", key=other)
    found = compare(base, there, Asked(times=False))
    assert found.verdict == "same" and {each.aspect for each in found.declared} == {"image", "hardware"}
    assert compare(base, there, Asked()).verdict == "incomparable"


@pytest.mark.parametrize(
    ("memory", "verdict"), [((64 << 30) - (16 << 10), "same"), (63 << 30, "same"), (48 << 30, "incomparable")]
)
def test_another_kernel_is_not_another_machine(memory: int, verdict: str) -> None:
    sizes = {"base": 64 << 30, "candidate": memory}
    made = [
        measurement(*turns(side, NOISE), key=key(side, hardware={"cpu": "EPYC", "memory_bytes": size}))
        for side, size in sizes.items()
    ]
    assert compare(made[0], made[1], Asked()).verdict == verdict


def test_what_is_slow_in_every_third_step_is_no_pass() -> None:
    base = measurement(*(launch([1.0] * 6, turn=each["turn"]) for each in turns("base", NOISE)))
    third = [1.0, 1.0, 3.0] * 2
    slow = measurement(*(launch(third, turn=each["turn"]) for each in turns("candidate", NOISE)), side="candidate")
    found = compare(base, slow, Asked())
    assert found.verdict == "inconclusive" and "the mean is in every round, by 66.7%" in found.reason
    assert found.timing and found.timing.means == pytest.approx(5 / 3)
    once = [launch([1.0] * 6, turn=each["turn"]) for each in turns("candidate", NOISE)]
    once[3]["ranks"] = launch(third)["ranks"]
    assert compare(base, measurement(*once, side="candidate"), Asked()).verdict == "same", "one launch in ten is chance"


def test_two_images_may_differ_and_that_is_said() -> None:
    found = compare(*sides(), Asked())
    assert [each.name for each in found.declared] == ["image"]
    assert compare(*sides(), Asked(differs=frozenset())).verdict == "incomparable"


def changed(**more: Any) -> tuple[Any, Any]:
    base = measurement(launch([1.0], structure=STRUCTURE))
    return base, measurement(launch([1.0], structure={**STRUCTURE, **more}), side="candidate")


@pytest.mark.parametrize(
    ("change", "figure"),
    [
        (
            {"collectives": [{"op": "all_gather_into_tensor", "count": 41, "bytes": 4000}]},
            "all_gather_into_tensor.count",
        ),
        (
            {"collectives": [{"op": "all_gather_into_tensor", "count": 40, "bytes": 4001}]},
            "all_gather_into_tensor.bytes",
        ),
        ({"collectives": [*STRUCTURE["collectives"], {"op": "all_reduce", "count": 1}]}, "all_reduce.count"),
        ({"host_tensor_bytes": 20_081}, "host_tensor_bytes"),
        ({"checkpoint_bytes": 12_001}, "checkpoint_bytes"),
        ({"devices": {"optimizer": "cuda:0"}}, "devices.optimizer"),
        ({"parity": [{"precision": "fp32", "passed": False}]}, "parity.fp32"),
    ],
)
def test_the_exact_gate_sees_the_smallest_change(change: dict[str, Any], figure: str) -> None:
    found = compare(*changed(**change), Asked(times=False))
    assert found.verdict == "regressed" and figure in found.reason


@pytest.mark.parametrize(
    "name", ["collectives", "parameters", "host_tensor_bytes", "checkpoint_bytes", "parity", "devices"]
)
def test_an_exact_figure_that_was_not_measured_is_no_pass(name: str) -> None:
    lacking = {each: value for each, value in STRUCTURE.items() if each != name}
    both = [
        measurement(*turns(side, NOISE, structure=made), side=side)
        for side, made in (("base", STRUCTURE), ("candidate", lacking))
    ]
    for times in (False, True):
        found = compare(both[0], both[1], Asked(times=times))
        assert found.verdict == "inconclusive" and name in found.reason, found.reason
        assert compare(both[1], both[0], Asked(times=times)).verdict == "same"
    nothing = measurement(launch([1.0]), side="candidate")
    assert compare(both[0], nothing, Asked(times=False)).verdict == "inconclusive"


@pytest.mark.parametrize(
    ("change", "figure"),
    [
        ({"collectives": [{"op": "all_gather_into_tensor", "count": 40, "bytes": 4000}]}, "all_reduce.count"),
        ({"host_tensor_bytes": 0}, "host_tensor_bytes"),
    ],
)
def test_a_figure_of_which_nothing_is_left_is_no_improvement(change: dict[str, Any], figure: str) -> None:
    reduced = {"op": "all_reduce", "count": 10, "bytes": 1000}
    full = {**STRUCTURE, "collectives": [*STRUCTURE["collectives"], reduced]}
    for parity, verdict in ((STRUCTURE["parity"], "same"), ([], "inconclusive")):
        base, candidate = (
            measurement(launch([1.0], structure={**made, "parity": parity})) for made in (full, {**full, **change})
        )
        found = compare(base, candidate, Asked(times=False))
        assert found.verdict == verdict
        assert figure in {each.figure for each in found.structural if each.change == "changed"}
        assert verdict == "same" or (figure in found.reason and "--pass parity" in found.reason)


def test_another_model_is_not_a_slower_one() -> None:
    more = {"parameters": 2000, "collectives": [{"op": "all_gather_into_tensor", "count": 40, "bytes": 8000}]}
    assert compare(*changed(**more), Asked(times=False)).verdict == "incomparable"


def test_a_parity_that_failed_in_one_launch_failed() -> None:
    failed = {**STRUCTURE, "parity": [{"precision": "fp32", "passed": False}]}
    base, _ = changed()
    candidate = measurement(launch([1.0], structure=STRUCTURE), launch([1.0], structure=failed))
    assert compare(base, candidate, Asked(times=False)).verdict == "regressed"


def test_the_exact_gate_counts_by_step() -> None:
    twice = {"steps": 20, "collectives": [{"op": "all_gather_into_tensor", "count": 80, "bytes": 8000}]}
    assert compare(*changed(**twice), Asked(times=False)).structural == ()
    fewer = {"collectives": [{"op": "all_gather_into_tensor", "count": 39, "bytes": 4000}]}
    assert compare(*changed(**fewer), Asked(times=False)).verdict == "faster"


def test_a_declared_configuration_may_move_collectives_but_not_break_the_step() -> None:
    asked = Asked(times=False, differs=frozenset({"image", "config"}))
    more = {"collectives": [{"op": "all_gather_into_tensor", "count": 99, "bytes": 9000}]}
    assert compare(*changed(**more), asked).verdict == "same"
    fewer = {"collectives": [{"op": "all_gather_into_tensor", "count": 9, "bytes": 900}]}
    assert compare(*changed(**fewer), asked).verdict == "same", "what was wished is no improvement of the image either"
    assert compare(*changed(parity=[{"precision": "fp32", "passed": False}]), asked).verdict == "regressed"


def test_a_parity_that_fails_on_both_sides_alike_is_nobodys_regression_and_no_pass() -> None:
    failed = {**STRUCTURE, "parity": [{"precision": "fp32", "passed": False}]}
    one, two = (measurement(launch([1.0], structure=each)) for each in (failed, failed))
    found = compare(one, two, Asked(times=False))
    assert found.verdict == "incomparable" and "parity.fp32 failed on both sides" in found.reason
    assert [(each.change, each.base, each.candidate) for each in found.structural] == [("changed", "failed", "failed")]
    # Slower it may be all the same, and another precision is another step.
    slow = [measurement(*turns(side, [x * f for x in NOISE], structure=failed), side=side)
            for side, f in (("base", 1.0), ("candidate", 1.2))]  # fmt: skip
    assert compare(*slow, Asked()).verdict == "regressed"
    low = {**failed, "parity": [{"precision": "bf16", "passed": False}]}
    assert compare(one, measurement(launch([1.0], structure=low)), Asked(times=False)).verdict == "regressed"


def losing(losses: list[Any], side: str = "base", seed: int | None = 1) -> Any:
    steps = {"number": list(range(len(losses))), "seconds": [1.0] * len(losses), "loss": losses}
    return measurement({"seed": seed, "ranks": [{"rank": 0, "steps": steps}]}, side=side)


@pytest.mark.parametrize(
    ("losses", "verdict"),
    [
        ([4.0, 3.0, 2.0, 1.0], "same"),
        ([4.000001, 3.0, 2.0, 1.0], "same"),
        ([4.01, 3.0, 2.0, 1.0], "differs"),
        ([4.0, 3.5, 3.0, 2.9], "diverged"),
        ([4.0, 3.0, "nan", "nan"], "diverged"),
        ([4.0, 3.0, "inf", 1.0], "diverged"),
    ],
)
def test_losses_of_one_seed_are_compared(losses: list[Any], verdict: str) -> None:
    found = compare(losing([4.0, 3.0, 2.0, 1.0]), losing(losses, "candidate"), Asked(times=False))
    assert found.convergence.verdict == verdict
    assert (found.verdict == "regressed") == (verdict == "diverged")


@pytest.mark.parametrize("place", range(3))
def test_the_losses_of_every_launch_count(place: int) -> None:
    good = losing([4.0, 3.0]).launches
    bad = losing([4.0, "nan"]).launches
    base = losing([4.0, 3.0]).model_copy(update={"launches": good * 2})
    worst = base.model_copy(update={"launches": (*good * place, *bad, *good * (2 - place))})
    assert compare(base, worst, Asked(times=False)).convergence.verdict == "diverged"


def test_infinities_of_both_signs_are_no_loss() -> None:
    ranks = [
        {"rank": n, "steps": {"number": [0], "seconds": [1.0], "loss": [v]}} for n, v in enumerate(("inf", "-inf"))
    ]
    broken = measurement({"seed": 1, "ranks": ranks}, side="candidate")
    assert compare(losing([4.0]), broken, Asked()).convergence.verdict == "diverged"
    tiny = compare(losing([5e-324] * 2), losing([1e300] * 2, "candidate"), Asked()).convergence
    assert tiny.verdict == "diverged" and tiny.drift == 1e9


@pytest.mark.parametrize(("one", "two", "verdict"), [(1e12, 1e-320, "faster"), (1e-320, 1e12, "regressed")])
def test_times_beyond_all_reason_are_judged_in_numbers(one: float, two: float, verdict: str) -> None:
    base = measurement(*turns("base", [one] * 10))
    found = compare(base, measurement(*turns("candidate", [two] * 9 + [one]), side="candidate"), Asked())
    assert found.verdict in (verdict, "inconclusive") and found.timing and found.timing.judgement
    judged = found.timing.judgement
    assert all(
        value is None or math.isfinite(value) for value in (judged.ratio, judged.low, judged.high, judged.detectable)
    )


def test_losses_of_two_seeds_are_not() -> None:
    found = compare(losing([4.0]), losing([9.0], "candidate", seed=2), Asked(times=False))
    assert found.convergence.verdict == "unknown" and "seed" in found.convergence.reason


def test_the_difference_of_the_configurations_is_shown() -> None:
    base = measurement(launch([1.0]), config={"zero_optimization": {"stage": 3, "overlap_comm": True}, "a": {}})
    other = measurement(launch([1.0]), config={"zero_optimization": {"stage": 2, "overlap_comm": True}, "b": None})
    found = {each.name: (each.base, each.candidate) for each in compare(base, other, Asked()).config}
    assert found == {"zero_optimization.stage": ("3", "2"), "a": ("{}", "-"), "b": ("-", "null")}


def test_a_name_with_a_dot_hides_no_other() -> None:
    one, two = (measurement(launch([1.0]), config={"a.b": value, "a": {"b": 2}, "c": {"x.y": 1}}) for value in (1, 3))
    (change,) = compare(one, two, Asked()).config
    assert (change.name, change.base, change.candidate) == ('"a.b"', "1", "3")
    assert [name for name, _ in keys.flat(one.config or {})] == ['"a.b"', "a.b", 'c."x.y"']


def test_what_a_step_is_made_of_counts_waiting_once() -> None:
    from envbuild.profile.summary import shares

    steps = {"number": [0, 1], "seconds": [1.0, 1.0], "parts": {"data_wait": [0.3, 0.3], "forward": [0.5, 0.5]}}
    found = {each.name: each.share for each in shares(measurement({"ranks": [{"rank": 0, "steps": steps}]}))}
    assert found == {"data_wait": pytest.approx(0.3), "forward": pytest.approx(0.5), "other": pytest.approx(0.2)}


def test_a_baseline_is_kept_with_its_history(tmp_path: Path) -> None:
    base, candidate = sides(1.2)
    first = baselines.promoted(None, base, reason="first  of\nall", now=NOW)
    path = baselines.write(tmp_path, first)
    assert baselines.fitting(tmp_path, candidate.key), "the next image of the row is compared with it"
    second = baselines.promoted(baselines.read(path).baseline, candidate, reason="slower, wanted", now=NOW)
    assert baselines.write(tmp_path, second) == path
    again = baselines.find(tmp_path, "cpu-tiny").baseline
    assert [each.reason for each in again.history] == ["first of all", "slower, wanted"]
    assert again.history[1].step_seconds == pytest.approx(1.2, rel=0.02)
    assert baselines.digest_of(again.measurement) == again.history[1].measurement
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


def test_a_configuration_that_json_has_no_word_for_is_kept_in_words(tmp_path: Path) -> None:
    (tmp_path / "m.json").write_text(
        json.dumps(files.document(sides()[0]))[:-2] + ', "config": {"a": [NaN, {"b": 1e999}], "c": -Infinity}}}'
    )
    read = files.read(tmp_path / "m.json")
    assert read.config == {"a": ["nan", {"b": "inf"}], "c": "-inf"}
    path = baselines.write(tmp_path, baselines.promoted(None, read, reason="x", now=NOW))
    assert baselines.read(path).baseline.measurement == read


def test_another_key_is_another_baseline(tmp_path: Path) -> None:
    base, _ = sides()
    kept = baselines.promoted(None, base, reason="x", now=NOW)
    other = measurement(launch([1.0]), key=key(world_size=4))
    assert baselines.name_of(other.key) != kept.name
    with pytest.raises(InputError, match="world_size: 2 -> 4"):
        baselines.promoted(kept, other, reason="x", now=NOW)
    with pytest.raises(InputError, match="needs a reason"):
        baselines.promoted(kept, base, reason="  ", now=NOW)


def test_broken_and_unknown_baselines_are_errors_of_the_user(tmp_path: Path) -> None:
    assert baselines.every(tmp_path / "none") == baselines.Shelf()
    with pytest.raises(InputError, match="no baseline 'x'"):
        baselines.find(tmp_path, "x")
    for name in ("a1", "a2"):
        body = json.loads(
            store.encode_json(baselines.as_dict(baselines.promoted(None, sides()[0], reason="r", now=NOW)))
        )
        (tmp_path / f"{name}.json").write_text(json.dumps({**body, "name": name}))
    with pytest.raises(InputError, match="2 baselines begin with 'a'"):
        baselines.find(tmp_path, "a")
    empty = {**json.loads((tmp_path / "a1.json").read_text()), "history": []}
    (tmp_path / "empty.json").write_text(json.dumps(empty))
    with pytest.raises(InputError, match=r"empty\.json: not a baseline.*history"):
        baselines.find(tmp_path, "empty")
    (tmp_path / "z.json").write_text('{"schema": "envbuild.baseline/1"}')
    with pytest.raises(InputError, match=r"z\.json: not a baseline"):
        baselines.find(tmp_path, "z")
