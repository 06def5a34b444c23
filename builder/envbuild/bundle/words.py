"""The words that a bundle's manifest is made of, and the names of the files that every bundle has.

Every text that can reach a shell script or a file system is held to a pattern here, once.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

MANIFEST, CONF, PROVENANCE = "manifest.json", "bundle.conf", "provenance.dsse.json"
SUMS, SIGNATURE, SBOM, DOCTOR = "SHA256SUMS", "SHA256SUMS.asc", "sbom.cdx.json", "doctor.pyz"
# The public key that signs the sums. It proves nothing by itself: its fingerprint is told on another way.
KEY = "keys/bundle.asc"
# In no manifest's list of files; the sums have them all but themselves and their signature.
AFTER = frozenset({MANIFEST, CONF, PROVENANCE, SUMS, SIGNATURE})
PREFIX = "/opt/envbuild"
MAX_FILES = 100_000

# What is a path on every medium that a bundle may travel on, VFAT among them, and one word for every shell: no part
# begins with a dot or a dash or ends with a dot, and none has two dots in a row.
_PART = r"[A-Za-z0-9_](\.?[A-Za-z0-9_+~^!@=,-])*"
PATH = rf"^{_PART}(/{_PART})*$"
BundlePath = Annotated[str, StringConstraints(pattern=PATH, max_length=400)]
Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
Hex = Annotated[str, StringConstraints(pattern=r"^[0-9A-F]{16,64}$")]
# A package, an architecture, an image's name: one word of printable ASCII that no program takes for an option.
Token = Annotated[str, StringConstraints(pattern=r"^[!-,.-~][!-~]*$", max_length=300)]
# One line of printable ASCII, as ``read`` of a shell gives it back.
Ascii = Annotated[str, StringConstraints(pattern=r"^[!-~]([ -~]*[!-~])?$", max_length=400)]
# What a person is to read: printable, and no more than a paragraph.
Remark = Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f\x7f-\x9f\u2028\u2029]*$", max_length=4000)]
ModuleName = Annotated[
    str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*$", max_length=100)
]
Label = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=60)]
Instant = Annotated[str, StringConstraints(pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z$")]
Bytes = Annotated[int, Field(ge=0, lt=1 << 63, strict=True)]
Part = Literal["rpms", "wheels", "image", "doctor"]
PARTS: tuple[Part, ...] = ("rpms", "wheels", "image", "doctor")
MAX_MANIFEST = 64 << 20
# What systems leave on media that they mount: nothing of it is ever read.
DROPPINGS = frozenset({"lost+found", "System Volume Information", "$RECYCLE.BIN", ".Trashes", ".DS_Store", "TRANS.TBL"})
# In a volume, beside files of the bundle: what it is, the pieces of files that were cut, and where these lie.
VOLUME, CHUNKS, CHUNK_FOLDER = "VOLUME", "CHUNKS", "chunks"
# Files of the bundle that every volume has: what puts it together, what says how, and the key of its signature.
EVERYWHERE = frozenset({"assemble.sh", "README.txt", KEY})
