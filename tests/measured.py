"""Measurements made for tests: launches of so many ranks, with what a test wants to say of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from envbuild.profile import files
from envbuild.profile.document import Measurement

IMAGES = {"base": "sha256:" + "a" * 64, "candidate": "sha256:" + "b" * 64}


def key(side: str = "base", **more: Any) -> dict[str, Any]:
    return {
        "image": IMAGES[side], "config": "c" * 64, "model": "tiny", "probe": "1", "world_size": 2, "row": "cpu",
        "hardware": {"cpu": "EPYC", "cpus": 8}, "deepspeed": "0.19.8", "torch": "2.13.0", "accelerator": "cpu", **more,
    }  # fmt: skip


def rank(number: int, seconds: Sequence[float], **more: Any) -> dict[str, Any]:
    steps = {"number": list(range(len(seconds))), "seconds": list(seconds), **more.pop("steps", {})}
    return {"rank": number, "steps": steps, **more}


def launch(seconds: Sequence[float], *, ranks: int = 2, **more: Any) -> dict[str, Any]:
    return {"ranks": [rank(number, seconds) for number in range(ranks)], **more}


def measurement(*launches: dict[str, Any], side: str = "base", **more: Any) -> Measurement:
    body = {"key": key(side), "origin": {"kind": "probe"}, "launches": list(launches), **more}
    return files.measurement({"schema": "envbuild.profile/1", "measurement": body}, "made")


def turns(side: str, medians: Sequence[float], **more: Any) -> list[dict[str, Any]]:
    """Launches in the order A B, B A, A B, ..."""
    found = []
    for number, value in enumerate(medians):
        first = (number % 2 == 0) == (side == "base")
        position = 2 * number + (0 if first else 1)
        found.append(launch([value] * 5, turn={"session": "s1", "position": position}, **more))
    return found
