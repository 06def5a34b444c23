"""The ds_config that a measurement trains with: the user's, with what has to be filled in. Pure."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from envbuild.collector import secrets
from envbuild.errors import InputError
from envbuild.profile.usual import LOUD, MICRO_BATCH, SILENT, usual


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingConfig:
    """What DeepSpeed is given.

    Attributes:
        notes: What was changed, and why.
    """

    values: dict[str, Any]
    notes: tuple[str, ...] = ()

    @property
    def swaps(self) -> bool:
        """Whether anything is offloaded to a disk."""
        zero = self.values.get("zero_optimization") or {}
        parts = [zero.get(name) for name in ("offload_optimizer", "offload_param")]
        return any(isinstance(part, dict) and part.get("device") == "nvme" for part in parts)


def training_config(
    given: Any,
    *,
    accelerator: str,
    settings: Iterable[str] = (),
    micro_batch: int | None = None,
    disk: str | None = None,
) -> TrainingConfig:
    """The config to train with.

    Args:
        given: The user's ds_config, parsed; None is the usual one.
        accelerator: ``cpu`` or ``cuda``.
        settings: ``key.key=value``, which come last; a value is JSON, or else a word. ``null`` takes a key out.
        micro_batch: Samples of one micro-batch, in place of the config's.
        disk: The folder that states are swapped to, as the training sees it.

    Raises:
        InputError: It is no ds_config, or a setting is none.
    """
    if given is not None and not isinstance(given, dict):
        raise InputError("the ds_config is no JSON object")
    values = copy.deepcopy(given) if given is not None else usual(accelerator)
    notes = [
        f"{name} was left out: it would change the step that is measured (--set {name}=... keeps it)"
        for name in LOUD
        if values.pop(name, None) is not None
    ]
    notes += [f"{place} was left out: it is a monitor, or looks like a secret" for place in _private(values, ())]
    values = secrets.config(values)
    values["steps_per_print"] = SILENT
    chosen = [_setting(text) for text in settings]
    for path, value in chosen:
        _need_public(path, value)
        _put(values, path, value)
    autos = _without_auto(values, ())
    notes += [f'{place}: "auto" is filled in by Hugging Face only; it was left out' for place in autos]
    if values.pop("train_batch_size", None) is not None:
        notes.append("train_batch_size was left out: it follows from micro-batch, accumulation and ranks")
    values.setdefault("gradient_accumulation_steps", 1)
    if micro_batch is not None:
        values["train_micro_batch_size_per_gpu"] = micro_batch
    values.setdefault("train_micro_batch_size_per_gpu", MICRO_BATCH)
    for name in ("gradient_accumulation_steps", "train_micro_batch_size_per_gpu"):
        if isinstance(values[name], bool) or not isinstance(values[name], int) or values[name] < 1:
            raise InputError(f"ds_config: {name} is {json.dumps(values[name])}; it has to be a whole number from 1 on")
    if not values.get("optimizer"):
        values["optimizer"] = usual(accelerator)["optimizer"]
        notes.append("the ds_config names no optimizer: Adam was taken")
    config = TrainingConfig(values=values, notes=tuple(notes))
    if config.swaps:
        _swap_to(values, disk)
    return config


def _setting(text: str) -> tuple[tuple[str, ...], Any]:
    name, equals, value = text.partition("=")
    path = tuple(name.split("."))
    if not equals or not all(path):
        raise InputError(
            f"--set {text}: it is not KEY=VALUE", hint="Such as: --set zero_optimization.reduce_bucket_size=1000000"
        )
    try:
        return path, json.loads(value)
    except ValueError:
        return path, value


def _private(value: Any, path: tuple[str, ...]) -> list[str]:
    """Where the settings are that a measurement must not have."""
    found: list[str] = []
    for name, inner in value.items() if isinstance(value, dict) else ():
        here = (*path, str(name))
        found += [".".join(here)] if secrets.kept_back(str(name), inner) else _private(inner, here)
    return found


def _need_public(path: tuple[str, ...], value: Any) -> None:
    """Raise InputError for a setting that would be left out: on a command line everybody can read it, too."""
    within = value
    for name in reversed(path):
        within = {name: within}
    if _private(within, ()):
        raise InputError(
            f"--set {'.'.join(path)}: it is a monitor, or looks like a secret, and belongs into no measurement",
            hint="Leave it out: what is measured talks to no service.",
        )


def _put(values: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    if value is None:
        _take_out(values, path)
        return
    place = values
    for number, name in enumerate(path[:-1]):
        inner = place.setdefault(name, {})
        if not isinstance(inner, dict):
            raise InputError(f"--set {'.'.join(path)}: {'.'.join(path[: number + 1])} is no section of the ds_config")
        place = inner
    place[path[-1]] = value


def _take_out(values: dict[str, Any], path: tuple[str, ...]) -> None:
    place: Any = values
    for name in path[:-1]:
        place = place.get(name) if isinstance(place, dict) else None
    if isinstance(place, dict):
        place.pop(path[-1], None)


def _without_auto(value: dict[str, Any], path: tuple[str, ...]) -> list[str]:
    """Take every "auto" out, and say where they were; a section that had nothing else goes, too."""
    found: list[str] = []
    for name, inner in list(value.items()):
        here = (*path, name)
        if inner == "auto":
            del value[name]
            found.append(".".join(here))
        elif isinstance(inner, dict):
            inside = _without_auto(inner, here)
            found += inside
            # A scheduler whose numbers were all to be filled in cannot be made.
            if inside and (not inner or name == "scheduler"):
                del value[name]
    return found


def _swap_to(values: dict[str, Any], disk: str | None) -> None:
    if disk is None:
        raise InputError(
            "the ds_config offloads to nvme, and no folder on a disk was named",
            hint="Name one, with room for the optimizer's states: --disk /mnt/nvme/scratch",
        )
    for name in ("offload_optimizer", "offload_param"):
        part = values["zero_optimization"].get(name)
        if isinstance(part, dict) and part.get("device") == "nvme":
            part["nvme_path"] = disk
