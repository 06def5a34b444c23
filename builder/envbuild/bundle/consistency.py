"""Whether the files of a bundle say the same: its manifest, its sums, what its scripts read, its lists, its image.

Whoever made a bundle may have told the scripts, dnf, pip and Docker different things from what a person is shown.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

from envbuild.bundle import conf, image, wheels
from envbuild.bundle.finding import about, several
from envbuild.bundle.manifest import Manifest
from envbuild.bundle.tree import Tree, Unreadable
from envbuild.bundle.words import AFTER, CONF, MANIFEST, SUMS
from envbuild.model import Finding

_MAX_TEXT = 16 << 20


def findings(tree: Tree, manifest: Manifest, known: Mapping[str, str]) -> Iterator[Finding]:
    """Every contradiction.

    Args:
        known: The sums of the bundle.
    """
    yield from _sums(manifest, known)
    yield from _text(tree, CONF, conf.text(manifest), "the scripts would be told something else than the manifest says")
    if manifest.wheels is not None:
        yield from _wheels(tree, manifest)
    if manifest.image is not None:
        yield from _image(tree, manifest)


def _sums(manifest: Manifest, known: Mapping[str, str]) -> Iterator[Finding]:
    listed = {file.path: file.sha256 for file in manifest.files}
    others = {path: sha256 for path, sha256 in known.items() if path not in AFTER}
    wrong = [path for path in listed.keys() | others.keys() if listed.get(path) != others.get(path)]
    yield from several(
        "manifest", wrong, f"not the same in {MANIFEST} and {SUMS}", "Whoever made it has to do it again."
    )


def _wheels(tree: Tree, manifest: Manifest) -> Iterator[Finding]:
    assert manifest.wheels is not None
    wanted = wheels.requirements(manifest.wheels.packages)
    yield from _text(
        tree, manifest.wheels.requirements, wanted, "pip would install other files than the manifest names"
    )


def _image(tree: Tree, manifest: Manifest) -> Iterator[Finding]:
    assert manifest.image is not None
    path = manifest.image.path
    try:
        descriptor = tree.open(path)
    except Unreadable:
        return  # told with what is missing, or left to the base
    with os.fdopen(descriptor, "rb") as file:
        for reason in image.contradictions(file, manifest.image):
            yield about("image", path, f"{path}: {reason}", "Load nothing of it: fetch or export the bundle again.")


def _text(tree: Tree, path: str, wanted: bytes, otherwise: str) -> Iterator[Finding]:
    try:
        same = tree.read(path, _MAX_TEXT) == wanted
    except Unreadable as error:
        if error.missing:
            return
        same = False
    if not same:
        yield about("contradiction", path, f"{path}: {otherwise}", "Whoever made the bundle has to export it again.")
