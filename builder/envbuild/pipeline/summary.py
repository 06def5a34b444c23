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
    return [_rank(rank) for rank in ranks if isinstance(rank, Mapping)]


def _rank(rank: Mapping[str, Any]) -> str:
    seen = rank.get("report")
    losses = numbers(dig(seen, "losses")) or []
    course = f"loss {losses[0]:.4f} -> {losses[-1]:.4f} in {len(losses)} steps" if losses else "no losses"
    parts = (
        f"rank {rank.get('rank', '?')}",
        f"{dig(seen, 'optimizer', 'class') or '?'} over {dig(seen, 'backend') or '?'}",
        course,
        f"gradient error {_figure(seen, 'gradients', 'relative_error')}",
        f"ratio {_figure(seen, 'gradients', 'ratio')}",
        f"parameter error {_figure(seen, 'parameters', 'relative_error')}",
        f"first step {_figure(seen, 'phase_seconds', 'first step')} s",
    )
    return ", ".join(parts)


def _figure(seen: Any, *keys: str) -> str:
    value = number(dig(seen, *keys))
    return "?" if value is None else f"{value:.3g}"
