"""What people are shown of a log: harmless, readable, without secrets; and answers with their captures filled in."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping

from envbuild.collector import secrets
from envbuild.diagnose.types import Evidence

_LONGEST = 400
_FIELD = re.compile(r"\{([a-z][a-z0-9_]*)\}")


def shown(text: str) -> str:
    """One line for people: printable, secrets masked, cut where it is too long."""
    line = "".join(letter if letter.isprintable() else " " for letter in text).strip()
    line = secrets.line(line)
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 3]}..."


def evidence(name: str, line: int, text: str) -> Evidence:
    """A line of a log as evidence."""
    return Evidence(file=name, line=line, text=shown(text))


def fill(template: str, captures: Mapping[str, str], *, shell: bool = False) -> str | None:
    """A text with its {captures}; None when one of them is not there.

    Args:
        shell: The text is a command line: what is filled in is quoted.
    """
    if any(not captures.get(name) for name in _FIELD.findall(template)):
        return None

    def value(found: re.Match[str]) -> str:
        said = shown(captures[found[1]])
        return shlex.quote(said) if shell else said

    return _FIELD.sub(value, template)
