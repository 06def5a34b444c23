"""Which base a build really starts from, under a local name that says nothing about the site."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass
from typing import Any, Literal

from envbuild import store
from envbuild.base.bootstrap import DPKG_OPTIONS, LABEL, bootstrap, describe
from envbuild.engines.engine import Engine
from envbuild.engines.types import ImageInfo
from envbuild.errors import EngineError
from envbuild.events import Note, Sink, discard
from envbuild.model import Bootstrap, Environment
from envbuild.registry import reference
from envbuild.site.apt import AptSettings
from envbuild.site.sections import SiteConfig

REPOSITORY = "envbuild/base"
# Part of every local name: a change in how bases are made makes new ones.
_RECIPE = ("minbase", *DPKG_OPTIONS)

How = Literal["local", "pulled", "bootstrapped"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """A base as a row declares it: an image, a bootstrap, or both as alternatives."""

    image: str
    digest: str | None
    bootstrap: Bootstrap | None
    platform: str

    @property
    def text(self) -> str:
        """The declared image, by digest where one is known."""
        return f"{self.image}@{self.digest}" if self.digest else self.image

    @property
    def local_name(self) -> str:
        """The neutral name of its materialisation, by content of the declaration."""
        fields = {**dataclasses.asdict(self), "recipe": _RECIPE}
        if self.bootstrap is not None:
            fields["bootstrap"] = self.bootstrap.model_dump(mode="json")
        canonical = json.dumps(fields, sort_keys=True, separators=(",", ":"))
        return f"{REPOSITORY}:{hashlib.sha256(canonical.encode()).hexdigest()[:12]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseUsed:
    """The base that a build really starts from.

    Attributes:
        reference: Its local name, the only one that a build sees.
        how: ``pulled`` from a registry, ``bootstrapped`` here, or ``local``: found here, of unknown origin.
        declared: What the row says.
        image_id: The engine's id.
        digest: Manifest digest, where it came from a registry.
    """

    reference: str
    how: How
    declared: str
    image_id: str
    diff_ids: tuple[str, ...]
    digest: str | None

    def as_dict(self) -> dict[str, Any]:
        """For evidence and labels. No name in it is the site's."""
        return {**dataclasses.asdict(self), "diff_ids": list(self.diff_ids)}


def declared_base(env: Environment) -> Declared:
    """The base of a row, for the first of its platforms."""
    return Declared(
        image=env.base.image, digest=env.base.digest, bootstrap=env.base.bootstrap, platform=env.platforms[0]
    )


def ensure(
    engine: Engine,
    env: Environment,
    *,
    site: SiteConfig,
    apt: AptSettings,
    sink: Sink = discard,
    no_cache: bool = False,
) -> BaseUsed:
    """Have the row's base in the engine under its neutral local name.

    In this order: the local name, if it is there; a bootstrap, if the site always wants one; an image
    that has the declared name already (an air-gapped host was given it); the registry, through the
    site's mirrors; a bootstrap, where the row and the site allow it. ``no_cache`` skips what is there.

    Raises:
        EngineError: None of these gave a base.
        InputError: The row's family cannot be bootstrapped.
    """
    return ensure_declared(engine, declared_base(env), site, apt, sink, no_cache)


def ensure_toolkit(
    engine: Engine, env: Environment, *, site: SiteConfig, apt: AptSettings, sink: Sink = discard
) -> BaseUsed | None:
    """The same for the image with the CUDA toolkit; None when the row has none.

    Raises:
        EngineError: The image could not be had.
    """
    if env.base.toolkit_image is None:
        return None
    declared = Declared(
        image=env.base.toolkit_image, digest=env.base.toolkit_digest, bootstrap=None, platform=env.platforms[0]
    )
    return ensure_declared(engine, declared, site, apt, sink, no_cache=False)


