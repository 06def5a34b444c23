"""The registry of a site, as this user."""

from __future__ import annotations

from typing import TYPE_CHECKING

from envbuild.errors import InputError
from envbuild.events import Sink
from envbuild.registry import Blobs, Reference, Repository
from envbuild.registry.connect import connect

if TYPE_CHECKING:
    from envbuild.pipeline.workbench import Workbench


def need_registry(bench: Workbench) -> str:
    """The prefix of the site's registry.

    Raises:
        InputError: The site names none.
    """
    name = bench.site.registry.name
    if not name:
        raise InputError(
            "no registry is configured",
            hint='Say it once: [registry] name = "registry.example.com/team" in envbuild.toml; or --registry NAME.',
        )
    return name.rstrip("/")


def repository(bench: Workbench, reference: Reference, sink: Sink) -> Repository:
    """The repository of a reference, over the site's network, with the user's own login."""
    return connect(reference, bench.site, bench.environ, sink=sink)


def blobs(bench: Workbench) -> Blobs:
    """The blobs of this user's cache."""
    return Blobs(bench.cache / "blobs")
