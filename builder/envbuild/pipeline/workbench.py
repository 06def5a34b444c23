"""What a run works with: project, matrix, site, engine. Each part is made when it is first needed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from envbuild import project, store
from envbuild.errors import InputError
from envbuild.events import Note, Sink, discard
from envbuild.project import Project

# What reads a part is imported where the part is made: a run that finds a row up to date needs few of them.
if TYPE_CHECKING:
    from envbuild.base.registry import Told
    from envbuild.engines import Engine
    from envbuild.evidence import PublicKey, SigningKey
    from envbuild.facts import Facts
    from envbuild.matrix import Matrix
    from envbuild.model import Environment
    from envbuild.site.apt import AptSettings
    from envbuild.site.config import SiteConfig
    from envbuild.site.pip import PipSettings


@dataclass
class Workbench:
    """One invocation's surroundings.

    Attributes:
        project_folder: ``--project``, or None to look for it.
        host: ``--host``: the engine's endpoint, or None to look for it.
        sink: Where events go.
        settings: What flags say in place of the site's files, by ``section.key``.
    """

    project_folder: Path | None = None
    host: str | None = None
    sink: Sink = discard
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    settings: Mapping[str, object] = field(default_factory=dict)
    _pip_by_row: dict[str, PipSettings] = field(default_factory=dict, init=False)
    _told: dict[str, Told] = field(default_factory=dict, init=False)
    _said: set[str] = field(default_factory=set, init=False)

    @cached_property
    def project(self) -> Project:
        """The project: explicit, or found upwards, or the packaged one."""
        return project.find(self.project_folder, Path.cwd())

    @cached_property
    def matrix(self) -> Matrix:
        """The rows."""
        from envbuild.matrix import load

        return load(self.project.matrix)

    @cached_property
    def facts(self) -> Facts:
        """What upstream says."""
        from envbuild import facts

        return facts.load(self.project.facts)

    @cached_property
    def site(self) -> SiteConfig:
        """Mirrors, proxies, certificates."""
        from envbuild.site import config

        return config.load(self.project.root, self.environ, self.settings)

    def read_site(self) -> None:
        """Read the site's settings now, so that a mistake in them is told by every command, not by a later one.

        Raises:
            InputError: The file is wrong.
        """
        _ = self.site

    @cached_property
    def signing_key(self) -> SigningKey | None:
        """With what evidence is signed; None where the site names no key.

        Raises:
            InputError: The key cannot be used, or lies where it would be published.
        """
        path = self.site.signing.key
        if path is None:
            return None
        from envbuild.evidence import keys

        for folder in (self.project.images, self.project.templates):
            if path.resolve().is_relative_to(folder.resolve()):
                raise InputError(
                    f"{path}: a private key does not belong into {folder}, which is there to be shared",
                    hint="Move it out of the project, and make another one if the folder has been shared.",
                )
        return keys.load_signing(path, passphrase=self.environ.get(keys.PASSPHRASE_VARIABLE))

    def need_signing_key(self) -> None:
        """Find out now, before any work is done, whether the key that evidence is to be signed with can be used.

        Raises:
            InputError: It cannot.
        """
        _ = self.signing_key

    @cached_property
    def trusted_keys(self) -> tuple[PublicKey, ...]:
        """Whose signatures count.

        Raises:
            InputError: Some of them cannot be used; it names each.
        """
        from envbuild.evidence import keys

        return keys.load_trusted(self.site.trust.keys)

    @property
    def cache(self) -> Path:
        """Where logs and build contexts go: the site's cache folder, or the user's."""
        return store.cache(self.site.paths.cache)

    @cached_property
    def pip(self) -> PipSettings:
        """Package indexes: the site's, or the host's own pip configuration."""
        from envbuild.site.pip import pip_settings

        settings = pip_settings(self.site, self.environ)
        if settings.ignored:
            ignored = ", ".join(settings.ignored)
            self.sink(Note(message=f"of {settings.origin}, only where packages come from is used; ignored: {ignored}"))
        return settings

    def pip_for(self, env: Environment) -> PipSettings:
        """The indexes for one row: with PyTorch's own where the row needs it and it answers. Asked once a run."""
        from envbuild.lock import with_torch_index

        if env.name not in self._pip_by_row:
            self._pip_by_row[env.name] = with_torch_index(env, self.pip, self.sink)
        return self._pip_by_row[env.name]

    def manifest_of(self, image: str) -> Told:
        """What the registry says of an image's tag. Asked once a run, and one that does not answer not again."""
        from envbuild.base import registry
        from envbuild.registry import reference

        host = reference.repository(image).partition("/")[0]
        key = host if host in self._told else image
        if key not in self._told:
            told = registry.manifest_digest(image, self.site)
            self._told[host if told.silent else image] = told
            return told
        return self._told[key]

    def tell_once(self, message: str, level: str = "info") -> None:
        """A note that would say the same for many rows."""
        if message not in self._said:
            self._said.add(message)
            self.sink(Note(message=message, level=level))

    def apt_for(self, env: Environment) -> AptSettings:
        """The package mirrors for one row's base."""
        from envbuild.site.apt import apt_settings

        bootstrap = env.base.bootstrap
        if bootstrap is not None:
            suite, components = bootstrap.suite, bootstrap.components
        else:
            release = self.facts.release_of_image(env.family, env.base.image)
            suite = next((name for name, each in self.facts.releases.items() if each is release), "")
            components = ("main",) if env.family == "debian" else ("main", "universe")
        return apt_settings(self.site, suite=suite, components=components, family=env.family)

    def need_engine(self) -> None:
        """Find out now, before anything is written, whether an engine answers.

        Raises:
            EngineError: None does.
        """
        _ = self.engine

    @cached_property
    def engine(self) -> Engine:
        """The engine that answers.

        Raises:
            EngineError: None does.
        """
        from envbuild.engines import connect

        wanted = self.site.engine
        return connect(self.host or wanted.host, wanted.client, kind=wanted.kind, builder=wanted.builder)
