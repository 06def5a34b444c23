"""What the operating system's packages say of themselves, by whichever database an image has: dpkg's or RPM's."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from envbuild.judge.archive import ImageArchive


@dataclass(frozen=True, slots=True, kw_only=True)
class Stated:
    """One file or link as its package brought it.

    Attributes:
        path: In the merged filesystem, without a leading slash.
        package: Whose it is.
        kind: A regular file or a symbolic link.
        algorithm: Of the digest, as hashlib calls it.
        digest: Of the content; empty where it is not to be compared.
        link: Where the link points; empty for a file.
        mode: Permission bits; None where they are not stated.
        needed: It is told when it is missing: what an image leaves out on purpose is not.
    """

    path: str
    package: str
    kind: Literal["file", "symlink"] = "file"
    algorithm: str = "md5"
    digest: bytes = b""
    link: str = ""
    mode: int | None = None
    needed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """An installed package's upstream version, and the database that says so."""

    value: str
    place: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Installed:
    """What one or more databases say.

    Attributes:
        versions: By package name.
        files: Every file that can be compared.
        owned: Every path that belongs to a package.
        problems: What could not be read.
    """

    versions: dict[str, Version] = field(default_factory=dict)
    files: tuple[Stated, ...] = ()
    owned: frozenset[str] = frozenset()
    problems: tuple[str, ...] = ()


def joined(parts: Iterable[Installed]) -> Installed:
    """All of them as one; of a package that two databases name the first one counts."""
    versions: dict[str, Version] = {}
    files: list[Stated] = []
    owned: set[str] = set()
    problems: list[str] = []
    for part in parts:
        versions = {**part.versions, **versions}
        files += part.files
        owned |= part.owned
        problems += part.problems
    return Installed(versions=versions, files=tuple(files), owned=frozenset(owned), problems=tuple(problems))


class Places:
    """Real places of the paths that packages state: since /lib became a part of /usr they may differ."""

    def __init__(self, image: ImageArchive) -> None:
        self._image = image
        self._folders: dict[str, str | None] = {}

    def real(self, path: str) -> str:
        """A path with the links in its folders followed, and one at its end not."""
        folder, _, name = path.strip("/").rpartition("/")
        if folder not in self._folders:
            self._folders[folder] = self._image.resolve(folder)
        real = self._folders[folder]
        return f"{folder if real is None else real}/{name}".lstrip("/")
