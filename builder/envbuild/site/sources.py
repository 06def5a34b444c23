"""Where a setting was written, so that a complaint about it can say so."""

from __future__ import annotations

import difflib
import os
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ValidationError

from envbuild.errors import InputError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # type: ignore[import-not-found, unused-ignore]


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """One value, the place it was written at, and the folder that its relative paths start from."""

    value: object
    place: str
    folder: Path


class Problems:
    """Everything that is wrong, in the order it was found."""

    def __init__(self) -> None:
        self._lines: list[str] = []

    def __bool__(self) -> bool:
        return bool(self._lines)

    def __str__(self) -> str:
        return "\n".join(self._lines)

    def add(self, place: str, message: str) -> None:
        """Note ``message`` about ``place``."""
        self._lines.append(f"{place}: {message}")

    def add_validation(self, error: ValidationError, section: str, given: Mapping[str, Given]) -> None:
        """Note each of pydantic's complaints about a section, with the place of its key.

        Values are not repeated: they may be secret.
        """
        for problem in error.errors(include_url=False, include_context=False, include_input=False):
            key, *rest = (*map(str, problem["loc"]), "")
            item = given.get(key)
            path = ".".join(part for part in (section, key, *rest) if part)
            message = problem["msg"].removeprefix("Value error, ")
            self.add(item.place if item else section, f"{path}: {message[:1].lower()}{message[1:]}")


def from_file(path: Path, sections: Mapping[str, type[BaseModel]], problems: Problems) -> dict[str, dict[str, Given]]:
    """The known keys of a TOML file by section; unknown ones are noted in ``problems``.

    Raises:
        InputError: The file is not TOML, or cannot be read.
    """
    try:
        text = path.read_bytes().decode()
        document = tomllib.loads(text)
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not valid TOML: {error.reason} at byte {error.start}") from error
    except tomllib.TOMLDecodeError as error:
        said = re.search(r"\s*\(at line (\d+), column (\d+)\)$", str(error))
        where = f"{path}:{said[1]}:{said[2]}" if said else f"{path}:{text.count(chr(10)) + 1}:1"
        reason = str(error)[: said.start()] if said else re.sub(r"\s*\(at end of document\)$", "", str(error))
        raise InputError(f"{where}: not valid TOML: {reason}") from error
    except RecursionError as error:
        raise InputError(f"{path}: not valid TOML: nested too deeply") from error
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error

    found: dict[str, dict[str, Given]] = {}
    for section, table in document.items():
        if section not in sections:
            problems.add(_place(path, text, section, None), f"{section}: unknown{suggestion(section, sections)}")
            continue
        if not isinstance(table, dict):
            problems.add(_place(path, text, section, None), f"{section}: has to be a section: [{section}]")
            continue
        values = found.setdefault(section, {})
        for key, value in table.items():
            place = _place(path, text, section, key)
            known = sections[section].model_fields
            if key not in known:
                problems.add(place, f"{section}.{key}: unknown key{suggestion(key, known)}")
                continue
            values[key] = Given(value=value, place=place, folder=path.parent)
    return found


def suggestion(word: str, known: Iterable[str]) -> str:
    """``; did you mean "..."?`` where one of ``known`` is close, else what there is."""
    names = list(known)
    close = difflib.get_close_matches(word, names, n=1, cutoff=0.6)
    return f'; did you mean "{close[0]}"?' if close else f"; there is {', '.join(names)}"


def absolute(value: object, folder: Path) -> object:
    """A path made absolute from ``folder`` (``~`` is the user's home); URLs, PEM texts and other types as they are."""
    if not isinstance(value, str | Path) or "://" in str(value) or "-----BEGIN" in str(value):
        return value
    return os.path.normpath(folder.absolute() / Path(value).expanduser())


def _place(path: Path, text: str, section: str, key: str | None) -> str:
    """``FILE:LINE:COLUMN`` of a key; TOML parsers keep no places, so this looks for the line that sets it."""
    header = re.compile(rf"\s*\[\s*[\"']?{re.escape(section)}[\"']?\s*[\].]")
    heading = re.compile(r"\s*\[")
    setting = re.compile(rf"\s*[\"']?{re.escape(key)}[\"']?\s*[=.]") if key else None
    dotted = re.compile(rf"\s*{re.escape(section)}\s*" + (rf"[.=].*\b{re.escape(key)}\b" if key else r"[.=]"))
    best: tuple[int, str] | None = None
    inside = top = False
    for number, line in enumerate(text.splitlines(), 1):
        if heading.match(line):
            inside, top = bool(header.match(line)), True
            if inside and (setting is None or best is None):
                best = (number, line)
                if setting is None:
                    break
            # [base.mirrors] sets the key "mirrors" of "base".
            if inside and key and re.match(rf"\s*\[\s*{re.escape(section)}\s*\.\s*[\"']?{re.escape(key)}\b", line):
                best = (number, line)
                break
        elif (inside and setting and setting.match(line)) or (not top and dotted.match(line)):
            best = (number, line)
            break
    if best is None:
        return str(path)
    return f"{path}:{best[0]}:{len(best[1]) - len(best[1].lstrip()) + 1}"
