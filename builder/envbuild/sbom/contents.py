"""What is in an image: its export read once, and everything that says of itself what it is."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from envbuild import rpmdb
from envbuild.judge import archive
from envbuild.judge.archive import ImageArchive
from envbuild.judge.files import Examiner, FileFacts
from envbuild.judge.layers import Readable
from envbuild.plan import LABEL_ENV, LABEL_TARGET
from envbuild.sbom import debian, native, python, rpm
from envbuild.sbom.part import Contents, Part
from envbuild.sbom.texts import RELEASES, Release, Texts, release


def wanted(path: str) -> bool:
    """Whether the bytes of a file are needed."""
    return path in RELEASES or debian.wanted(path) or python.wanted(path)


def read(stream: BinaryIO, scratch: Path, progress: Callable[[int], None] | None = None) -> Contents:
    """Read an exported image, once.

    Args:
        stream: What ``docker save`` gives.
        scratch: A folder with room for the image's database of packages.
        progress: Called now and then with the number of bytes read so far.

    Raises:
        EngineError: The export cannot be read.
    """
    with contextlib.closing(Examiner(scratch)) as examiner:

        def visit(path: str, size: int, content: Readable) -> FileFacts | None:
            # Of a whole image only these: hashing and disassembling the rest is the judge's business.
            return examiner(path, size, content) if rpmdb.wanted(path) or native.wanted(path) else None

        image = archive.read(stream, wanted, progress, visit=visit)
        return contents(image, scratch)


def contents(image: ImageArchive, scratch: Path) -> Contents:
    """The parts of an image that was read with ``wanted``, while its examiner is open."""
    texts = Texts(image)
    system = release(texts)
    packages = python.packages(texts)
    ops = native.parts(texts, {each.folder: each.version for each in packages if each.key == "deepspeed"})
    brought = {f"{site}/deepspeed": tuple(op.ref for op in found) for site, found in ops.items()}
    parts = [
        *_system(system),
        *debian.parts(texts, system),
        *rpm.parts(texts, system, scratch),
        *python.parts(texts, packages, brought),
        *(op for found in ops.values() for op in found),
    ]
    labels = image.labels
    created = image.config.get("created")
    return Contents(
        digest=image.identity.config_digest,
        name=labels.get(LABEL_ENV) or "image",
        created=created if isinstance(created, str) else "",
        properties=tuple(_properties(image, labels.get(LABEL_TARGET, ""), parts)),
        # A database that names a package twice has it once.
        parts=tuple(part for _, part in sorted({part.ref: part for part in parts}.items())),
        problems=tuple(dict.fromkeys(texts.problems)),
    )


def _system(system: Release) -> list[Part]:
    if not system.id:
        return []
    return [Part(ref=f"os:{system.label}", kind="operating-system", name=system.id, version=system.version,
                 description=system.name)]  # fmt: skip


def _properties(image: ImageArchive, target: str, parts: list[Part]) -> list[tuple[str, str]]:
    said = [
        ("image:config", image.identity.config_digest),
        ("image:platform", f"{image.config.get('os', '')}/{image.config.get('architecture', '')}"),
        *(("image:layer", diff_id) for diff_id in image.identity.diff_ids),
    ]
    if target:
        said.append(("target", target))
    return [*said, *sorted({pair for part in parts for pair in part.properties if pair[0] == native.COMPILER})]
