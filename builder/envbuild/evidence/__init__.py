"""What was seen in one image, kept by the image's identity.

A file of evidence is written only by running something. Its path says what it proves:
``<store>/evidence/<config digest>/<row>-<suite>-<level>.json``, with ``-<GPU>-<driver>`` behind the level where a GPU
trained; an index maps an engine's own name for an image (which is no identity: stores differ) to the identity that was
read from the exported config. Beside a record that was signed lies its DSSE envelope, ``....dsse.json``;
docs/evidence.md describes both. What a comparison with a baseline has shown lies in a folder of its own beside them
(see ``comparison``).
"""

from __future__ import annotations

from envbuild.evidence.binding import Binding, bind, bound
from envbuild.evidence.comparison import (
    MAX_COMPARED,
    PASSED,
    Compared,
    adopt_compared,
    compared,
    compared_beside,
    compared_by,
    compared_paths,
    is_compared,
    read_compared,
    save_compared,
)
from envbuild.evidence.files import (
    adopt,
    any_built,
    best,
    digest_of,
    envelope_of,
    every,
    fresh,
    is_built,
    path_of,
    records,
    remember_built,
    save,
    stored,
)
from envbuild.evidence.keys import PublicKey, SigningKey
from envbuild.evidence.record import Evidence, Host, Identity, read, read_bounded, seen_on
from envbuild.evidence.signing import Refused, State
from envbuild.evidence.trust import Seal, signed_by

__all__ = [
    "MAX_COMPARED",
    "PASSED",
    "Binding",
    "Compared",
    "Evidence",
    "Host",
    "Identity",
    "PublicKey",
    "Refused",
    "Seal",
    "SigningKey",
    "State",
    "adopt",
    "adopt_compared",
    "any_built",
    "best",
    "bind",
    "bound",
    "compared",
    "compared_beside",
    "compared_by",
    "compared_paths",
    "digest_of",
    "envelope_of",
    "every",
    "fresh",
    "is_built",
    "is_compared",
    "path_of",
    "read",
    "read_bounded",
    "read_compared",
    "records",
    "remember_built",
    "save",
    "save_compared",
    "seen_on",
    "signed_by",
    "stored",
]
