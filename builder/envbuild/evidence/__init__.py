"""What was seen in one image, kept by the image's identity.

A file of evidence is written only by running something. Its path says what it proves:
``<store>/evidence/<config digest>/<row>-<suite>-<level>.json``, with ``-<GPU>-<driver>`` behind the level where a GPU
trained; an index maps an engine's own name for an image (which is no identity: stores differ) to the identity that was
read from the exported config.
"""

from __future__ import annotations

from envbuild.evidence.files import best, digest_of, every, is_built, path_of, records, remember_built, save
from envbuild.evidence.record import Evidence, Host, Identity, read, seen_on

__all__ = [
    "Evidence",
    "Host",
    "Identity",
    "best",
    "digest_of",
    "every",
    "is_built",
    "path_of",
    "read",
    "records",
    "remember_built",
    "save",
    "seen_on",
]
