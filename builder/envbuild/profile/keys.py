"""When two measurements may be compared, and where their ds_configs differ."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from envbuild.profile.document import Key, Measurement

Aspect = Literal["image", "config", "model", "probe", "hardware", "world", "accelerator"]
ASPECTS: tuple[Aspect, ...] = get_args(Aspect)
# Of what an aspect consists; the versions follow from the image.
_FIELDS: dict[Aspect, tuple[str, ...]] = {
    "image": ("image", "row", "deepspeed", "torch", "nccl"),
    "config": ("config",),
    "model": ("model",),
    "probe": ("probe",),
    "hardware": ("hardware",),
    "world": ("world_size", "nodes"),
    "accelerator": ("accelerator",),
}
# What the kernel says of one machine's memory changes with the kernel: by pages, and by what it keeps for itself.
MEMORY = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Something that is not the same on both sides."""

    aspect: str
    name: str
    base: str
    candidate: str


def differences(base: Key, candidate: Key) -> list[Difference]:
    """Where two keys differ; what one of them does not know is no difference."""
    found = []
    for aspect, names in _FIELDS.items():
        for name in names:
            ours, theirs = getattr(base, name), getattr(candidate, name)
            if name == "hardware":
                found += [
                    Difference(aspect=aspect, name=f"hardware.{each}", base=str(a), candidate=str(b))
                    for each in type(ours).model_fields
                    if _differ(a := getattr(ours, each), b := getattr(theirs, each))
                    and not (each == "memory_bytes" and same_memory(a, b))
                ]
            elif _differ(ours, theirs):
                found.append(Difference(aspect=aspect, name=name, base=str(ours), candidate=str(theirs)))
    return found


def same_memory(one: int, other: int) -> bool:
    """Whether two sizes may be those of one machine's memory, behind one kernel and the next."""
    return abs(one - other) <= MEMORY * max(one, other)


def _differ(base: Any, candidate: Any) -> bool:
    return base not in (None, ()) and candidate not in (None, ()) and base != candidate


def config_changes(base: Measurement, candidate: Measurement) -> list[Difference]:
    """The values of the resolved ds_configs that differ, by dotted name."""
    if base.config is None or candidate.config is None:
        return []
    ours, theirs = dict(flat(base.config)), dict(flat(candidate.config))
    return [
        Difference(aspect="config", name=name, base=ours.get(name, "-"), candidate=theirs.get(name, "-"))
        for name in sorted({*ours, *theirs})
        if ours.get(name) != theirs.get(name)
    ]


def flat(value: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, str]]:
    """Dotted names and values as words; a name with a dot of its own is quoted, so that no two are one."""
    for own, each in value.items():
        name = json.dumps(own, ensure_ascii=False) if "." in own or '"' in own else own
        if isinstance(each, Mapping) and each:
            yield from flat(each, f"{before}{name}.")
        else:
            yield (
                f"{before}{name}",
                "null" if each is None else str(each).lower() if each in (True, False) else str(each),
            )
