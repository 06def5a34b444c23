"""A run of the ZeRO-3 probe in a few lines, for people. It judges nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from envbuild.judge.number import count, number, numbers, show
from envbuild.judge.outcome import dig


def summary(report: Mapping[str, Any]) -> list[str]:
    """The figures that were judged: one line for the run, one for each rank."""
    ranks = report.get("ranks")
    items = [rank for rank in ranks if isinstance(rank, Mapping)] if isinstance(ranks, list) else []
    first = dig(items[0], "report") if items else None
    asked = report.get("arguments")
    parts = [
        f"{len(items)} ranks over {show(dig(first, 'backend'))}",
        f"{show(dig(asked, 'steps'))} steps",
        show(dig(asked, "dtype")),
        show(dig(first, "optimizer", "class")),
        f"{show(number(report.get('seconds')))} s",
    ]
    device = dig(first, "device", "name")
    if device not in (None, "cpu"):
        parts.append(f"on {show(device)}")
    return [", ".join(parts), *(f"rank {show(rank.get('rank'))}: {', '.join(_rank(rank))}" for rank in items)]


def _rank(rank: Mapping[str, Any]) -> Iterator[str]:
    figures = rank.get("report")
    ratio = show(number(dig(figures, "gradients", "ratio")))
    yield f"gradients off by {_tiny(figures, 'gradients')} (norm ratio {ratio})"
    yield f"parameters off by {_tiny(figures, 'parameters')}"
    losses = numbers(dig(figures, "losses"))
    yield f"loss {losses[0]:.4f} to {losses[-1]:.4f}" if losses else "no losses"
    memory = count(dig(figures, "peak_rss_bytes"))
    if memory:
        yield f"peak memory {memory / 2**20:.0f} MiB"


def _tiny(figures: Any, section: str) -> str:
    error = number(dig(figures, section, "relative_error"))
    return "?" if error is None else f"{error:.1e}"
