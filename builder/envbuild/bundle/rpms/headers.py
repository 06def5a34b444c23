"""Whether a package's headers are as large as headers are: rpm-rs takes the memory that they say, and where there is
none the whole process ends.

Format: rpm, docs/manual/format.md. Limits: rpm 4.14 and later, lib/header.c (hdrblobVerifyLengths).
"""

from __future__ import annotations

import os
from pathlib import Path

from envbuild.bundle.rpms.transport import opened
from envbuild.errors import BundleError

_LEAD, _INTRO, _ENTRY = 96, 16, 16
_MAGIC = b"\x8e\xad\xe8"
# Entries and bytes of the signatures, and of the header itself.
_SIGNATURES, _HEADER = (32, 64 << 20), (0xFFFF, 256 << 20)


def hold(path: Path) -> None:
    """Look at the sizes that both headers state.

    Raises:
        BundleError: rpm itself would refuse them, or the file is not so large.
        InputError: It cannot be read.
    """
    with opened(path) as file:
        size, at = os.fstat(file.fileno()).st_size, _LEAD
        for entries, data in (_SIGNATURES, _HEADER):
            file.seek(at)
            intro = file.read(_INTRO)
            if len(intro) < _INTRO or not intro.startswith(_MAGIC):
                raise BundleError("it has not the headers of a package")
            count, length = int.from_bytes(intro[8:12], "big"), int.from_bytes(intro[12:16], "big")
            at += _INTRO + count * _ENTRY + length
            if count > entries or length > data or at > size:
                raise BundleError(f"a header of {count} entries and {length} bytes")
            # The header begins at the next multiple of 8.
            at = -(-at // 8) * 8
