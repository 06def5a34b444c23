"""Every rule holds its ground on every configuration: whatever is in a file, no rule fails."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from envbuild import dsschema
from envbuild.dsconfig.context import LAUNCHERS, Context, Gpu, Model, Row
from envbuild.dsconfig.document import parse
from envbuild.dsconfig.fixing import fix
from envbuild.dsconfig.linting import lint
from envbuild.pipeline.linting import titles

SECTIONS = [
    section for version in ("0.8.3", dsschema.NEWEST) for _, section in dsschema.for_version(version).sections()
]
NAMES = sorted({name for section in SECTIONS for name in section.spellings} | {"zzz", "params", "lr", "betas", ""})
VALUES = st.sampled_from(
    [True, False, None, 0, 1, -1, 3, 8, 5e8, 1.5, 1e300, 10**30, "8", "auto", "cpu", "nvme", "Adam", "x", "", [], [0.9]]
)
ANY = st.recursive(
    VALUES,
    lambda inner: st.dictionaries(st.sampled_from(NAMES), inner, max_size=6) | st.lists(inner, max_size=3),
    max_leaves=25,
)
# Sections that many rules look into, with whatever in them.
LIKELY = st.fixed_dictionaries(
    {},
    optional={
        "zero_optimization": st.dictionaries(st.sampled_from(NAMES), ANY, max_size=6)
        | st.fixed_dictionaries(
            {"stage": VALUES},
            optional={
                "offload_optimizer": st.fixed_dictionaries({}, optional={"device": VALUES, "nvme_path": VALUES,
                                                                         "buffer_count": VALUES, "ratio": VALUES}),
                "offload_param": st.fixed_dictionaries({}, optional={"device": VALUES, "buffer_size": VALUES}),
                "reduce_bucket_size": VALUES, "sub_group_size": VALUES, "stage3_max_live_parameters": VALUES,
                "stage3_prefetch_bucket_size": VALUES,
            },
        ),
        "bf16": ANY, "fp16": ANY, "aio": ANY, "optimizer": ANY, "scheduler": ANY, "train_batch_size": VALUES,
        "train_micro_batch_size_per_gpu": VALUES, "gradient_accumulation_steps": VALUES,
        "activation_checkpointing": ANY,
    },
)  # fmt: skip
CONTEXTS = st.builds(
    Context,
    deepspeed=st.sampled_from(dsschema.VERSIONS),
    launcher=st.sampled_from(LAUNCHERS),
    gpu=st.sampled_from([None, Gpu(name="V100", sm=70, memory_bytes=32 << 30), Gpu(name="H100", sm=90)]),
    gpus=st.sampled_from([None, 1, 8]),
    nodes=st.sampled_from([1, 3]),
    ram_bytes=st.sampled_from([None, 1 << 20, 1 << 40]),
    model=st.sampled_from([None, Model(parameters=7_000_000_000), Model(parameters=1)]),
    row=st.sampled_from([None, Row(name="cpu", accelerator="cpu", ops=("cpu_adam",), shm_bytes=1 << 30)]),
)


@settings(max_examples=60, deadline=None)
@given(ANY | LIKELY, CONTEXTS)
@example({"zero_optimization": True}, Context(deepspeed="0.19.8"))
@example({"": True}, Context(deepspeed="0.8.3"))
@example({"optimizer": {"type": None, "params": []}}, Context(deepspeed="0.8.3", gpus=1))
def test_no_rule_fails_whatever_is_in_a_file(config: Any, context: Context) -> None:
    document = parse(json.dumps({"a": config} if not isinstance(config, dict) else config))
    found = lint(document, context)
    assert [each.message for each in found if each.rule == "lint.crashed"] == []
    for each in found:
        assert each.rule in titles()
        assert each.message and each.subject and each.source
        assert each.line is not None and each.column is not None
        assert each.line >= 1 and each.column >= 1


@settings(max_examples=20, deadline=None)
@given(LIKELY, CONTEXTS)
def test_mending_with_every_rule_ends_in_json(config: Any, context: Context) -> None:
    once = fix(parse(json.dumps(config, indent=2)), context).document
    assert isinstance(json.loads(once.text), dict)
    assert fix(once, context).document.text == once.text
