"""What a case is: a configuration, what lint says of it, and what DeepSpeed itself does with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

# What DeepSpeed does with what lint calls an error. All are looked at by running the release in the cpu image.
REJECTED = "rejected"  # it ends, with these words
IGNORED = "ignored"  # it runs, and what was asked for does not happen
HARMFUL = "harmful"  # it runs, and does what nobody wants
UNSEEN = "unseen"  # another release, a GPU, or a disk: what would have to be there is said


@dataclass(frozen=True, kw_only=True)
class Case:
    """One configuration that breaks one rule.

    Attributes:
        about: What is known of the run (Context), as lint is told it.
        says: A part of lint's message.
        does: REJECTED, IGNORED, HARMFUL or UNSEEN; empty where lint calls it no error.
        how: How far DeepSpeed has to go: ``parse`` the configuration, ``start`` an engine, train two ``step``s, or
            configure ``activations``.
        seen: A part of DeepSpeed's own message (REJECTED), the name of a look of the driver (IGNORED, HARMFUL), or what
            would have to be there (UNSEEN).
        ranks: How many processes that takes.
    """

    rule: str
    config: Mapping[str, Any]
    says: str
    does: str = ""
    how: str = "parse"
    seen: str = ""
    ranks: int = 1
    severity: str = "error"
    about: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """For pytest."""
        return self.rule


def plain(**more: Any) -> dict[str, Any]:
    """A configuration that trains: fp32, torch's AdamW, no ZeRO."""
    return {"train_micro_batch_size_per_gpu": 1, "optimizer": torch_adam(), **more}


def torch_adam(**more: Any) -> dict[str, Any]:
    """An optimizer that needs no compiled op."""
    return {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True, **more}}


def zero(stage: int, **more: Any) -> dict[str, Any]:
    """A ZeRO section."""
    return {"stage": stage, **more}


def offloaded(device: str = "cpu", **more: Any) -> dict[str, Any]:
    """An offload section."""
    return {"device": device, "pin_memory": False, **more}
