"""Where bills of materials lie, and making one while an image is read for its proof: a push then finds it made."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import TYPE_CHECKING

from envbuild import store
from envbuild.errors import EnvbuildError

if TYPE_CHECKING:
    from envbuild.judge.archive import ImageArchive
    from envbuild.judge.inspection import Beside


def place(cache: Path, digest: str) -> Path:
    """The file of an image's bill, by the digest of its config."""
    from envbuild import sbom

    return cache / "sbom" / f"{digest.removeprefix('sha256:')}-{sbom.revision()}.json"


def kept(path: Path) -> bytes | None:
    """What was made before; None where it is not there, or not whole."""
    with contextlib.suppress(OSError, ValueError, RecursionError):
        data = path.read_bytes()
        if json.loads(data)["bomFormat"] == "CycloneDX":
            return data
    return None


def beside(cache: Path, scratch: Path) -> Beside:
    """Makes the bill of whatever image is inspected.

    Args:
        cache: Where bills lie.
        scratch: A folder with room for a copy of the image's database of packages.
    """
    from envbuild import sbom
    from envbuild.judge.inspection import Beside

    def visit(image: ImageArchive) -> None:
        path = place(cache, image.identity.config_digest)
        # It can be made again at any time: what stands in its way is told by whoever asks for it.
        with contextlib.suppress(EnvbuildError):
            if kept(path) is None:
                store.write_atomic(path, sbom.dump(sbom.contents(image, scratch)))

    return Beside(wanted=sbom.wanted, visit=visit)
