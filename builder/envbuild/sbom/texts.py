"""The texts of an image, and what it says of its operating system."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass

from envbuild.errors import EngineError
from envbuild.judge.archive import ImageArchive

RELEASES = ("etc/os-release", "usr/lib/os-release")


class Texts:
    """Files of an image as text; what cannot be read is noted once and read as empty."""

    def __init__(self, image: ImageArchive) -> None:
        self.image = image
        self.problems: list[str] = []

    def paths(self, pattern: re.Pattern[str]) -> list[str]:
        """Files whose whole path the pattern matches, sorted."""
        entries = self.image.entries
        return sorted(path for path in entries if pattern.fullmatch(path) and entries[path].kind == "file")

    def bytes(self, path: str, *, optional: bool = False) -> bytes:
        """A file's content; ``optional``: that it cannot be read takes nothing from the list of parts."""
        try:
            return self.image.data(path) or b""
        except EngineError as error:
            if not optional and error.message not in self.problems:
                self.problems.append(error.message)
            return b""

    def get(self, path: str, *, optional: bool = False) -> str:
        """A file's content as text."""
        return self.bytes(path, optional=optional).decode("utf-8", "replace")


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """The operating system, by os-release(5); empty where the image does not say it."""

    id: str = ""
    version: str = ""
    name: str = ""

    @property
    def label(self) -> str:
        """Such as debian-12, as package URLs name a distribution."""
        return "-".join(filter(None, (self.id, self.version)))


def release(texts: Texts) -> Release:
    """What the image says of its operating system."""
    text = next(filter(None, (texts.get(path, optional=True) for path in RELEASES)), "")
    fields: dict[str, str] = {}
    for line in text.splitlines():
        name, equals, value = line.strip().partition("=")
        if equals and not name.startswith("#"):
            try:
                fields[name] = " ".join(shlex.split(value))
            except ValueError:  # a quote that is not closed
                fields[name] = value
    return Release(id=fields.get("ID", ""), version=fields.get("VERSION_ID", ""), name=fields.get("PRETTY_NAME", ""))
