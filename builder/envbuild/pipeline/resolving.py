"""What a registry has for a row, and what its evidence is worth. Asks the registry only; no layer moves."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from envbuild.engines.incoming import layers_of
from envbuild.errors import EngineError, GateError
from envbuild.events import Sink
from envbuild.model import Environment, ImageIdentity
from envbuild.net import Missing
from envbuild.pipeline.believing import believe, subject_of
from envbuild.pipeline.remote import blobs, repository
from envbuild.pipeline.verify import Verified
from envbuild.pipeline.wanted import Wanted
from envbuild.pipeline.workbench import Workbench
from envbuild.registry import Blobs, Index, Manifest, Repository, parse

_MAX_CONFIG = 8 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Remote:
    """An image in a registry: the manifest that a name was pinned to, and the bytes of its config."""

    there: Repository
    manifest: Manifest
    config: bytes = field(repr=False)
    identity: ImageIdentity


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """A row's image in a registry, and what the evidence beside it is worth."""

    image: Remote
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
    try:
        image = look_up(bench, ref, env.platforms, sink)
    except Missing as error:
        there = repository(bench, parse(ref), sink)
        names = [each for each in there.tags() if not each.startswith("sha256-")]
        said = f"it has {', '.join(names[:8])}" if names else "it has no image of that row"
        raise GateError(
            f"there is no {ref}; {said}",
            hint=f"Build it here: envbuild build {env.name}. Or have it pushed: envbuild push {env.name}",
        ) from error
    subject = subject_of(env, image.identity, ref, wanted, bench.trusted_keys)
    return Resolved(image=image, verified=believe(subject, image.there, image.manifest, blobs(bench), scratch))


def look_up(bench: Workbench, ref: str, platforms: tuple[str, ...], sink: Sink) -> Remote:
    """Pin a name to the manifest that it has now; of several platforms to the one that is wanted.

    Raises:
        Missing: The registry has no such image.
        GateError: It is none for these platforms, or no image (exit 5).
        NetworkError: The registry (exit 3).
        EngineError: The disk, or a config that does not fit its manifest (exit 3).
    """
    reference = parse(ref)
    there = repository(bench, reference, sink)
    manifest = _manifest(there, reference.wanted, ref, platforms)
    config = _config(there, blobs(bench), manifest)
    diff_ids = layers_of(config)
    if len(diff_ids) != len(manifest.layers):
        count = len(manifest.layers)
        raise EngineError(f"{ref}: its config states {len(diff_ids)} layers, its manifest {count}")
    identity = ImageIdentity(config_digest=manifest.config.digest, diff_ids=diff_ids)
    return Remote(there=there, manifest=manifest, config=config, identity=identity)


def _manifest(there: Repository, wanted: str, ref: str, platforms: tuple[str, ...]) -> Manifest:
    found = there.manifest(wanted)
    if isinstance(found, Index):
        # "the first matching entry SHOULD be used" (OCI image specification 1.1, image-index.md).
        fitting = [each for each in found.manifests if _bare(each.platform) in platforms]
        if not fitting:
            said = ", ".join(filter(None, (each.platform for each in found.manifests))) or "none that is named"
            raise GateError(f"{ref} is for {said}, and not for {' or '.join(platforms)}")
        found = there.manifest(fitting[0].digest)
    if not isinstance(found, Manifest) or found.artifact_type:
        raise GateError(f"{ref} is no image")
    return found


def _bare(platform: str) -> str:
    """A platform without the variant that its architecture has anyway: ``linux/arm64/v8`` is ``linux/arm64``."""
    return platform.removesuffix("/v8") if platform.endswith("/arm64/v8") else platform


def _config(there: Repository, own: Blobs, manifest: Manifest) -> bytes:
    if manifest.config.size > _MAX_CONFIG:
        raise EngineError(f"{there.name}: the image's config has {manifest.config.size} bytes, which is none")
    return own.read(there, manifest.config)