def ensure_declared(
    engine: Engine, declared: Declared, site: SiteConfig, apt: AptSettings, sink: Sink, no_cache: bool
) -> BaseUsed:
    """``ensure`` for any declaration."""
    name = declared.local_name
    if not no_cache and (info := engine.image(name)) is not None:
        return _used(info, declared)
    lock = store.FileLock(store.home() / "locks" / f"base-{name.rpartition(':')[2]}.lock")
    lock.acquire(lambda: sink(Note(message="another run prepares this base; waiting for it")))
    try:
        # Whoever held the lock may have made it.
        if no_cache or engine.image(name) is None:
            _materialise(engine, declared, site, apt, sink, no_cache)
    finally:
        lock.release()
    info = engine.image(name)
    if info is None:
        raise EngineError(f"the base {name} disappeared from the engine")
    return _used(info, declared)


def _materialise(
    engine: Engine, declared: Declared, site: SiteConfig, apt: AptSettings, sink: Sink, no_cache: bool
) -> None:
    policy = site.base.bootstrap
    if policy == "always" and declared.bootstrap is not None:
        _bootstrap(engine, declared, declared.bootstrap, site, apt, sink)
        return
    if not no_cache and _take_local(engine, declared, sink):
        return
    source = reference.mirrored(reference.repository(declared.image), site.base.mirrors)
    asked = f"{source}@{declared.digest}" if declared.digest else f"{source}:{reference.tag(declared.image)}"
    answer = engine.ask_registry(asked)
    if answer.digest is not None:
        pinned = f"{source}@{declared.digest or answer.digest}"
        engine.pull(pinned, sink)
        engine.tag(pinned, declared.local_name)
        return
    registry = source.partition("/")[0]
    if policy != "never" and declared.bootstrap is not None:
        why = _brief(answer.reason)
        sink(Note(message=f"{registry} gives no base image ({why}): bootstrapping {describe(declared.bootstrap)}"))
        _bootstrap(engine, declared, declared.bootstrap, site, apt, sink)
        return
    raise EngineError(
        f"the base {declared.text} cannot be had: {registry}: {answer.reason}",
        hint=f"name a mirror that has it ([base] mirrors in envbuild.toml), {engine.kind} load it under that name, or "
        "let the row be bootstrapped (base.bootstrap in the matrix; [base] bootstrap in envbuild.toml is not 'never')",
    )


def _brief(reason: str) -> str:
    """The end of a dial error's chain; any other answer of a registry as it is."""
    return reason.rpartition(": ")[2] if "dial tcp" in reason else reason


def _take_local(engine: Engine, declared: Declared, sink: Sink) -> bool:
    """Use an image that has the declared name, unless it is known to be another one."""
    info = engine.image(declared.image)
    if declared.digest is not None:
        exact = engine.image(f"{reference.repository(declared.image)}@{declared.digest}")
        if exact is not None:
            info = exact
        elif info is not None and _origins(info):
            return False
        elif info is not None:
            sink(
                Note(
                    message=f"{declared.image} is used as it is here; whether it is {declared.digest} cannot be seen",
                    level="warning",
                )
            )
    if info is None:
        return False
    engine.tag(info.id, declared.local_name)
    return True


def _bootstrap(
    engine: Engine, declared: Declared, plan: Bootstrap, site: SiteConfig, apt: AptSettings, sink: Sink
) -> None:
    bootstrap(engine, plan, declared.local_name, platform=declared.platform, apt=apt, ca=site.network.ca, sink=sink)


def _used(info: ImageInfo, declared: Declared) -> BaseUsed:
    # Where it came from is read from the image itself, so that the first run and the tenth say the same.
    origins = _origins(info)
    how: How = "pulled" if origins else "local"
    text = declared.text
    if LABEL in dict(info.labels):
        how = "bootstrapped"
        text = f"bootstrap {describe(declared.bootstrap)}" if declared.bootstrap else text
    return BaseUsed(
        reference=declared.local_name,
        how=how,
        declared=text,
        image_id=info.id,
        diff_ids=info.diff_ids,
        digest=(declared.digest if declared.digest in origins else origins[0]) if how == "pulled" else None,
    )


def _origins(info: ImageInfo) -> tuple[str, ...]:
    """Manifest digests under which registries have an image. The containerd store also gives local names one."""
    pairs = (name.partition("@") for name in info.repo_digests)
    return tuple(digest for name, _, digest in pairs if name.removeprefix("docker.io/") != REPOSITORY)
