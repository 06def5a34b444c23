"""Releases that facts speak of without listing them: DeepSpeed's by their thresholds, distributions by their images."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

from envbuild.facts import Facts, Release
from envbuild.facts.versions import parse, within
from envbuild.model import Environment

# Fields of facts about DeepSpeed that hold one of its own releases.
_OWN_RELEASE = re.compile(r"^(version|since|through|before|deepspeed.*|.*_through|.*_since|.*_before)$")
_OTHERS = re.compile(r"^(torch|cuda|python|gcc)_")


def deepspeed_releases(facts: Facts) -> list[str]:
    """The DeepSpeed releases at which something changes, oldest first: between two of them nothing is known to."""
    newest = facts.deepspeed.newest.version
    found = {version for version in _versions(facts.deepspeed) if within(version, None, newest)}
    return sorted(found, key=parse)


def _versions(node: Any) -> Iterator[str]:
    if isinstance(node, BaseModel):
        for name in type(node).model_fields:
            value = getattr(node, name)
            if _OTHERS.match(name):
                continue
            if _OWN_RELEASE.match(name):
                for each in value.values() if isinstance(value, dict) else (value,):
                    if isinstance(each, str) and re.fullmatch(r"[0-9]+\.[0-9]+\.[0-9]+", each):
                        yield each
            else:
                yield from _versions(value)
    elif isinstance(node, dict):
        for value in node.values():
            yield from _versions(value)
    elif isinstance(node, (tuple, list)):
        for value in node:
            yield from _versions(value)


def release_name(facts: Facts, row: Environment) -> str:
    """The distribution release of a row's base by its name in the facts; the image itself where they do not know it."""
    release = facts.release_of_image(row.family, row.base.image)
    return next((name for name, each in facts.releases.items() if each is release), row.base.image)


def image_of(release: Release) -> str:
    """An image reference that names a release."""
    piece = next((piece for piece in release.images if ":" in piece), release.images[0])
    return f"docker.io/{piece}" if "/" in piece else f"docker.io/library/{piece}"
