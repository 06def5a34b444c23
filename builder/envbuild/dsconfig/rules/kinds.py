"""Kinds of values that DeepSpeed refuses when it reads a file, beyond those that its schema was asked for."""

from __future__ import annotations

from collections.abc import Iterator

from envbuild.dsconfig.context import Context
from envbuild.dsconfig.document import NULL, NUMBER, STRING
from envbuild.dsconfig.problem import Problem
from envbuild.dsconfig.rules.asking import ERROR
from envbuild.dsconfig.rules.rule import Rule
from envbuild.dsconfig.rules.schema import walk
from envbuild.dsconfig.view import AUTO, View

# Where null is as good as nothing.
_OPTIONAL = (
    "aio", "bf16", "expert_parallel", "autotuning.model_info", "checkpoint.writer", "zero_optimization.leaf_module",
)  # fmt: skip
_DROPPED = ("tensorboard", "wandb", "csv_monitor", "comet", "timers")
_WORDS = ("true", "false", "yes", "no", "on", "off", "t", "f", "y", "n", "1", "0")


def sections(view: View, context: Context) -> Iterator[Problem]:
    """A section is an object."""
    for path, section, node in walk(view):
        for member in node.members:
            key = section.find(member.key)
            if key is None or key.section is None or member.node.value not in (None, AUTO):
                continue
            here = f"{path}.{member.key}" if path else member.key
            if member.node.kind == NULL and (here in _OPTIONAL or "null" in key.types):
                continue
            # A model drops what is "auto" before it looks, as deep as it reaches.
            if member.node.value == AUTO and (section.extra == "forbid" or here in _DROPPED):
                continue
            yield Problem(
                path=here, severity=ERROR, place=member.node.place,
                message=f"{member.key} is {member.node.raw}: DeepSpeed looks into it, and ends",
                fix=f"Remove it, or write an object: {{}} for {member.key}'s defaults.",
            )  # fmt: skip


def booleans(view: View, context: Context) -> Iterator[Problem]:
    """What is true or false is no other number, and no other text."""
    for path, section, node in walk(view):
        if section.extra != "forbid":
            continue
        for member in node.members:
            key, value = section.find(member.key), member.node.value
            if key is None or "boolean" not in key.types[:1] or value == AUTO:
                continue
            number = member.node.kind == NUMBER and value == value // 1 and value not in (0, 1, -1)
            text = member.node.kind == STRING and value.strip().lower() not in _WORDS and value.strip().isdigit()
            if number or text:
                yield Problem(
                    path=f"{path}.{member.key}", severity=ERROR, place=member.node.place,
                    message=f"{member.node.raw} is neither true nor false: DeepSpeed refuses to start",
                    fix="Write true or false.",
                )  # fmt: skip


RULES = (
    Rule(
        id="schema.section", title="a section is an object", judge=sections,
        source="deepspeed/runtime/config.py: get_*_config; seen with 0.19.8",
    ),
    Rule(
        id="schema.boolean", title="what is true or false is no other number or text", judge=booleans,
        source="pydantic's conversion table for bool; seen with 0.19.8",
    ),
)  # fmt: skip
