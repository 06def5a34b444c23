"""The fields of a config.json, each held to what it may be; everything that is wrong is told at once."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from envbuild.errors import InputError

# The largest value of any size that is read here; the widest published vocabulary has less than a million entries.
_MOST = 100_000_000
_MISSING = object()


class Fields:
    """A configuration that is being read.

    A field that is missing or senseless reads as 1, and is told by ``check``.
    """

    def __init__(self, config: Mapping[str, Any], place: str) -> None:
        self._config = config
        self._place = place
        self._missing: list[str] = []
        self._wrong: list[str] = []

    def has(self, name: str) -> bool:
        """Whether a field is there and not null."""
        return self._config.get(name) is not None

    def size(self, *names: str, default: int | None = None, least: int = 1) -> int:
        """A whole number, under the first of its names that is there.

        Args:
            default: What it is where none is there; None where it has to be.
        """
        name = next((each for each in names if self.has(each)), None)
        if name is None:
            if default is None:
                self._missing.append(" or ".join(names))
                return 1
            return default
        value = self._config[name]
        if isinstance(value, bool) or not isinstance(value, int):
            self._wrong.append(f"{name} is {_told(value)}, and must be a whole number")
            return 1
        if not least <= value <= _MOST:
            self._wrong.append(f"{name} is {_told(value)}, and must be {least} to {_MOST:,}")
            return 1
        return value

    def flag(self, *names: str, default: bool) -> bool:
        """true or false."""
        name = next((each for each in names if self.has(each)), None)
        if name is None:
            return default
        value = self._config[name]
        if not isinstance(value, bool):
            self._wrong.append(f"{name} is {_told(value)}, and must be true or false")
            return default
        return value

    def word(self, name: str, default: str = "") -> str:
        """A text."""
        value = self._config.get(name)
        if value is None:
            return default
        if not isinstance(value, str):
            self._wrong.append(f"{name} is {_told(value)}, and must be a text")
            return default
        return value

    def numbers(self, name: str) -> tuple[int, ...]:
        """A list of whole numbers; empty where it is missing."""
        value = self._config.get(name)
        if value is None:
            return ()
        if not isinstance(value, list) or any(isinstance(each, bool) or not isinstance(each, int) for each in value):
            self._wrong.append(f"{name} is {_told(value)}, and must be a list of whole numbers")
            return ()
        return tuple(value)

    def refuse(self, problem: str) -> None:
        """Tell a problem of fields that do not go together."""
        self._wrong.append(problem)

    def divided(self, value: int, by: int, what: str) -> int:
        """A quotient that must have no remainder."""
        if value % by and not self._missing and not self._wrong:
            self.refuse(f"{what}: {value:,} is no multiple of {by:,}")
        return max(1, value // by)

    def check(self) -> None:
        """Tell what is wrong.

        Raises:
            InputError: Something is.
        """
        lines = [f"{self._place}: {problem}" for problem in dict.fromkeys(self._wrong)]
        if self._missing:
            missing = dict.fromkeys(self._missing)
            lines.append(f"{self._place}: it does not say {', '.join(missing)}")
        if not lines:
            return
        close = [self._close(name) for name in dict.fromkeys(self._missing)]
        near = next((word for word in close if word), None)
        hint = f"{near[0]!r} is there: did you mean {near[1]}?" if near else "give the config.json of the model itself"
        raise InputError("\n".join(lines), hint=hint)

    def _close(self, missing: str) -> tuple[str, str] | None:
        wanted = missing.split(" or ")
        for name in wanted:
            match = difflib.get_close_matches(
                name, [str(key)[:60] for key in list(self._config)[:500]], n=1, cutoff=0.8
            )
            if match:
                return match[0], name
        return None


def _told(value: Any) -> str:
    """A value as it may be shown: short, and in one line."""
    text = "null" if value is None else str(value) if isinstance(value, (int, float)) else repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
