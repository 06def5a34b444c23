"""A wheel as a file (PyPA, "Binary distribution format")."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import re
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

# The first moment that a zip file can name; without it, every wheel would have another hash.
_MOMENT = (1980, 1, 1, 0, 0, 0)
_BLOCK = 1 << 20
_PYTHON = re.compile(rb"#!.*/bin/python[0-9.]*(?=[\r\n ])")


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One file of it: its name there, where its bytes are, and whether an installer has to set its interpreter."""

    name: str
    path: Path
    script: bool = False


def pack(path: Path, files: Sequence[Member], record: str) -> None:
    """Write a wheel. The same files give the same bytes, whenever and wherever they are packed with the same zlib.

    Args:
        record: The name of its RECORD, which is made here.
    """
    rows: list[tuple[str, str, int]] = []
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as packed:
        # Metadata last, as the format recommends.
        for each in sorted(files, key=lambda file: (".dist-info/" in file.name, file.name)):
            entry = _entry(each.name, 0o755 if each.script else 0o644)
            running, size = hashlib.sha256(), 0
            with packed.open(entry, "w", force_zip64=True) as out:
                for block in _blocks(each.path, script=each.script):
                    out.write(block)
                    running.update(block)
                    size += len(block)
            rows.append((each.name, f"sha256={_short(running.digest())}", size))
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerows([*rows, (record, "", "")])
        packed.writestr(_entry(record, 0o644), text.getvalue())


def _entry(name: str, mode: int) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name, _MOMENT)
    entry.compress_type = zipfile.ZIP_DEFLATED
    entry.external_attr = (0o100000 | mode) << 16
    entry.create_system = 3  # Unix
    return entry


def _blocks(path: Path, *, script: bool) -> Iterator[bytes]:
    with path.open("rb") as file:
        if script:
            yield _PYTHON.sub(b"#!python", file.readline(), count=1)
        while block := file.read(_BLOCK):
            yield block


def _short(digest: bytes) -> str:
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
