"""``manifest.json``: what a bundle is, for whom, and every file of it.

A manifest lists every file but those that can only be made after it (``AFTER``): itself, what is generated from it,
the statement about it and the sums of everything. It holds no time of its own making and no path of the machine that
it was made on: the same inputs are the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field, ValidationError, model_validator

from envbuild import store
from envbuild.bundle.sections import (
    Base,
    File,
    Image,
    Key,
    Module,
    Repository,
    ResolvedTarget,
    RpmPackage,
    Rpms,
    Signature,
    Target,
    Wheel,
    Wheels,
)
from envbuild.bundle.words import AFTER, MAX_FILES, PARTS, BundlePath, Instant, Label, Part, Sha256
from envbuild.errors import BundleError
from envbuild.evidence.record import printable
from envbuild.evidence.statement import decode
from envbuild.model import Frozen, Line, Name

__all__ = [
    "SCHEMA", "Base", "File", "Image", "Key", "Manifest", "Module", "Repository", "ResolvedTarget", "RpmPackage",
    "Rpms", "Signature", "Target", "Wheel", "Wheels", "dump", "parse",
]  # fmt: skip

SCHEMA = "envbuild.bundle/1"
# What an installation could take from a bundle: a person is told of each.
_INSTALLED = (".rpm", ".whl")


class Manifest(Frozen):
    """A bundle.

    Attributes:
        name: The row, or what it was called.
        created: The newest of what went into it, or what SOURCE_DATE_EPOCH says.
        envbuild: The version that made it.
        files: Every file of the whole bundle, sorted; in a differential one also those that its base carries.
        carried: Of a differential bundle, the files that it carries itself.
    """

    schema_: Literal["envbuild.bundle/1"] = Field("envbuild.bundle/1", alias="schema")
    name: Label
    created: Instant
    envbuild: Line
    row: Name | None = None
    target_id: Sha256 | None = None
    accelerator: Literal["cpu", "cuda"] | None = None
    target: Target
    parts: Annotated[tuple[Part, ...], Field(min_length=1)]
    files: Annotated[tuple[File, ...], Field(max_length=MAX_FILES)]
    rpms: Rpms | None = None
    wheels: Wheels | None = None
    image: Image | None = None
    base: Base | None = None
    carried: tuple[BundlePath, ...] | None = None

    @model_validator(mode="after")
    def _whole(self) -> Manifest:
        paths = [file.path for file in self.files]
        if paths != sorted(set(paths)):
            raise ValueError("its files are not sorted, or not each once")
        if wrong := sorted(AFTER.intersection(paths)):
            raise ValueError(f"its files name {wrong[0]}, which is made after it")
        _tree(paths)
        if tuple(part for part in PARTS if part in self.parts) != self.parts:
            raise ValueError(f"its parts are not some of {', '.join(PARTS)}, in this order")
        for part, section in (("rpms", self.rpms), ("wheels", self.wheels), ("image", self.image)):
            if (part in self.parts) != (section is not None):
                raise ValueError(f"{part} is not both a part and described")
        known = {file.path: file for file in self.files}
        for path, sha256 in self._named():
            if path not in known:
                raise ValueError(f"it speaks of {path}, which is none of its files")
            if sha256 is not None and known[path].sha256 != sha256:
                raise ValueError(f"it states two sums of {path}")
        spoken = {path for path, _ in self._named()}
        if silent := sorted(path for path in paths if path.endswith(_INSTALLED) and path not in spoken):
            raise ValueError(f"it has {silent[0]}, of which it does not speak")
        if (self.base is None) != (self.carried is None):
            raise ValueError("a differential bundle names both its base and what it carries")
        if not set(self.carried or ()) <= set(paths):
            raise ValueError("it carries what is none of its files")
        return self

    def _named(self) -> Iterator[tuple[str, str | None]]:
        """Every file that a section speaks of, with the sum that it states."""
        if self.rpms is not None:
            yield from ((each.path, each.sha256) for each in self.rpms.packages)
            yield from ((each.path, None) for each in self.rpms.keys)
        if self.wheels is not None:
            yield self.wheels.requirements, None
            yield from ((each.file, each.sha256) for each in self.wheels.packages)
        if self.image is not None:
            yield self.image.path, None
            yield from ((path, None) for path in self.image.evidence)

    def of(self, part: str) -> tuple[File, ...]:
        """The files of one part."""
        return tuple(file for file in self.files if file.part == part)


def _tree(paths: list[str]) -> None:
    """That no file is a folder of another one, and that every medium can tell them apart.

    Raises:
        ValueError: One is.
    """
    plain: dict[str, str] = {}
    for path in paths:
        if (other := plain.setdefault(path.lower(), path)) != path:
            raise ValueError(f"{other} and {path} are one file on a medium without upper and lower case")
    folders = {path[:end] for path in paths for end, letter in enumerate(path) if letter == "/"}
    if clash := sorted(folders.intersection(paths)):
        raise ValueError(f"{clash[0]} is both a file and a folder")


def dump(manifest: Manifest) -> bytes:
    """The bytes of ``manifest.json``: equal manifests are equal bytes."""
    return store.encode_json(manifest.model_dump(mode="json", by_alias=True)).encode()


def parse(data: bytes, place: str) -> Manifest:
    """A manifest out of a bundle, held to what it has to be. Whether its files are so is not looked at.

    Args:
        data: Of a size that has been bounded.
        place: What messages call it.

    Raises:
        BundleError: It is none, or of another version.
    """
    try:
        document = decode(data)
        if isinstance(document, dict) and document.get("schema") != SCHEMA:
            raise ValueError(f"its schema is {str(document.get('schema'))[:60]}, and {SCHEMA} was expected")
        return Manifest.model_validate(document)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where, what = ".".join(map(str, first["loc"]))[:200], first["msg"].removeprefix("Value error, ")
        reason = f"{where}: {what}" if where else what
    except ValueError as error:
        reason = str(error)
    raise BundleError(
        printable(f"{place}: not a manifest of a bundle: {reason}"[:600]),
        hint="It is damaged, or of another version of envbuild: fetch the bundle again.",
    )
