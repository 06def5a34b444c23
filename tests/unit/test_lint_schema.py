"""What DeepSpeed's own schema says of a file, by release."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from envbuild import dsschema
from envbuild.dsconfig.context import DEEPSPEED, HF_TRAINER, Context
from envbuild.dsconfig.document import parse
from envbuild.dsconfig.linting import MOST, lint
from envbuild.dsconfig.rules.schema import RULES as SCHEMA_RULES
from envbuild.dsconfig.rules.values import RULES as VALUE_RULES
from envbuild.dsconfig.view import View
from envbuild.model import Finding

NEW, OLD = "0.19.8", "0.12.3"
OWN = {rule.id for rule in (*SCHEMA_RULES, *VALUE_RULES)}


def found(config: dict[str, Any] | str, version: str = NEW, launcher: str = DEEPSPEED) -> list[Finding]:
    text = config if isinstance(config, str) else json.dumps(config, indent=2)
    said = lint(parse(text, "ds.json"), Context(deepspeed=version, launcher=launcher))
    return [each for each in said if each.rule in OWN or each.rule.startswith(("json.", "lint."))]


def brief(config: dict[str, Any] | str, version: str = NEW) -> list[tuple[str, str, str]]:
    return [(each.rule, each.severity.value, each.subject) for each in found(config, version)]


def zero(**keys: Any) -> dict[str, Any]:
    return {"zero_optimization": keys}


def test_a_key_that_nobody_reads_is_an_error_on_every_level() -> None:
    assert brief({"zero_optimisation": {"stage": 3}}) == [("schema.unknown", "error", "zero_optimisation")]
    assert "Did you mean zero_optimization?" in found({"zero_optimisation": {}})[0].fix
    (refused,) = found(zero(stage3_reduce_bucket_size=1))
    assert "refuses to start" in refused.message
    assert refused.fix == "Did you mean reduce_bucket_size?"
    (passed,) = found({"activation_checkpointing": {"partition_activation": True}})
    assert "without a word" in passed.message
    assert "partition_activations" in passed.fix


@pytest.mark.parametrize("version", dsschema.VERSIONS)
def test_field_names_without_their_prefix_are_accepted(version: str) -> None:
    plain = {"max_live_parameters": 1, "max_reuse_distance": 1, "gather_16bit_weights_on_model_save": True}
    assert brief(zero(stage=3, **plain), version) == []
    assert brief(zero(stage=3, **{f"stage3_{name}": value for name, value in plain.items()}), version) == []


def test_what_one_may_have_meant() -> None:
    for wrong, right in (
        ("stage3_param_persitance_threshold", "stage3_param_persistence_threshold"), ("comm_overlap", "overlap_comm"),
        ("cpu_offload_params", "offload_param"), ("Overlap-Comm", "overlap_comm"),
    ):  # fmt: skip
        assert [each.fix for each in found(zero(**{wrong: 1}))] == [f"Did you mean {right}?"]
    (inside,) = found({"monitor_config": {"csv_monitor": {"enabled": True}}})
    assert inside.fix == "What is in it, such as csv_monitor, belongs to the top level."


def test_what_a_later_release_removed_was_read_before() -> None:
    for key in ("quantize_training", "eigenvalue", "nebula"):
        assert brief({key: {"enabled": True}}, "0.14.4") == []
        assert brief({key: {"enabled": True}}) == [("schema.removed", "error", key)]
    # What deepspeed.initialize asks for itself.
    assert brief({"data_parallel_size": 2, "sequence_parallel_size": 2}, "0.17.6") == []


def test_remarks_of_people_are_no_keys() -> None:
    assert brief({"_comment": "why", "//": "so", "$schema": "x", "comment_2": "y"}) == []
    assert [rule for rule, *_ in brief(zero(_comment="why"))] == ["schema.unknown"], "a model refuses it"


def test_a_key_on_the_wrong_level_is_sent_home() -> None:
    aio = {"block_size": 1048576}
    (only,) = found(zero(stage=3, aio=aio))
    assert (only.rule, only.subject) == ("schema.place", "zero_optimization.aio")
    assert "to the top level" in only.message
    (only,) = found({"overlap_comm": True})
    assert "into zero_optimization" in only.message
    assert brief({"bf16": {"loss_scale": 0}}) == [("schema.place", "error", "bf16.loss_scale")]
    # A name that many sections have says nothing of where it belongs.
    assert brief({"enabled": True}) == [("schema.unknown", "error", "enabled")]
    assert brief({"fp16": {"type": "bfloat16"}}, OLD) == [("schema.unknown", "error", "fp16.type")]


def test_releases_differ_and_the_message_says_which_has_the_key() -> None:
    ratio = zero(offload_optimizer={"device": "cpu", "ratio": 0.5})
    assert brief(ratio, "0.12.3") == []
    (missing,) = found(ratio, "0.8.3")
    assert "DeepSpeed 0.12.3 has it" in missing.message
    (gone,) = found({"compression_training": {}}, NEW)
    assert gone.rule == "schema.removed"
    assert "removed" in gone.why
    assert brief({"compression_training": {}}, "0.18.3") == []
    assert "DeepSpeed 0.16.1 has it still" in found({"aio": {"thread_count": 1}}, "0.16.4")[0].message


@pytest.mark.parametrize("version", dsschema.VERSIONS)
def test_a_key_under_two_spellings_is_refused(version: str) -> None:
    both = zero(stage=3, stage3_max_live_parameters=1, max_live_parameters=2)
    assert brief(both, version) == [("schema.twice", "error", "zero_optimization.max_live_parameters")]


def test_old_names_have_new_ones() -> None:
    old = zero(stage3_gather_fp16_weights_on_model_save=True, cpu_offload=True, cpu_offload_use_pin_memory=True)
    said = found(old)
    assert {each.severity.value for each in said} == {"warning"}
    assert {each.rule for each in said} == {"schema.deprecated"}
    fixes = {each.subject.rpartition(".")[2]: each.fix for each in said}
    assert "'stage3_gather_16bit_weights_on_model_save'" in fixes["stage3_gather_fp16_weights_on_model_save"]
    assert "'offload_optimizer'" in fixes["cpu_offload"]
    assert "remove" in fixes["cpu_offload_use_pin_memory"]
    assert found(zero(cpu_offload=False))[0].fix == "Remove it."
    both = found(zero(cpu_offload=True, offload_optimizer={"device": "cpu"}))
    assert [(each.rule, each.severity.value) for each in both] == [("schema.deprecated", "error")]


@pytest.mark.parametrize(
    ("config", "version", "severity", "words"),
    [
        (zero(stage="3"), NEW, "warning", "turns it into one"),
        (zero(reduce_bucket_size="3.0"), NEW, "warning", "turns it into one"),
        (zero(reduce_bucket_size="3.0"), OLD, "error", "refuses to start"),
        (zero(reduce_bucket_size="1e3"), NEW, "error", "refuses to start"),
        (zero(offload_optimizer={"ratio": "1e-1"}), NEW, "warning", "turns it into one"),
        (zero(reduce_bucket_size=1.5), NEW, "error", "refuses to start"),
        (zero(reduce_bucket_size=1.5), OLD, "warning", "pydantic 1 cuts it to 1"),
        (zero(overlap_comm="true"), NEW, "warning", "turns it into one"),
        (zero(overlap_comm="maybe"), NEW, "error", "refuses to start"),
        (zero(overlap_comm=[True]), NEW, "error", "a list"),
        (zero(offload_param="cpu"), NEW, "error", "refuses to start"),
        ({"zero_optimization": [1]}, NEW, "error", "refuses to start"),
        ({"train_batch_size": "8"}, NEW, "error", "is a string, not a number"),
        ({"wall_clock_breakdown": "false"}, NEW, "error", "refuses to start"),
        ({"dump_state": "false"}, NEW, "error", "counts as true"),
        ({"gradient_clipping": True}, NEW, "warning", "counts as 1"),
        ({"gradient_clipping": "1.0"}, NEW, "error", "fails later"),
    ],
)
def test_a_wrong_type_is_told_with_what_becomes_of_it(
    config: dict[str, Any], version: str, severity: str, words: str
) -> None:
    (only,) = found(config, version)
    assert (only.rule, only.severity.value) == ("schema.type", severity)
    assert words in only.message


def test_types_that_do_are_left_alone() -> None:
    fine = {
        "train_batch_size": 8, "gradient_clipping": 1, "gradient_accumulation_steps": None, "steps_per_print": 1e3,
        **zero(stage=3, reduce_bucket_size=5e8, sub_group_size=1e14, overlap_comm=1, offload_param=None),
        "fp16": {"enabled": True, "loss_scale": 0.0}, "checkpoint": {"tag_validation": "Warn"},
        "communication_data_type": "fp16", "optimizer": {"type": "Adam", "params": {"lr": 1e-5, "anything": [1]}},
    }  # fmt: skip
    assert brief(fine) == []


def test_bounds_and_words() -> None:
    assert brief(zero(reduce_bucket_size=0)) == [("schema.bounds", "error", "zero_optimization.reduce_bucket_size")]
    assert brief(zero(reduce_bucket_size=0), "0.19.5") == [], "0 was allowed"
    assert brief(zero(offload_optimizer={"ratio": 1.5})) == [
        ("schema.bounds", "error", "zero_optimization.offload_optimizer.ratio")
    ]
    (device,) = found(zero(offload_optimizer={"device": "CPU"}))
    assert (device.rule, device.fix) == ("schema.value", 'Did you mean "cpu"?')
    (stage,) = found(zero(stage=4))
    assert "none of 0, 1, 2, 3" in stage.message


def test_auto_is_nobodys_mistake_of_type() -> None:
    assert brief({"train_batch_size": "auto", **zero(reduce_bucket_size="auto"), "bf16": {"enabled": "auto"}}) == []


def test_what_hjson_allows_is_an_error_only_where_json_is_read() -> None:
    text = '{"gradient_clipping": 1, // so\n}'
    assert {each.severity.value for each in found(text)} == {"warning"}
    assert {each.severity.value for each in found(text, launcher=HF_TRAINER)} == {"error"}


def test_findings_come_in_the_order_of_the_file_with_their_release() -> None:
    said = found('{\n "b": 1,\n "zero_optimization": {"x": 1},\n "a": 2,\n "a": 2\n}', "0.14.2")
    assert [(each.line, each.column) for each in said] == [(2, 2), (3, 24), (4, 2), (5, 2), (5, 2)]
    assert all("DeepSpeed 0.14.0" in each.source for each in said if each.rule == "schema.unknown")


def test_a_rule_that_fails_says_so_and_the_others_count() -> None:
    from envbuild.dsconfig.linting import judge
    from envbuild.dsconfig.rules import Rule

    def broken(view: Any, context: Any) -> Any:
        raise KeyError("gone")

    rules = (Rule(id="x.y", title="", judge=broken, source=""), *SCHEMA_RULES)
    said = [each.finding for each in judge(parse('{"zzz": 1}'), Context(deepspeed=NEW), rules)]
    assert sorted(each.rule for each in said) == ["lint.crashed", "schema.unknown"]
    assert any("KeyError" in each.message for each in said)


def test_rules_hold_for_the_releases_they_name() -> None:
    from envbuild.dsconfig.linting import judge
    from envbuild.dsconfig.problem import Problem
    from envbuild.dsconfig.rules import Rule
    from envbuild.model import Severity

    def always(view: Any, context: Any) -> Any:
        yield Problem(path="x", severity=Severity.INFO, message="m")

    rule = Rule(id="x.y", title="", judge=always, source="s", since="0.10.0", before="0.16.0")
    holds = {
        version: bool(judge(parse("{}"), Context(deepspeed=version), (rule,)))
        for version in ("0.9.5", "0.10.0", "0.15.4", "0.16.0")
    }
    assert holds == {"0.9.5": False, "0.10.0": True, "0.15.4": True, "0.16.0": False}


# What DeepSpeed's and Hugging Face's own examples look like, in parts; none may be objected to by the schema.
CLEAN = json.loads((Path(__file__).parent / "data" / "lint" / "clean.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", CLEAN)
def test_configurations_that_people_use_are_clean(name: str) -> None:
    since = CLEAN[name]["since"]
    for version in dsschema.VERSIONS:
        if dsschema.release(version) < dsschema.release(since):
            continue
        before = CLEAN[name].get("before")
        if before and dsschema.release(version) >= dsschema.release(before):
            continue
        said = found(CLEAN[name]["config"], version, HF_TRAINER)
        assert not said, (version, [each.message for each in said])


def test_a_flood_is_told_of_not_printed() -> None:
    said = brief({f"key{number}": 1 for number in range(30_000)})
    assert len(said) == MOST + 1
    assert said[-1] == ("lint.more", "error", "schema.unknown")
    said = brief("{" + ", ".join(['"train_batch_size": 1'] * 10_000) + "}")
    assert said[-1] == ("lint.more", "error", "json.duplicate")
    (only,) = found('{ // one\n# two\n"train_batch_size": 8 /* three */}')
    assert only.message == "a comment, which JSON does not have; 2 more follow"


def test_a_text_that_a_model_turns_into_a_number_is_one_to_every_rule() -> None:
    config = {"train_batch_size": 8, "bf16": {"enabled": "true"}, **zero(stage="3", offload_param={"device": "cpu"})}
    said = lint(parse(json.dumps(config)), Context(deepspeed=NEW, launcher=DEEPSPEED))
    assert {each.rule for each in said if each.severity.value != "info"} == {"schema.type"}
    # What it turns into is judged, too, and pydantic 1 turns no text into a stage.
    assert ("schema.value", "error", "zero_optimization.stage") in brief(zero(stage="8"))
    assert ("schema.bounds", "error", "zero_optimization.reduce_bucket_size") in brief(zero(reduce_bucket_size="0"))
    assert ("schema.bounds", "error", "zero_optimization.reduce_bucket_size") in brief(zero(reduce_bucket_size=False))
    said = lint(
        parse('{"bf16": {"enabled": 1}, "fp16": {"enabled": true}}'), Context(deepspeed=NEW, launcher=DEEPSPEED)
    )
    assert "precision.both" in {each.rule for each in said}, "1 is true"
    assert brief(zero(stage="3"), OLD) == [("schema.type", "error", "zero_optimization.stage")]


def test_what_no_model_reads_stays_the_text_it_is() -> None:
    view = View(parse('{"gradient_clipping": "1.0", "dump_state": "false"}'), dsschema.for_version(NEW))
    assert view.get("gradient_clipping").value == "1.0"
    assert view.get("dump_state").value == "false"
