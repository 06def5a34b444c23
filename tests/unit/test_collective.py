"""An all-reduce over several nodes: its answer is known, and everything that is not the answer is found."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from envbuild import process
from envbuild.pipeline.collective import Expected, answer, carry_out, judge, summary

EXPECTED = Expected(world=4, nodes=2, seed=76)


def documents() -> list[dict[str, Any]]:
    values, total = answer(EXPECTED)
    fixed = {"schema": "envbuild.probe.allreduce/1", "world": 4, "backend": "gloo", "bytes": 524288, "total": total}
    return [
        {
            **fixed, "rank": rank, "node": f"n{rank // 2}", "joined_seconds": 0.5, "seconds": [0.9, 0.002, 0.004],
            "values": list(values),
        }
        for rank in range(4)
    ]  # fmt: skip


def test_the_answer_is_the_one_that_a_run_gave() -> None:
    """Two ranks on two nodes over gloo, with torch 2.13.0."""
    values, total = answer(Expected(world=2, nodes=2, seed=188))
    assert total == 66094931.0
    assert values == [376.0, 926.0, 1476.0, 1017.0, 1567.0, 1108.0, 649.0, 190.0, 1749.0, 1437.0, 978.0, 1528.0, 1069.0,
                      610.0, 151.0, 1710.0]  # fmt: skip


def test_right_sums_are_right() -> None:
    assert judge(documents(), EXPECTED) == []
    assert summary(documents()) == (
        "4 ranks on 2 nodes over gloo: the sums are right; joined in 0.50 s, 512 KiB in 3.00 ms"
    )


def without(name: str) -> Callable[[list[dict[str, Any]]], None]:
    return lambda found: found[2].pop(name)


SPOILED: dict[str, tuple[Callable[[list[dict[str, Any]]], Any], str]] = {
    "a rank is missing": (lambda found: found.pop(), "no figures of rank 3"),
    "one element is wrong": (lambda found: found[1]["values"].__setitem__(5, 0.0), "rank 1 on n0 got"),
    "nothing was added": (lambda found: found[1].update(total=0.0), "rank 1 on n0 got 0.0"),
    "a sum is missing": (without("total"), "rank 2 on n1 got None"),
    "no element is there": (without("values"), "rank 2 on n1"),
    "another world": (lambda found: found[0].update(world=2), "rank 0 on n0"),
    "all on one node": (lambda found: [each.update(node="n0") for each in found], "ran on n0, not on 2 nodes"),
    "not a number": (lambda found: found[0].update(total=float("nan")), "rank 0 on n0 got nan"),
}


@pytest.mark.parametrize("spoiled", SPOILED)
def test_what_is_not_the_answer_is_found(spoiled: str) -> None:
    found = copy.deepcopy(documents())
    spoil, words = SPOILED[spoiled]
    spoil(found)
    assert any(words in each.message for each in judge(found, EXPECTED)), spoiled


def started(monkeypatch: pytest.MonkeyPatch, code: int, files: dict[str, str]) -> None:
    def stream(argv: Any, *, on_line: Any, cwd: Path, timeout: float) -> int:
        for name, text in files.items():
            (cwd / "ranks" / name).write_text(text)
        return code

    monkeypatch.setattr(process, "stream", stream)


def test_ranks_are_heard_behind_what_libraries_print(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    noisy = {f"{each['rank']}.json": f"a library's word\n{json.dumps(each)}\n" for each in documents()}
    started(monkeypatch, 0, noisy)
    found, heard = carry_out(tmp_path, ("srun",), EXPECTED, timeout=9)
    assert found == [] and heard == documents()


def test_ranks_that_do_not_start_say_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = "docker: no such image\n\nslurmstepd-n1: error: *** STEP 1.0 ON n1 CANCELLED ***\n"
    started(monkeypatch, 125, {"0.txt": said, "1.txt": ""})
    (finding,), heard = carry_out(tmp_path, ("srun",), EXPECTED, timeout=9)
    assert finding.message == "srun ended with exit code 125; rank 0: docker: no such image" and heard == []
