"""Looking at the files of an image as they go by: digests, secrets, native code.

An image is read once, as a stream, and no copy of it is made: native code is put into one scratch file at a time,
read there, and forgotten.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from envbuild.judge import secrets
from envbuild.judge.layers import Entry, Readable
from envbuild.plan import PREFIX

_VENV = f"{PREFIX.strip('/')}/"
_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class FileFacts:
    """What was seen of one file.

    Attributes:
        sha256: Digest of its content, for files of the Python environment.
    """

    sha256: bytes | None = None


def facts_of(entry: Entry | None) -> FileFacts | None:
    """What was seen of a file, or None when nobody looked."""
    seen = entry.seen if entry is not None else None
    return seen if isinstance(seen, FileFacts) else None


class Examiner:
    """The visitor of an archive. It sees every file of every layer, also those that a later one hides."""

    def __init__(self) -> None:
        self.leaks: list[secrets.Leak] = []

    def __call__(self, path: str, size: int, content: Readable) -> FileFacts | None:
        """Look at one file."""
        if path.startswith(_VENV):
            digest = hashlib.sha256()
            while chunk := content.read(_CHUNK):
                digest.update(chunk)
            return FileFacts(sha256=digest.digest())
        if secrets.looks_secret(path, size):
            self.leaks += secrets.in_file(path, content.read(size))
        return None
