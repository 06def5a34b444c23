"""Every known way to spoil an image is caught, each by a finding of its own; an image that nobody spoiled passes."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from envbuild import evidence
from proving import REGISTRY
from sabotage.sabotage import Sabotage
from sabotage.sabotages import SABOTAGES

if TYPE_CHECKING:
    from sabotage.conftest import Verdicts

# What every overlay does (a layer, a label, a mount) and nothing else: were this one refused, the others would prove
# nothing.
NOTHING = Sabotage(fault="nothing", finding=None, names="", dockerfile="RUN true")


def test_each_finding_belongs_to_one_fault() -> None:
    own = Counter(each.finding for each in SABOTAGES if not each.way)
    assert [finding for finding, times in own.items() if times > 1] == []
    assert {(each.fault, each.finding) for each in SABOTAGES} == {
        (each.fault, each.finding) for each in SABOTAGES if not each.way
    }, "another way to a fault needs the fault itself in the table"
    assert max(Counter(each.id for each in SABOTAGES).values()) == 1


@pytest.mark.parametrize("sabotage", [NOTHING], ids=["nothing"])
def test_an_image_that_nobody_spoiled_passes(sabotage: Sabotage, verdicts: Verdicts, proven: dict[str, object]) -> None:
    assert proven["level"] == "cpu"
    verdict = verdicts.of(sabotage)
    assert verdict.exit_code == 0, verdict.said


@pytest.mark.parametrize("sabotage", SABOTAGES, ids=[each.id for each in SABOTAGES])
def test_a_spoiled_image_is_refused_and_the_fault_is_named(sabotage: Sabotage, verdicts: Verdicts) -> None:
    verdict = verdicts.of(sabotage)
    assert verdict.problems(sabotage) == [], verdict.said
    # It got no name beside the one that the test gave it, and nothing says that it was ever proven.
    assert verdict.tags == (f"{REGISTRY}/sabotage/{sabotage.id}:1",)
    assert evidence.records(verdict.image) == []
