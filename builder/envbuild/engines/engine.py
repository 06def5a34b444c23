"""What the rest of envbuild asks of a container engine, whichever it is."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import BinaryIO, Protocol

from envbuild.engines.incoming import Fetched, Incoming
from envbuild.engines.types import (
    BuildRequest,
    ContainerInfo,
    ContainerResult,
    ContainerSpec,
    EngineInfo,
    ImageInfo,
    RemoteAnswer,
)
from envbuild.events import Sink, discard


class Engine(Protocol):
    """One engine. Every method raises EngineError when the engine fails, and nothing of a library's own."""

    @property
    def kind(self) -> str:
        """``docker`` or ``podman``."""
        ...

    @property
    def endpoint(self) -> str:
        """The address that answered, or the program that did."""
        ...

    @property
    def local(self) -> bool:
        """Whether it runs its containers on this host, as far as its address says."""
        ...

    @property
    def gpu_obstacle(self) -> str:
        """Why it cannot give GPUs to a container, as far as that is known beforehand; empty when it may."""
        ...

    @property
    def skips_layers(self) -> bool:
        """Whether it takes an image without the layers that it has."""
        ...

    def info(self) -> EngineInfo:
        """What kind of engine this is."""
        ...

    def any_client(self) -> str:
        """A client for people."""
        ...

    def building_client(self) -> str:
        """The client that builds."""
        ...

    def run_line(self, spec: ContainerSpec) -> tuple[str, ...]:
        """The command line that starts a container, for people."""
        ...

    def image(self, ref: str) -> ImageInfo | None:
        """The image with this name or id, or None."""
        ...

    def images(self, reference: str) -> tuple[ImageInfo, ...]:
        """Images by a name pattern such as ``envbuild/cpu:*``."""
        ...

    def every_image(self) -> tuple[ImageInfo, ...]:
        """Every image that it has, with a name or without."""
        ...

    def tag(self, ref: str, new: str) -> None:
        """Give an image another name; the name moves when another image had it."""
        ...

    def untag(self, ref: str) -> None:
        """Take a name away; with its last name the image goes too. A name that is gone already is fine."""
        ...

    def remove_unnamed(self, image: str) -> bool:
        """Remove an image that has no name; False where something still uses it. One that is gone already is fine."""
        ...

    def save(self, ref: str) -> AbstractContextManager[BinaryIO]:
        """The exported image: a stream for ``tarfile.open(fileobj=..., mode="r|")``."""
        ...

    def take(self, incoming: Incoming, fetched: Fetched) -> None:
        """Take in an image without giving it a name; ``fetched`` says where a layer lies, and waits for it."""
        ...

    def import_root(self, tar: Path, ref: str, changes: tuple[str, ...] = ()) -> str:
        """Make an image of one layer from a root file system; returns the engine's id of it."""
        ...

    def pull(self, ref: str, sink: Sink = discard) -> None:
        """Fetch an image by tag or digest; each layer is a step."""
        ...

    def ask_registry(self, ref: str, timeout: float = ...) -> RemoteAnswer:
        """What the registry says of ``ref``, within about ``timeout`` seconds; never raises."""
        ...

    def build(self, request: BuildRequest, *, sink: Sink = discard, log: Path, timeout: float | None = None) -> None:
        """Build an image; its tag exists afterwards if, and only if, this returns."""
        ...

    def run(self, spec: ContainerSpec, *, timeout: float | None, sink: Sink = discard) -> ContainerResult:
        """Run a container to its end, and remove it."""
        ...

    def granted(self, spec: ContainerSpec, sink: Sink = discard) -> ContainerSpec:
        """``spec`` as this engine can start it: without a locked-memory limit that it may not set."""
        ...

    def containers(self, label: str) -> tuple[ContainerInfo, ...]:
        """Every container, running or not, with this ``key=value`` label."""
        ...

    def remove_container(self, container: str) -> None:
        """End and remove a container; one that is gone already is fine."""
        ...
