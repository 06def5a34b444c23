"""The Docker Engine: found by its endpoint, driven through docker-py, builds apart (see ``buildkit``)."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, cast

from envbuild import process
from envbuild.engines import buildkit, container, podman_run
from envbuild.engines.argv import run_argv
from envbuild.engines.connection import CALL_TIMEOUT, Connection
from envbuild.engines.endpoint import Endpoint
from envbuild.engines.faults import explanation, plain
from envbuild.engines.images import image_info
from envbuild.engines.incoming import Fetched, Incoming, archive
from envbuild.engines.podman_argv import podman_argv
from envbuild.engines.transfer import Chunks, PullProgress, open_export, split
from envbuild.engines.types import (
    BuildRequest,
    ContainerInfo,
    ContainerResult,
    ContainerSpec,
    EngineInfo,
    ImageInfo,
    RemoteAnswer,
)  # fmt: skip
from envbuild.errors import BuildError, EngineError
from envbuild.events import Sink, discard

# Seconds. A save, an import or a pull may be silent for long while the engine packs, unpacks or waits for its disk.
_TRANSFER_TIMEOUT = 900.0
REGISTRY_TIMEOUT = 15.0
_EXPORT_CHUNK = 1 << 20


class DockerEngine:
    """One Docker Engine. Every method raises EngineError when the engine fails; none leaks docker-py's own."""

    kind = "docker"

    def __init__(self, endpoint: Endpoint, client: str | None = None, builder: str | None = None) -> None:
        """Connect; builds go by ``client``, and by buildx's ``builder`` where one is named.

        Raises:
            EngineError: Nothing answers there; the message is the bare reason.
        """
        self._link = Connection(endpoint)
        self._client = client
        self._builder = builder

    @property
    def endpoint(self) -> str:
        """The address that answered, such as ``unix:///var/run/docker.sock``."""
        return self._link.endpoint.url

    @property
    def local(self) -> bool:
        """Whether it runs its containers on this host, as far as its address says."""
        return self.endpoint.startswith("unix://")

    @property
    def gpu_obstacle(self) -> str:
        """Why it cannot give GPUs to a container, as far as that is known beforehand; empty when it may."""
        if self._link.podman and process.which("podman") is None:
            return (
                "this engine is Podman, whose Docker-compatible API ignores requests for GPUs; there is no podman "
                "client on PATH that could ask in its own way"
            )
        return ""

    def any_client(self) -> str:
        """A docker client for people: the configured one, else the first on PATH.

        Raises:
            EngineError: There is none.
        """
        found: tuple[str, ...] = (*((self._client,) if self._client else ()), *process.which_all("docker"))
        if not found:
            raise EngineError("there is no docker client on PATH", hint="install one (Debian, Ubuntu: docker.io)")
        return found[0]

    def building_client(self) -> str:
        """The client that builds.

        Raises:
            EngineError: None here can.
        """
        return buildkit.find_client(self.endpoint, self._client, self._builder)

    def run_line(self, spec: ContainerSpec) -> tuple[str, ...]:
        """The command line that starts a container, for people: docker's, or podman's where only that gives GPUs.

        Raises:
            EngineError: There is no client for it.
        """
        if not (spec.gpus and self._link.podman):
            return run_argv(self.any_client(), self.endpoint, spec)
        client = process.which("podman")
        if client is None:
            raise EngineError(self.gpu_obstacle, hint="install podman's client, 4.1 or newer")
        return podman_argv(client, self.endpoint, spec)

    def info(self) -> EngineInfo:
        """What kind of engine this is."""
        with self._plain("ask the engine about itself"):
            said: dict[str, Any] = self._link.api.info()
        return EngineInfo(
            kind="podman" if self._link.podman else self.kind,
            version=str(said.get("ServerVersion", "")),
            endpoint=self.endpoint,
            storage_driver=str(said.get("Driver", "")),
            cgroup=f"v{said.get('CgroupVersion', '1')} {said.get('CgroupDriver', '')}".strip(),
            cpus=int(said.get("NCPU", 0)),
            memory_bytes=int(said.get("MemTotal", 0)),
            runtimes=tuple(sorted(said.get("Runtimes") or {})),
            root=str(said.get("DockerRootDir", "")),
            rootless=any("name=rootless" in str(option) for option in said.get("SecurityOptions") or ()),
        )

    def image(self, ref: str) -> ImageInfo | None:
        """The image with this name or id, or None."""
        with self._plain(f"inspect the image {ref}"):
            said = self._link.inspect_image(ref)
        return image_info(said) if said is not None else None

    def images(self, reference: str) -> tuple[ImageInfo, ...]:
        """Images by a name pattern such as ``envbuild/cpu:*``."""
        with self._plain("list images"):
            ids = dict.fromkeys(str(found["Id"]) for found in self._link.api.images(filters={"reference": reference}))
        return tuple(info for info in map(self.image, ids) if info is not None)

    def every_image(self) -> tuple[ImageInfo, ...]:
        """Every image that it has, with a name or without."""
        with self._plain("list images"):
            ids = dict.fromkeys(str(found["Id"]) for found in self._link.api.images())
        return tuple(info for info in map(self.image, ids) if info is not None)

    @cached_property
    def skips_layers(self) -> bool:
        """Whether it takes an image without the layers that it has: Docker's own image store does."""
        with self._plain("ask the engine about itself"):
            said: dict[str, Any] = self._link.api.info()
        status = [str(part) for pair in said.get("DriverStatus") or () for part in pair]
        return not self._link.podman and "io.containerd.snapshotter.v1" not in status

    def take(self, incoming: Incoming, fetched: Fetched) -> None:
        """Take in an image, as an archive that is made while it is read."""
        self.load(archive(incoming, fetched))

    def load(self, pieces: Iterator[bytes]) -> None:
        """Take in an exported image as ``docker load`` does."""
        with self._link.session(_TRANSFER_TIMEOUT) as api, self._plain("load the image"):
            for message in api.load_image(pieces, quiet=True):  # type: ignore[no-untyped-call]
                if message.get("error"):
                    raise EngineError(f"the engine does not take the image: {' '.join(str(message['error']).split())}")

    def tag(self, ref: str, new: str) -> None:
        """Give an image another name; the name moves when another image had it."""
        repository, tag = split(new)
        with self._plain(f"tag {ref} as {new}"):
            self._link.api.tag(ref, repository, tag)

    def untag(self, ref: str) -> None:
        """Take a name away; with its last name the image goes too. A name that is gone already is fine."""
        from docker.errors import NotFound

        with self._plain(f"remove the name {ref}"), contextlib.suppress(NotFound):
            self._link.api.remove_image(ref, force=False, noprune=True)

    def remove_unnamed(self, image: str) -> bool:
        """Remove an image that has no name; False where something still uses it. One that is gone already is fine."""
        from docker.errors import APIError, NotFound

        with self._plain(f"remove the image {image[:19]}"), contextlib.suppress(NotFound):
            try:
                self._link.api.remove_image(image, force=False, noprune=False)
            except APIError as error:
                if error.response is not None and error.response.status_code == 409:
                    return False
                raise
        return True

    @contextlib.contextmanager
    def save(self, ref: str) -> Iterator[BinaryIO]:
        """The image as ``docker save`` writes it: a stream for ``tarfile.open(fileobj=..., mode="r|")``."""
        doing = f"export the image {ref}"
        with self._link.session(_TRANSFER_TIMEOUT) as api:
            with self._plain(doing):
                response = open_export(api, ref)
            # Only the reading is guarded: what the caller's own code raises is not the engine's doing.
            chunks = Chunks(response.iter_content(_EXPORT_CHUNK), lambda: self._plain(doing))
            with contextlib.closing(response), io.BufferedReader(chunks, _EXPORT_CHUNK) as stream:
                yield cast(BinaryIO, stream)

    def import_root(self, tar: Path, ref: str, changes: tuple[str, ...] = ()) -> str:
        """Make an image of one layer from a root file system; ``changes`` are Dockerfile instructions.

        Returns the engine's id of the image.
        """
        repository, tag = split(ref)
        with self._link.session(_TRANSFER_TIMEOUT) as api, self._plain(f"import {tar} as {ref}"):
            said = api.import_image(str(tar), repository=repository, tag=tag, changes=list(changes))
        info = self.image(ref)
        if info is None:
            raise EngineError(f"cannot import {tar} as {ref}: {' '.join(str(said).split())[:300]}")
        return info.id

    def pull(self, ref: str, sink: Sink = discard) -> None:
        """Fetch an image by tag or digest; each layer is a step."""
        repository, tag = split(ref)
        with self._link.session(_TRANSFER_TIMEOUT) as api, self._plain(f"pull {ref}"):
            progress = PullProgress(sink)
            for message in api.pull(repository, tag=tag, stream=True, decode=True):
                progress.feed(message)
        if progress.error:
            raise EngineError(f"cannot pull {ref}: {progress.error}")

    def ask_registry(self, ref: str, timeout: float = REGISTRY_TIMEOUT) -> RemoteAnswer:
        """Ask the registry, through the engine, what ``ref`` is; the answer comes within about ``timeout`` seconds."""
        from docker.errors import APIError

        try:
            with self._link.session(timeout) as api, self._plain(f"ask the registry for {ref}"):
                try:
                    said: dict[str, Any] = api.inspect_distribution(ref)  # type: ignore[no-untyped-call]
                except APIError as error:
                    return RemoteAnswer(digest=None, reason=explanation(error))
        except EngineError as error:
            return RemoteAnswer(digest=None, reason=error.message)
        digest = str((said.get("Descriptor") or {}).get("digest") or "")
        return RemoteAnswer(digest=digest or None, reason="" if digest else "the registry named no digest")

    def build(self, request: BuildRequest, *, sink: Sink = discard, log: Path, timeout: float | None = None) -> None:
        """Build an image with BuildKit; see ``buildkit.build`` for what it raises."""
        client = self.building_client()
        try:
            buildkit.build(
                client, self._link.endpoint, request, sink=sink, log=log, timeout=timeout, builder=self._builder
            )
        except BuildError as error:
            try:
                self.info()
            except EngineError as gone:
                raise EngineError(f"{gone.message}\n{error.message}", hint=gone.hint) from error
            raise

    def run(self, spec: ContainerSpec, *, timeout: float | None, sink: Sink = discard) -> ContainerResult:
        """Run a container to its end; see ``container.run``, and ``podman_run.run`` for one with GPUs on Podman."""
        if spec.gpus and self._link.podman and (client := process.which("podman")):
            return podman_run.run(
                podman_run.Client(program=client, endpoint=self.endpoint), spec, timeout=timeout, sink=sink
            )
        with self._link.session(CALL_TIMEOUT) as api:
            return container.run(api, spec, endpoint=self.endpoint, timeout=timeout, sink=sink)

    def granted(self, spec: ContainerSpec, sink: Sink = discard) -> ContainerSpec:
        """``spec`` as this engine can start it: without a locked-memory limit that it may not set.

        For a container that somebody else will start, such as the docker command line; ``run`` sees to it
        itself. Starts ``true`` in the image to find out, so it takes some tenths of a second.
        """
        if spec.memlock is None:
            return spec
        with self._link.session(CALL_TIMEOUT) as api:
            refused = container.refuses_memlock(api, spec, endpoint=self.endpoint, sink=sink)
        return replace(spec, memlock=None) if refused else spec

    def containers(self, label: str) -> tuple[ContainerInfo, ...]:
        """Every container, running or not, with this ``key=value`` label."""
        with self._plain("list containers"):
            found = self._link.api.containers(all=True, filters={"label": label})
        return tuple(
            ContainerInfo(
                id=str(each["Id"]),
                image=str(each["Image"]),
                state=str(each["State"]),
                labels=tuple(sorted((each["Labels"] or {}).items())),
            )
            for each in found
        )

    def remove_container(self, container: str) -> None:
        """End and remove a container; one that is gone already is fine."""
        from docker.errors import NotFound

        with self._plain(f"remove the container {container[:12]}"), contextlib.suppress(NotFound):
            self._link.api.remove_container(container, force=True, v=True)

    def _plain(self, doing: str) -> contextlib.AbstractContextManager[None]:
        return plain(doing, self.endpoint)
