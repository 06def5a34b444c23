"""The rules that a configuration is held to: small functions, one list. What DeepSpeed's schema knows is in dsschema.

A rule sees the configuration (View) and what is known of the run (Context), and yields objections. One that has nothing
to say without a fact that nobody gave says nothing.
"""

from __future__ import annotations

from envbuild.dsconfig.rules import (
    alignment,
    auto,
    batch,
    communication,
    kinds,
    memory,
    nvme,
    offload,
    optimizer,
    precision,
    scheduler,
    schema,
    sections,
    values,
    zero,
)
from envbuild.dsconfig.rules.rule import Judge, Rule

__all__ = ["RULES", "Judge", "Rule"]

RULES: tuple[Rule, ...] = (
    *schema.RULES,
    *values.RULES,
    *kinds.RULES,
    *batch.RULES,
    *auto.RULES,
    *precision.RULES,
    *zero.RULES,
    *offload.RULES,
    *nvme.RULES,
    *alignment.RULES,
    *optimizer.RULES,
    *scheduler.RULES,
    *communication.RULES,
    *sections.RULES,
    *memory.RULES,
)
