"""A run of the ZeRO-3 probe in a few lines, for people. It judges nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from envbuild.judge.number import number, numbers
from envbuild.judge.outcome import dig


def summary(report: Mapping[str, Any]) -> list[str]:
    """The figures that were judged, rank by rank; a figure that is not there is shown as ``?``."""
    ranks = report.get("ranks")
    if not isinstance(ranks, list):
        return []
    return [line for rank in ranks if isinstance(rank, Mapping) for line in _rank(rank)]


def _rank(rank: Mapping[str, Any]) -> list[str]:
    seen = rank.get("report")
    first = dig(seen, "passes", "fp32")
    name = f"rank {rank.get('rank', '?')}"
    parts = (
        name,
        f"{dig(first, 'optimizer', 'class') or '?'} over {dig(seen, 'backend') or '?'}",
        _course(first),
        f"gradient error {_figure(first, 'gradients', 'relative_error')}",
        f"ratio {_figure(first, 'gradients', 'ratio')}",
        f"parameter error {_figure(first, 'parameters', 'relative_error')}",
        f"first step {_figure(seen, 'phases', 'first step', 'seconds')} s",
    )
    more = [
        f"import {_figure(seen, 'phases', 'import', 'seconds')} s",
        f"peak memory {_bytes(seen, 'peak_rss_bytes')}",
        f"checkpoint {_bytes(seen, 'checkpoint', 'saved', 'bytes')} saved in "
        f"{_figure(seen, 'checkpoint', 'saved', 'seconds')} s, loaded in "
        f"{_figure(seen, 'checkpoint', 'loaded', 'seconds')} s",
    ]
    if dig(seen, "passes", "bf16") is not None:
        more.append(f"bf16 {_course(dig(seen, 'passes', 'bf16'))}")
    elif dig(seen, "bf16", "supported") is False:
        more.append(f"bf16 not run: {dig(seen, 'bf16', 'reason')} has none")
    if dig(seen, "passes", "nvme") is not None:
        more.append(
            f"on disk {_course(dig(seen, 'passes', 'nvme'))}, {_bytes(seen, 'passes', 'nvme', 'swapped', 'bytes')} "
            f"swapped, {_bytes(seen, 'passes', 'nvme', 'locked_bytes')} locked"
        )
    if dig(seen, "long") is not None:
        more.append(f"{_figure(seen, 'long', 'steps')} steps in {_figure(seen, 'long', 'seconds')} s more")
    return [", ".join(parts), f"{name}, " + ", ".join(more)]


def _course(figures: Any) -> str:
    losses = numbers(dig(figures, "losses")) or []
    return f"loss {losses[0]:.4f} -> {losses[-1]:.4f} in {len(losses)} steps" if losses else "no losses"


def _bytes(seen: Any, *keys: str) -> str:
    value = number(dig(seen, *keys))
    return "?" if value is None else f"{value / 1e6:.1f} MB"


def _figure(seen: Any, *keys: str) -> str:
    value = number(dig(seen, *keys))
    return "?" if value is None else f"{value:.3g}"
