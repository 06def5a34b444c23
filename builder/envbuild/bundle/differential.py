"""The bundle that another one stands on: only what is not the same there has to travel."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from envbuild.bundle import manifest, sums
from envbuild.bundle.manifest import Base, Manifest
from envbuild.bundle.tree import Tree, Unreadable
from envbuild.bundle.words import MANIFEST, MAX_MANIFEST, SUMS
from envbuild.errors import BundleError


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What the receiver has already; of the base only its manifest and its sums are needed here.

    Attributes:
        base: As the new manifest names it.
        files: SHA-256 and size by path, for ``writing.drafting``.
    """

    base: Base
    manifest: Manifest
    files: dict[str, tuple[str, int]]


def read(folder: Path) -> Known:
    """The base in a folder.

    Raises:
        BundleError: There is none, or its manifest and its sums contradict one another.
    """
    with Tree(folder) as tree:
        try:
            name = MANIFEST
            data = tree.read(name, MAX_MANIFEST)
            name = SUMS
            listed = tree.read(name, sums.MAX_BYTES)
        except Unreadable as error:
            raise BundleError(
                f"{folder} is no bundle: {name}: {error}",
                hint=f"Its {MANIFEST} and {SUMS} are needed, and nothing else of it.",
            ) from error
    found, digests = manifest.parse(data, f"{folder}/{MANIFEST}"), sums.parse(listed, f"{folder}/{SUMS}")
    own = hashlib.sha256(data).hexdigest()
    if digests.get(MANIFEST) != own or any(digests.get(file.path) != file.sha256 for file in found.files):
        raise BundleError(f"{folder}: its {MANIFEST} and its {SUMS} contradict one another")
    return Known(
        base=Base(name=found.name, manifest_sha256=own, sums_sha256=hashlib.sha256(listed).hexdigest()),
        manifest=found,
        files={file.path: (file.sha256, file.bytes) for file in found.files},
    )
