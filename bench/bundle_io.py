"""Writing a bundle and verifying it, against `sha256sum` over the same bytes."""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from figures import Ratio

from envbuild.bundle.finishing import Seals, finish
from envbuild.bundle.manifest import File, Manifest
from envbuild.bundle.verify import Wanted, verify
from envbuild.bundle.writing import drafting
from envbuild.pipeline.sizes import format_size

_CREATED = "2026-11-30T00:00:00Z"
# As a bundle is made of: many packages of some hundred KiB, a few wheels, and the image.
_PACKAGES, _PACKAGE, _WHEELS, _WHEEL, _IMAGE = 400, 400 << 10, 4, 48 << 20, 384 << 20
# Half of the speed is twice the time.
_LIMIT = 2.0


def bundle_io(folder: Path, rounds: int) -> list[Ratio]:
    """Both measures. The sources lie in memory as far as it reaches, for the one and for the other."""
    sources = _sources(folder / "sources")
    target = folder / "bundle"
    size = sum(path.stat().st_size for path, _, _ in sources)
    writing: list[tuple[float, float]] = []
    verifying: list[tuple[float, float]] = []
    for _ in range(rounds):
        reference = _sha256sum(path for path, _, _ in sources)
        shutil.rmtree(target, ignore_errors=True)
        writing.append((_seconds(lambda: _write(target, sources)), reference))
        reference = _sha256sum(path for path in sorted(target.rglob("*")) if path.is_file())
        verifying.append((_seconds(lambda: _verify(target)), reference))
    against = f"sha256sum over the same {len(sources)} files, {format_size(size)}, in one process"
    return [
        Ratio(
            name=name, ours=tuple(ours for ours, _ in times), reference=tuple(theirs for _, theirs in times),
            against=against, limit=_LIMIT, note=note,
        )
        for name, times, note in (
            ("writing a bundle", writing, "Read, hashed, written, and on the disk (fsync of every file)."),
            ("verifying a bundle", verifying, "Every file and every list; without a signature, which is one file's."),
        )
    ]  # fmt: skip


def _sources(folder: Path) -> list[tuple[Path, str, str]]:
    """Files, their paths in the bundle, and their sums."""
    # Not called .rpm and .whl: a manifest speaks of every such file.
    wanted = {f"rpms/Packages/p{number:03}-1-1.x86_64.bin": _PACKAGE for number in range(_PACKAGES)}
    wanted |= {f"wheels/w{number}-1-py3-none-any.bin": _WHEEL for number in range(_WHEELS)}
    wanted["images/image.oci.tar"] = _IMAGE
    # No two are the same, and one generator of noise is enough for all.
    noise = random.Random(7).randbytes(_PACKAGE)
    found = []
    for path, size in wanted.items():
        source = folder / path.replace("/", "-")
        source.parent.mkdir(parents=True, exist_ok=True)
        running = hashlib.sha256()
        with source.open("wb") as file:
            for count in range(0, size, _PACKAGE):
                piece = f"{path} {count}".encode().ljust(64) + noise[64 : min(_PACKAGE, size - count)]
                file.write(piece)
                running.update(piece)
            file.flush()
            os.fsync(file.fileno())
        found.append((source, path, running.hexdigest()))
    return found


def _write(target: Path, sources: list[tuple[Path, str, str]]) -> None:
    def describe(files: tuple[File, ...], carried: tuple[str, ...]) -> Manifest:
        return Manifest.model_validate({
            "name": "bench", "created": _CREATED, "envbuild": "0", "parts": ["doctor"], "files": files,
            "target": {"distro": "rhel", "major": 8, "arch": "x86_64"},
        })  # fmt: skip

    with drafting(target, _CREATED) as draft:
        for source, path, sha256 in sources:
            draft.copy(path, source, sha256, "doctor")
        finish(draft, describe, Seals())


def _verify(target: Path) -> None:
    found = verify(target, Wanted())
    wrong = [each.message for each in found.findings if each.rule != "bundle.signature"]
    if wrong:
        raise AssertionError(wrong)


def _sha256sum(paths: Iterable[Path]) -> float:
    line = ["sha256sum", *map(str, paths)]
    return _seconds(lambda: subprocess.run(line, check=True, stdout=subprocess.DEVNULL))


def _seconds(work: Callable[[], object]) -> float:
    began = time.monotonic()
    work()
    return time.monotonic() - began
