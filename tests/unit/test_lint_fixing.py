"""What is mended without asking: it stays the same file, and means what it meant, but for what is said."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envbuild import dsschema
from envbuild.dsconfig import fixing
from envbuild.dsconfig.context import DEEPSPEED, Context
from envbuild.dsconfig.document import parse
from envbuild.dsconfig.fixing import fix
from envbuild.dsconfig.linting import MOST, judge
from envbuild.dsconfig.rules.schema import RULES as SCHEMA_RULES
from envbuild.dsconfig.rules.values import RULES as VALUE_RULES

OWN = frozenset({rule.id for rule in (*SCHEMA_RULES, *VALUE_RULES)} | {"json.comma", "json.bom"})


def mended(text: str, version: str = dsschema.NEWEST, launcher: str = DEEPSPEED) -> str:
    return fix(parse(text), Context(deepspeed=version, launcher=launcher), wanted=OWN).document.text


def test_a_section_moves_with_the_indentation_of_its_new_neighbours() -> None:
    text = (
        "{\r\n"
        '    "zero_optimization": {\r\n'
        '        "stage": 3,\r\n'
        '        "aio": {\r\n'
        '            "queue_depth": 8,\r\n'
        '            "block_size": 1e6\r\n'
        "        },\r\n"
        '        "reduce_bucket_size": 5e8\r\n'
        "    },\r\n"
        '    "gradient_clipping": 1.0\r\n'
        "}\r\n"
    )
    assert mended(text) == (
        "{\r\n"
        '    "zero_optimization": {\r\n'
        '        "stage": 3,\r\n'
        '        "reduce_bucket_size": 5e8\r\n'
        "    },\r\n"
        '    "gradient_clipping": 1.0,\r\n'
        '    "aio": {\r\n'
        '        "queue_depth": 8,\r\n'
        '        "block_size": 1e6\r\n'
        "    }\r\n"
        "}\r\n"
    )


@pytest.mark.parametrize(
    ("text", "after"),
    [
        (
            '{"zero_optimization": {"stage3_gather_fp16_weights_on_model_save": true}}',
            '{"zero_optimization": {"stage3_gather_16bit_weights_on_model_save": true}}',
        ),
        ('{"zero_optimization":{"cpu_offload":true}}', '{"zero_optimization":{"offload_optimizer":{"device": "cpu"}}}'),
        ('{"zero_optimization": {"stage": 2, "cpu_offload": false}}', '{"zero_optimization": {"stage": 2}}'),
        ('{"zero_optimization": {"cpu_offload": false, "stage": 2}}', '{"zero_optimization": {"stage": 2}}'),
        ('{"zero_optimization": {"cpu_offload": false}}', '{"zero_optimization": {}}'),
        ('{"zero_optimization": {"stage": "3", "overlap_comm": "True"}}',
         '{"zero_optimization": {"stage": 3, "overlap_comm": true}}'),
        ('{"train_batch_size": "8",}', '{"train_batch_size": 8}'),
        ('\ufeff{"gradient_clipping": 1.0,}', '{"gradient_clipping": 1.0}'),
        # Two of them, and one that is there already: a person decides.
        ('{"overlap_comm": true, "zero_optimization": {"overlap_comm": false}}', None),
        ('{"zero_optimization": {"cpu_offload": true, "offload_optimizer": {"device": "cpu"}}}', None),
        # Another spelling of it is there, or its old name: together they are refused.
        ('{"stage3_max_live_parameters": 1e8, "zero_optimization": {"max_live_parameters": 1e9}}', None),
        ('{"offload_optimizer": {"device": "cpu"}, "zero_optimization": {"cpu_offload": null}}', None),
        ('{"cpu_offload": true, "zero_optimization": {"cpu_offload": null}}', None),
        ('{"bf16": {"loss_scale": 0}, "fp16": {"enabled": true}}', None),
        ('{"zero_optimisation": {"stage": 3}}', None),
        ('{"gradient_clipping": 1, "gradient_clipping": 2}', None),
        ('{"gradient_clipping": "1", "gradient_clipping": "2"}', None),
        # A comment may belong to what would go.
        ('{"zero_optimization": {"stage": 3, // so\n "aio": {}}}', None),
    ],
)  # fmt: skip
def test_what_has_one_remedy_is_mended_and_nothing_else(text: str, after: str | None) -> None:
    assert mended(text) == (text if after is None else after)


def test_a_moved_key_is_mended_where_it_arrives() -> None:
    assert mended('{"cpu_offload": true, "zero_optimization": {"stage": "2"}}') == (
        '{"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}}'
    )


KEYS = [
    "zero_optimization", "stage", "aio", "cpu_offload", "cpu_offload_param", "overlap_comm", "bf16", "fp16", "enabled",
    "stage3_gather_fp16_weights_on_model_save", "max_live_parameters", "reduce_bucket_size", "train_batch_size",
    "offload_optimizer", "device", "optimizer", "params", "type", "gradient_clipping", "zzz", "loss_scale", "auto",
]  # fmt: skip
CONFIGS = st.recursive(
    st.sampled_from([True, False, None, 0, 1, 2, 5e8, 1.5, "3", "true", "auto", "cpu", "x", []]),
    lambda inner: st.dictionaries(st.sampled_from(KEYS), inner, max_size=5),
    max_leaves=14,
)


LEAVES: list[Any] = [True, False, None, 0, 1, 2, 5e8, 1.5, "3", "true", "auto", "cpu", "x", [], {}, {"device": "cpu"}]


@pytest.mark.parametrize("version", dsschema.VERSIONS)
def test_a_new_name_means_what_the_old_one_did_whatever_the_value(version: str) -> None:
    zero = dsschema.for_version(version).root.find("zero_optimization")
    assert zero is not None and zero.section is not None
    old = [name for key in zero.section if key.deprecated for name in key.names]
    assert "cpu_offload" in old
    renamed = 0
    for name in old:
        for value in LEAVES:
            config = {"zero_optimization": {"stage": 2, name: value}}
            done = fix(parse(json.dumps(config)), Context(deepspeed=version), wanted=OWN)
            if not {each.rule for each in done.mended} - {"schema.deprecated"}:
                after = json.loads(done.document.text)
                assert dsschema.digest(after, version) == dsschema.digest(config, version), (config, after)
                renamed += len(done.mended)
    assert renamed


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(st.sampled_from(KEYS), CONFIGS, max_size=6),
    st.sampled_from([None, 2, "\t"]),
    st.sampled_from(["0.8.3", "0.14.4", "0.19.8"]),
)
def test_mending_ends_and_keeps_what_a_file_means(config: dict[str, Any], indent: Any, version: str) -> None:
    text = json.dumps(config, indent=indent)
    once = mended(text, version)
    assert mended(once, version) == once
    after = json.loads(once)
    assert parse(once).flaws == ()
    # Without keys that were in a wrong place, and so not read, it is read as before: renames and types change nothing.
    said = fix(parse(text), Context(deepspeed=version), wanted=OWN).mended
    if not {each.rule for each in said} - {"schema.deprecated"}:
        assert dsschema.digest(after, version) == dsschema.digest(config, version)


@settings(max_examples=40, deadline=None)
@given(st.dictionaries(st.sampled_from(KEYS), CONFIGS, max_size=6))
def test_what_is_not_mended_keeps_every_letter(config: dict[str, Any]) -> None:
    text = json.dumps(config, indent=3)
    lines = set(mended(text).split("\n"))
    said = fix(parse(text), Context(deepspeed=dsschema.NEWEST), wanted=OWN).mended
    if not said:
        assert lines == set(text.split("\n"))


def test_a_file_of_thousands_of_places_is_mended_in_few_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    passes = []
    monkeypatch.setattr(fixing, "judge", lambda *args: passes.append(1) or judge(*args))
    text = '{"_": [' + ", ".join(["[1,]"] * 1000) + '], "gradient_clipping": "1.0"}'
    assert mended(text) == text.replace(",]", "]").replace('"1.0"', "1.0")
    assert len(passes) <= 1000 // MOST + 2
