"""The last files of a bundle: its manifest, what the scripts read of it, the statement about it, the sums, their
signature."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from envbuild.bundle import conf, manifest, provenance, sums
from envbuild.bundle.manifest import File, Manifest
from envbuild.bundle.signing import Signer
from envbuild.bundle.words import CONF, KEY, MANIFEST, PROVENANCE, SIGNATURE, SUMS
from envbuild.bundle.writing import Draft
from envbuild.evidence import SigningKey

# What a manifest says of a bundle with these files, of which it carries those; the latter for a differential one.
Describe = Callable[[tuple[File, ...], tuple[str, ...]], Manifest]


@dataclass(frozen=True, slots=True, kw_only=True)
class Seals:
    """Who vouches for a bundle.

    Attributes:
        openpgp: Signs the sums, for the scripts; None: nobody does, and install.sh refuses the bundle.
        dsse: Signs the provenance; None: there is none.
    """

    openpgp: Signer | None = None
    dsse: SigningKey | None = None


def finish(draft: Draft, describe: Describe, seals: Seals) -> Manifest:
    """Write them, and nothing after them.

    Raises:
        BundleError: Something that was written is not what it should be, or gpg cannot sign.
        EngineError: The disk.
    """
    if seals.openpgp is not None:
        draft.write(KEY, seals.openpgp.key.public)
    draft.settle()
    files = tuple(file for _, file in sorted(draft.files.items()))
    made = describe(files, draft.carried)
    data = manifest.dump(made)
    draft.write(MANIFEST, data)
    draft.write(CONF, conf.text(made))
    if seals.dsse is not None:
        draft.write(PROVENANCE, provenance.dump(made, data, seals.dsse))
    listed = sums.dump({path: file.sha256 for path, file in draft.files.items()})
    draft.write(SUMS, listed)
    if seals.openpgp is not None:
        draft.write(SIGNATURE, seals.openpgp.sign(listed, made.created))
    return made
