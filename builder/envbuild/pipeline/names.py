"""Which names an image may carry, and giving them. A tag moves last, after everything else is written."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from envbuild import evidence
from envbuild.errors import GateError
from envbuild.model import Environment, Level

if TYPE_CHECKING:
    from envbuild.engines import Engine, ImageInfo

_PART = r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*"
# A first part with a dot or a port is a registry, and may have capitals; any other is part of the name.
_REGISTRY = r"(?:localhost|[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)+|[A-Za-z0-9-]+(?=:))(?::[0-9]+)?"
_REFERENCE = re.compile(
    rf"(?:{_REGISTRY}/)?{_PART}(?:/{_PART})*(?::\w[\w.-]{{0,127}})?(?:@sha256:[0-9a-f]{{64}})?"
    r"|sha256:[0-9a-f]{4,64}",
    re.ASCII,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """The names of one target, with the registry's prefix where the site has one."""

    repository: str
    id_tag: str

    @property
    def proven(self) -> str:
        """The tag that names content; it is given once and never moves."""
        return f"{self.repository}:{self.id_tag}"

    @property
    def moving(self) -> str:
        """The tag that follows the newest proven image."""
        return f"{self.repository}:validated"

    def below(self, level: Level) -> str:
        """The tag of an image that has less than its row requires; it says so."""
        return f"{self.repository}:{self.id_tag}-{level.value}"

    @property
    def candidate(self) -> str:
        """The tag of an image that waits for its proof."""
        return f"{self.repository}:candidate-{self.id_tag.rpartition('-')[2]}"

    @property
    def own(self) -> tuple[str, ...]:
        """Every name that is given once, to one image; the one that says most comes first."""
        return (self.proven, *map(self.below, (Level.GPU_MIG, Level.CPU, Level.BUILT)))


def names(env: Environment, id8: str, registry: str | None) -> Names:
    """The names of a row's image, such as ``envbuild/cpu:2.13.0-cpu-1a2b3c4d``."""
    prefix = f"{registry.rstrip('/')}/" if registry else ""
    return Names(repository=f"{prefix}envbuild/{env.name}", id_tag=f"{env.torch.version}-{env.torch.build}-{id8}")


def is_reference(text: str) -> bool:
    """Whether an engine could have an image of that name or id (the grammar of Docker's image references)."""
    return len(text) <= 255 and _REFERENCE.fullmatch(text) is not None


def derived_names(reference: str, env: Environment, config_digest: str) -> Names:
    """The names of an image that was derived from a row's: its own repository, named by its own content."""
    name = reference.partition("@")[0]
    head, colon, tail = name.rpartition(":")
    repository = head if colon and "/" not in tail else name
    id8 = config_digest.removeprefix("sha256:")[:8]
    return Names(repository=repository, id_tag=f"{env.torch.version}-{env.torch.build}-{id8}")


def refuse_other_bytes(engine: Engine, tag: str, info: ImageInfo) -> None:
    """An id tag is given once.

    Raises:
        GateError: The tag exists and names another image.
    """
    existing = engine.image(tag)
    if existing is not None and not same_image(existing, info):
        raise GateError(
            f"{tag} already names another image ({existing.id[:19]}); it is never overwritten",
            hint=f"If that image should go, remove its name yourself: {engine.kind} rmi {tag}",
        )


def same_image(one: ImageInfo, other: ImageInfo) -> bool:
    """Whether two engine records are one image: the same id, or the same identity in the evidence store."""
    if one.id == other.id:
        return True
    digest = evidence.digest_of(one.id)
    return digest is not None and one.diff_ids == other.diff_ids and digest == evidence.digest_of(other.id)


def give(
    engine: Engine,
    info: ImageInfo,
    wanted: Names,
    *,
    level: Level,
    required: Level,
    first: Callable[[], object] = lambda: None,
) -> tuple[str, ...]:
    """Give an image the names that its evidence allows; returns them.

    Args:
        first: What has to come to its end before the moving name follows, such as a comparison with a baseline.

    Raises:
        GateError: The id tag already names other bytes.
    """
    enough = level.rank >= required.rank
    tag = wanted.proven if enough else wanted.below(level)
    refuse_other_bytes(engine, tag, info)
    engine.tag(info.id, tag)
    if not enough:
        return (tag,)
    first()
    engine.tag(info.id, wanted.moving)
    return (tag, wanted.moving)
