"""What people are shown of a log: harmless, readable, without secrets; and answers with their captures filled in."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping

from envbuild.diagnose.types import Evidence

_LONGEST = 400
# Tokens that the big services issue, and what stands behind the names that people give to secrets.
_SECRETS = [
    re.compile(r"(?P<kept>\b[a-z][a-z0-9+.-]*://)[^\s/@:]+:[^\s/@]+(?=@)", re.IGNORECASE),
    re.compile(
        r"(?P<kept>)\b(?:hf_[A-Za-z0-9]{20,}|gh[pousr]_[A-Za-z0-9]{20,}|glpat-[\w-]{16,}|sk-[A-Za-z0-9_-]{20,}|AKIA[A-Z0-9]{16}|xox[abprs]-[\w-]{10,})"
    ),
    re.compile(
        r"(?P<kept>\b[\w-]*(?:token|password|passwd|secret|api[_-]?key|access[_-]?key)[\w-]*['\"]?\s?[=:]\s?['\"]?)"
        r"(?!None\b|null\b|\d{1,4}\b|\W)[^\s'\",;&]{6,}",
        re.IGNORECASE,
    ),
    re.compile(r"(?P<kept>\b(?:Bearer|Basic) )[A-Za-z0-9._~+/=-]{12,}"),
]
_FIELD = re.compile(r"\{([a-z][a-z0-9_]*)\}")


def shown(text: str) -> str:
    """One line for people: printable, secrets masked, cut where it is too long."""
    line = "".join(letter if letter.isprintable() else " " for letter in text).strip()
    for each in _SECRETS:
        line = each.sub(lambda found: f"{found['kept']}***", line)
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
