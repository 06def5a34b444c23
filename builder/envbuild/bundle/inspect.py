"""``bundle inspect DIR``: what a bundle says of itself. It is told, not believed: whether it is so says ``verify``."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envbuild.bundle import manifest, sums
from envbuild.bundle import volume as volumes
from envbuild.bundle.manifest import Manifest
from envbuild.bundle.tree import Tree, Unreadable
from envbuild.bundle.volume import Volume
from envbuild.bundle.words import MANIFEST, MAX_MANIFEST, PARTS, PROVENANCE, SIGNATURE, SUMS
from envbuild.errors import BundleError


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspected:
    """What a folder says that it is.

    Attributes:
        manifest: None in a volume that does not carry it.
        volume: Which volume of several it is; None for a whole bundle.
        sums: SHA-256 of its sums: who it is. Volumes of one set have the same, and a differential bundle names that
            of its base.
        files: How many there are, of its parts and of it.
        signed: Whether there is a signature, good or not.
        provenance: Whether there is a signed statement about it, good or not.
    """

    folder: Path
    manifest: Manifest | None
    volume: Volume | None
    sums: str
    files: int
    signed: bool
    provenance: bool

    @property
    def sizes(self) -> dict[str, int]:
        """Bytes of each part; ``carried`` for what a differential bundle carries of them itself."""
        if self.manifest is None:
            return {}
        found: dict[str, int] = {part: sum(file.bytes for file in self.manifest.of(part)) for part in PARTS}
        if self.manifest.carried is not None:
            carried = set(self.manifest.carried)
            found["carried"] = sum(file.bytes for file in self.manifest.files if file.path in carried)
        return {part: size for part, size in found.items() if size or part == "carried"}

    def as_dict(self) -> dict[str, Any]:
        """For ``--json``: the manifest without its list of files, which are counted."""
        said = None
        if self.manifest is not None:
            said = self.manifest.model_dump(mode="json", by_alias=True, exclude={"files", "carried"})
        volume = self.volume
        return {
            "sums_sha256": self.sums,
            "files": self.files,
            "bytes": self.sizes,
            "signed": self.signed,
            "provenance": self.provenance,
            "volume": None if volume is None else {"number": volume.number, "of": volume.of, "files": volume.files},
            "manifest": said,
        }


def inspect(folder: Path) -> Inspected:
    """Read what a bundle, or a volume of one, says.

    Raises:
        BundleError: It is none, or its manifest is none.
    """
    with Tree(folder) as tree:
        try:
            listed = tree.read(SUMS, sums.MAX_BYTES)
        except Unreadable as error:
            raise BundleError(f"{folder} is no bundle: {SUMS}: {error}", hint="Name the folder of a bundle.") from error
        known = sums.parse(listed, f"{folder}/{SUMS}")
        volume = volumes.read(tree)
        return Inspected(
            folder=folder, manifest=_manifest(tree, required=volume is None), volume=volume,
            sums=hashlib.sha256(listed).hexdigest(), files=len(known), signed=_there(tree, SIGNATURE),
            provenance=PROVENANCE in known,
        )  # fmt: skip


def _manifest(tree: Tree, *, required: bool) -> Manifest | None:
    try:
        return manifest.parse(tree.read(MANIFEST, MAX_MANIFEST), f"{tree.folder}/{MANIFEST}")
    except Unreadable as error:
        if error.missing and not required:
            return None
        raise BundleError(f"{tree.folder}: {MANIFEST}: {error}", hint="Fetch the bundle again.") from error


def _there(tree: Tree, path: str) -> bool:
    try:
        tree.read(path, 1 << 20)
    except Unreadable:
        return False
    return True
