"""The signatures of a project, read once, and the literals that lead to them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from envbuild import project
from envbuild.diagnose import derive
from envbuild.diagnose.search import Find, finder
from envbuild.diagnose.signature import QUOTES, Pattern, Signature
from envbuild.errors import InputError

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
# What a log without a known failure is searched for, to show its most telling lines.
TELLING = (
    "Traceback (most recent call last)", "error:", "Error:", "fatal error", "fatal:", "FATAL", "Segmentation fault",
    "core dumped", "SIGSEGV", "SIGKILL", "SIGABRT", "Killed", "Aborted", "panic:", "Exception:",
)  # fmt: skip


@dataclass(frozen=True)
class Library:
    """All signatures, by kind, and what to search for."""

    signatures: tuple[Signature, ...]

    @cached_property
    def by_kind(self) -> dict[str, Signature]:
        """Signatures by their kind."""
        return {signature.kind: signature for signature in self.signatures}

    @cached_property
    def anchors(self) -> dict[bytes, tuple[tuple[Signature, Pattern], ...]]:
        """Literal -> the patterns that it leads to. Those with quotes have forms as logs change them."""
        made: dict[bytes, dict[int, tuple[Signature, Pattern]]] = {}
        for signature in self.signatures:
            for pattern in signature.patterns:
                for anchor in pattern.anchors:
                    for form in forms(anchor):
                        made.setdefault(form, {})[id(pattern)] = (signature, pattern)
        return {literal: tuple(each.values()) for literal, each in made.items()}

    @cached_property
    def literals(self) -> tuple[bytes, ...]:
        """Everything that is searched for: anchors, literals of ``until``, and what is telling."""
        untils = {
            literal.encode()
            for signature in self.signatures
            for pattern in signature.patterns
            for literal in pattern.until
        }
        return tuple(sorted({*self.anchors, *untils, *(each.encode() for each in TELLING)}))

    @cached_property
    def untils(self) -> frozenset[bytes]:
        """The literals of ``until``."""
        return frozenset(
            literal.encode() for each in self.signatures for pattern in each.patterns for literal in pattern.until
        )

    @cached_property
    def find(self) -> Find:
        """The search for all literals."""
        return finder(self.literals)


def forms(anchor: str) -> set[bytes]:
    """An anchor as it may stand in a log: with other quotes, and escaped as in JSON or a repr."""
    plain = {anchor}
    if any(letter in QUOTES for letter in anchor):
        for letter in "'\"`":
            plain.add("".join(letter if each in QUOTES else each for each in anchor))
        opening = True
        typographic = []
        for each in anchor:
            if each in QUOTES:
                typographic.append("\u2018" if opening else "\u2019")
                opening = not opening
            else:
                typographic.append(each)
        plain.add("".join(typographic))
        plain.add("".join("\u2019" if each in QUOTES else each for each in anchor))
    escaped = {each.replace("\\", "\\\\").replace('"', '\\"') for each in plain}
    escaped |= {each.replace("'", "\\'") for each in plain}
    return {each.encode() for each in plain | escaped}


def load(folders: Iterable[Path] = ()) -> Library:
    """The signatures of all folders; of two of one kind the first folder's.

    Raises:
        InputError: A file is no YAML, or says what a signature cannot say; it names file, entry and field.
    """
    return _load(tuple(folders) or (project.own_root() / "signatures",))


@cache
def _load(folders: tuple[Path, ...]) -> Library:
    found: dict[str, Signature] = {}
    for folder in folders:
        own: dict[str, str] = {}
        for path in sorted(folder.glob("*.yaml")):
            for signature in read(path):
                if signature.kind in own:
                    raise InputError(
                        f"{path}: {signature.kind} is in {own[signature.kind]} too",
                        hint="Make one entry of both: an entry may have several patterns.",
                    )
                own[signature.kind] = path.name
                found.setdefault(signature.kind, signature)
    return Library(tuple(found.values()))


def read(path: Path) -> list[Signature]:
    """The entries of one file.

    Raises:
        InputError: It is no YAML, or no list of signatures.
    """
    try:
        text = path.read_bytes().decode("utf-8")
        document = yaml.load(text, Loader=_Loader)
    except (OSError, UnicodeDecodeError, yaml.YAMLError, RecursionError) as error:
        raise InputError(f"{path}: {' '.join(str(error).split())}") from error
    if document is None:
        return []
    if not isinstance(document, list):
        raise InputError(f"{path}: must be a list of signatures", hint="docs/diagnose.md shows an entry.")
    made = []
    for number, entry in enumerate(document, 1):
        try:
            signature = Signature.model_validate(entry)
        except ValidationError as error:
            problems = error.errors(include_url=False, include_context=False, include_input=False)
            place = _place(path, text, number, entry)
            raise InputError(
                "\n".join(f"{place}: {'.'.join(map(str, each['loc'])) or 'entry'}: {each['msg']}" for each in problems)
            ) from error
        except RecursionError as error:
            raise InputError(f"{_place(path, text, number, entry)}: is nested too deeply") from error
        unknown = [name for name in signature.derive if name not in derive.FUNCTIONS]
        if unknown:
            raise InputError(
                f"{_place(path, text, number, entry)}: derive: no function {', '.join(unknown)}",
                hint=f"There are: {', '.join(derive.FUNCTIONS)}.",
            )
        made.append(signature)
    return made


def _place(path: Path, text: str, number: int, entry: object) -> str:
    """Where an entry of a file stands, in words."""
    kind = entry.get("kind") if isinstance(entry, dict) else None
    root: Any = yaml.compose(text, Loader=_Loader)
    line = root.value[number - 1].start_mark.line + 1
    return f"{path}:{line}: entry {number}" + (f" ({kind})" if isinstance(kind, str) else "")
