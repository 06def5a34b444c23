"""How a probe's container ended, and the document it printed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from envbuild.judge.number import plain

TAIL_LINES = 15
_MAX_DOCUMENT = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A container that ended, by itself or not.

    Attributes:
        exit_code: As the engine reports it: 128 + n for signal n of its first process, 127 for no such program.
        oom_killed: The engine saw the kernel kill a process of it for memory.
        timed_out: It was killed because its time was up.
        seconds: From start to end.
        shm_bytes: Size of its /dev/shm; None where nobody knows.
    """

    exit_code: int
    stdout: str
    stderr: str
    oom_killed: bool
    timed_out: bool
    seconds: float
    shm_bytes: int | None = None

    @property
    def last_lines(self) -> str:
        """The end of what it printed: stderr, or stdout where stderr is silent."""
        text = self.stderr.strip() or self.stdout.strip()
        lines = [plain(line[:500]) for line in text.splitlines()[-TAIL_LINES:]]
        return "\n".join(lines)


def document(outcome: Outcome, schema: str) -> dict[str, Any] | None:
    """The probe's document, or None where there is none; other lines on stdout (an entrypoint's banner) do not harm."""
    candidates = [line for line in outcome.stdout.splitlines() if line.lstrip().startswith("{")]
    for text in reversed(candidates):
        if len(text) > _MAX_DOCUMENT:
            continue
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict) and value.get("schema") == schema:
            return value
    return None


def dig(value: Any, *keys: str) -> Any:
    """The value at a path of keys in decoded JSON; None where the path ends early."""
    for key in keys:
        if not isinstance(value, Mapping):
            return None
        value = value.get(key)
    return value
