"""What a registry has for a row, and what its evidence is worth. Asks the registry only; no layer moves."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from envbuild.errors import EngineError, GateError
from envbuild.events import Sink
from envbuild.model import Environment, ImageIdentity
from envbuild.net import Missing
from envbuild.pipeline.believing import believe, subject_of
from envbuild.pipeline.remote import blobs, repository
from envbuild.pipeline.unpacking import layers_of
from envbuild.pipeline.verify import Verified
from envbuild.pipeline.wanted import Wanted
from envbuild.pipeline.workbench import Workbench
from envbuild.registry import Blobs, Index, Manifest, Repository, parse

_MAX_CONFIG = 8 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """A tag, pinned to the manifest that it named.

    Attributes:
        config: The bytes of the image's config.
        verified: What the evidence beside it is worth.
    """

    there: Repository
    manifest: Manifest
    config: bytes = field(repr=False)
    verified: Verified


def resolve(bench: Workbench, env: Environment, ref: str, wanted: Wanted, scratch: Path, sink: Sink) -> Resolved:
    """Look a row's image up in its registry.

    Args:
        ref: Its repository and tag.
        wanted: What its evidence has to show.
        scratch: A folder for its evidence.

    Raises:
        GateError: There is no such image (exit 5).
        InputError: A key cannot be used.
        NetworkError: The registry (exit 3).
        EngineError: The disk (exit 3).
    """
    reference = parse(ref)
    there = repository(bench, reference, sink)
    manifest = _manifest(there, reference.tag or reference.wanted, env)
    own = blobs(bench)
    config = _config(there, own, manifest)
    diff_ids = layers_of(config)
    if len(diff_ids) != len(manifest.layers):
        count = len(manifest.layers)
        raise EngineError(f"{ref}: its config states {len(diff_ids)} layers, its manifest {count}")
    identity = ImageIdentity(config_digest=manifest.config.digest, diff_ids=diff_ids)
    subject = subject_of(env, identity, ref, wanted, bench.trusted_keys)
    verified = believe(subject, there, manifest, own, scratch)
    return Resolved(there=there, manifest=manifest, config=config, verified=verified)


def _manifest(there: Repository, tag: str, env: Environment) -> Manifest:
    """The manifest of a tag, pinned to its digest from here on; of several platforms the row's."""
    try:
        found = there.manifest(tag)
        if isinstance(found, Index):
            fitting = [each for each in found.manifests if each.platform in env.platforms]
            if len(fitting) != 1:
                said = ", ".join(filter(None, (each.platform for each in found.manifests))) or "none that is named"
                raise GateError(
                    f"{there.name}:{tag} is for {said}; the row {env.name} is for {', '.join(env.platforms)}"
                )
            found = there.manifest(fitting[0].digest)
    except Missing as error:
        names = [each for each in there.tags() if not each.startswith("sha256-")]
        said = f"it has {', '.join(names[:8])}" if names else "it has no image of that row"
        raise GateError(
            f"there is no {there.name}:{tag}; {said}",
            hint=f"Build it here: envbuild build {env.name}. Or have it pushed: envbuild push {env.name}",
        ) from error
    if not isinstance(found, Manifest) or found.artifact_type:
        raise GateError(f"{there.name}:{tag} is no image")
    return found


def _config(there: Repository, own: Blobs, manifest: Manifest) -> bytes:
    if manifest.config.size > _MAX_CONFIG:
        raise EngineError(f"{there.name}: the image's config has {manifest.config.size} bytes, which is none")
    return own.fetch(there, manifest.config).read_bytes()
