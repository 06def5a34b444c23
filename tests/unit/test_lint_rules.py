"""Every rule of lint's has configurations that break it and such that keep it (tests/lintbook); here they are tried."""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from envbuild import dsschema
from envbuild.dsconfig.context import Context, Gpu, Model, Row
from envbuild.dsconfig.document import parse
from envbuild.dsconfig.linting import lint
from envbuild.dsconfig.rules import RULES
from envbuild.model.finding import Finding
from lintbook import BROKEN, FILES, IGNORED, KEPT, REJECTED, UNSEEN, Case

# What the schema says of a configuration, and whether a model fits, is tested elsewhere.
OWN = {rule.id for rule in RULES if not rule.id.startswith(("schema.", "memory."))} | {
    "schema.section",
    "schema.boolean",
}


def context(about: Mapping[str, Any]) -> Context:
    said = {"deepspeed": "0.19.8", **about}
    largest = said.pop("largest", None)
    if largest:
        weight = SimpleNamespace(name="lm_head", size=largest)
        shape = SimpleNamespace(largest_weight=weight, weights=lambda: [(weight, 1)])
        said["model"] = Model(parameters=largest, shape=shape)
    if "gpu" in said:
        said["gpu"] = Gpu(**said["gpu"])
    if "row" in said:
        said["row"] = Row(**said["row"])
    return Context(**said)


def findings(config: Mapping[str, Any], about: Mapping[str, Any]) -> tuple[Finding, ...]:
    found = lint(parse(json.dumps(config, indent=2), "ds_config.json"), context(about))
    assert not [each for each in found if each.rule == "lint.crashed"]
    return found


@pytest.mark.parametrize("case", BROKEN, ids=lambda case: case.name)
def test_broken(case: Case) -> None:
    found = [each for each in findings(case.config, case.about) if each.rule == case.rule]
    assert [each.severity.value for each in found] == [case.severity]
    assert case.says in found[0].message
    assert found[0].source
    assert found[0].fix or case.severity == "info"
    assert found[0].line, "every finding has a place"


@pytest.mark.parametrize(("rule", "config", "about"), KEPT)
def test_kept(rule: str, config: Mapping[str, Any], about: Mapping[str, Any]) -> None:
    assert [each.message for each in findings(config, about) if each.rule == rule] == []


@pytest.mark.parametrize("release", [each for each in dsschema.VERSIONS if dsschema.release(each) >= (0, 9, 5)])
@pytest.mark.parametrize("kind", FILES)
def test_files_of_the_usual_kinds_have_no_error(kind: str, release: str) -> None:
    launcher, config = FILES[kind]
    found = findings(config, {"launcher": launcher, "gpus": 8, "deepspeed": release})
    assert [f"{each.rule}: {each.message}" for each in found if each.severity.value == "error"] == []


def test_every_rule_is_tested_both_ways() -> None:
    assert {case.rule for case in BROKEN} >= OWN
    assert {case[0] for case in KEPT} >= OWN


def test_every_error_says_what_deepspeed_does() -> None:
    for case in BROKEN:
        assert (case.does in (REJECTED, IGNORED, UNSEEN)) == (case.severity == "error"), case.rule


def test_ids_are_unique_and_families_are_words() -> None:
    ids = [rule.id for rule in RULES]
    assert len(ids) == len(set(ids))
    assert all(family.isalpha() and family.islower() for family in (each.partition(".")[0] for each in ids))
