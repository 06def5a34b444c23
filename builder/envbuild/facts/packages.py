"""The shape of what distributions call their packages, by release."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, StringConstraints

from envbuild.facts.fact import Fact, Lazy
from envbuild.model import MajorMinor, Word

# All of these reach a shell.
Folder = Annotated[str, StringConstraints(pattern=r"^(/[A-Za-z0-9][A-Za-z0-9._+-]*)+$", max_length=200)]
RepositoryUrl = Annotated[str, StringConstraints(pattern=r"^https?://[A-Za-z0-9._~/:@%+-]+$", max_length=300)]
RepositoryId = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=60)]


class Python(Fact):
    """One interpreter of a release: the packages with headers and venv, and its absolute path.

    Attributes:
        libraries: Folder of its own library, where the loader does not look by itself.
    """

    packages: tuple[Word, ...] = Field(min_length=1)
    program: Folder
    libraries: Folder | None = None


class Repository(Fact):
    """Where a release's packages come from, and the file with the key that they are signed with."""

    baseurl: RepositoryUrl
    gpgkey: Folder


class Listed(Fact):
    """Names that one repository of a release really has."""

    repository: str
    names: tuple[Word, ...]


class Packages(Lazy):
    """One release's packages (see the comments in ``packages.yaml``)."""

    pythons: dict[MajorMinor, Python]
    renamed: dict[Word, Word] = Field(default_factory=dict)
    repositories: dict[RepositoryId, Repository] = Field(default_factory=dict)
    keys: tuple[Word, ...] = ()
    listed: tuple[Listed, ...]

    def names(self) -> frozenset[str]:
        """Every name that is known to exist."""
        return frozenset(name for group in self.listed for name in group.names)
