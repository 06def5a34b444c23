"""Every known way to spoil an image is caught, each by a finding of its own; an image that nobody spoiled passes."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from envbuild import evidence
from sabotage.sabotage import Sabotage
from sabotage.sabotages import SABOTAGES

if TYPE_CHECKING:
    from sabotage.conftest import Verdicts

# What every overlay does (a layer, a label, a mount) and nothing else: were this one refused, the others would prove
# nothing.
NOTHING = Sabotage(fault="nothing", finding=None, names="", dockerfile="RUN true")


def test_each_finding_belongs_to_one_fault() -> None:
    own = Counter(each.finding for each in SABOTAGES if not each.way)
    assert max(own.values()) == 1, own.most_common(1)
    assert {each.finding for each in SABOTAGES} == set(own), "another way needs a fault that the finding belongs to"
    assert max(Counter(each.id for each in SABOTAGES).values()) == 1
    shared = Counter((each.finding, each.names) for each in SABOTAGES if each.together)
    assert max(shared.values()) == 1, "in an image with several faults each finding has to name its own"


@pytest.mark.parametrize("sabotage", [NOTHING], ids=["nothing"])
def test_an_image_that_nobody_spoiled_passes(sabotage: Sabotage, verdicts: Verdicts, proven: dict[str, object]) -> None:
    assert proven["level"] == "cpu"
    verdict = verdicts.of(sabotage)
    assert verdict.exit_code == 0, verdict.told


@pytest.mark.parametrize("sabotage", SABOTAGES, ids=[each.id for each in SABOTAGES])
def test_a_spoiled_image_is_refused_and_the_fault_is_named(sabotage: Sabotage, verdicts: Verdicts) -> None:
    verdict = verdicts.of(sabotage)
    assert verdict.problems(sabotage) == [], verdict.told
    # It got no name beside the one that the test gave it, and nothing says that it was ever proven.
    assert verdict.tags == (verdicts.name(sabotage),)
    assert evidence.records(verdict.image) == []
