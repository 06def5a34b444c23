"""The roots that a row is made from, and which distribution release each is."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from envbuild.facts import Facts, Release
from envbuild.matrix.tree import KeyPath
from envbuild.model import Environment


@dataclass(frozen=True, slots=True, kw_only=True)
class Root:
    """One root: where the row names it, what it calls it, and the release that it is, where that is known.

    Attributes:
        toolkit: Whether the ops are compiled in it, and nothing else.
        digest: Its digest, where the row pins one.
    """

    key: KeyPath
    name: str
    release: Release | None
    toolkit: bool = False
    digest: str | None = None


def roots(env: Environment, facts: Facts) -> Iterator[Root]:
    """Every root that torch is imported in: the image and its stand-in, and the one that compiles the ops."""
    base, family = env.base, env.family
    image = facts.release_of_image(family, base.image)
    yield Root(key=("base", "image"), name=base.image, release=image, digest=base.digest)
    if base.bootstrap:
        suite = base.bootstrap.suite
        release = facts.release_of_suite(family, suite)
        yield Root(key=("base", "bootstrap", "suite"), name=suite, release=release)
    if base.toolkit_image and env.cuda and env.cuda.toolkit == "image":
        yield Root(
            key=("base", "toolkit_image"),
            name=base.toolkit_image,
            release=facts.release_of_image(family, base.toolkit_image),
            toolkit=True,
            digest=base.toolkit_digest,
        )


def cuda_of_image(image: str) -> str | None:
    """The toolkit version (major.minor) that the tag of an image of NVIDIA's names; None for any other image."""
    found = re.search(r"(?:^|/)nvidia/cuda:([0-9]+\.[0-9]+)(?:[.-]|$)", image)
    return found[1] if found else None
