"""Podman, driven by its own command line: no service is needed, and no root."""

from __future__ import annotations

import contextlib
import io
import json
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO, cast

from envbuild import process
from envbuild.engines import cdi, podman_build, podman_builds, podman_run, registries, seccomp
from envbuild.engines.container import say_refused
from envbuild.engines.images import familiar, image_info, matches
from envbuild.engines.incoming import Fetched, Incoming, archive, fill
from envbuild.engines.podman_argv import keeps_id, podman_argv
from envbuild.engines.podman_pull import Progress
from envbuild.engines.podman_run import Client, hint
from envbuild.engines.transfer import Chunks
from envbuild.engines.types import (
    BuildRequest,
    ContainerInfo,
    ContainerResult,
    ContainerSpec,
    EngineInfo,
    ImageInfo,
    RemoteAnswer,
)  # fmt: skip
from envbuild.errors import EngineError
from envbuild.events import Sink, discard

REGISTRY_TIMEOUT = 15.0
_CALL_SECONDS = 60.0
_TRANSFER_SECONDS = 3600.0
_CHUNK = 1 << 20
# Podman's exit codes of `rmi`: there is no such image; something still uses it (podman-rmi(1)).
_NO_IMAGE, _IN_USE = 1, 2
_GONE = ("image not known", "no such image", "no such container", "no container with")


class PodmanEngine:
    """One Podman: the one on this host, or the service at ``endpoint``."""

    kind = "podman"

    def __init__(self, program: str, endpoint: str | None = None) -> None:
        """Ask it about itself.

        Raises:
            EngineError: It does not answer; the message is the bare reason.
        """
        self._client = Client(program=program, endpoint=endpoint)
        self._said = self._info()
        security = self._said["host"].get("security") or {}
        filtered = self.local and security.get("seccompEnabled")
        own = seccomp.profile(str(security.get("seccompProfilePath", ""))) if filtered else None
        self._client = replace(self._client, rootless=bool(security.get("rootless")), seccomp=own)

    @property
    def endpoint(self) -> str:
        """The address of its service, or the program where there is none."""
        return self._client.endpoint or self._client.program

    @property
    def local(self) -> bool:
        """Whether it runs its containers on this host."""
        return self.skips_layers or self.endpoint.startswith("unix://")

    @property
    def gpu_obstacle(self) -> str:
        """Why it cannot give GPUs to a container, as far as that is known beforehand; empty when it may."""
        if self.local and not cdi.specifications():
            return (
                "Podman gives GPUs by CDI, and there is no description of them in "
                f"{' or '.join(map(str, cdi.FOLDERS))} (nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml)"
            )
        return ""

    def any_client(self) -> str:
        """The podman client."""
        return self._client.program

    def building_client(self) -> str:
        """The podman client: Buildah is in it."""
        return self._client.program

    def run_line(self, spec: ContainerSpec) -> tuple[str, ...]:
        """The command line that starts a container, for people."""
        client = self._client
        keep_id = keeps_id(spec, rootless=client.rootless)
        return podman_argv(
            client.program, client.endpoint, spec, keep_id=keep_id, limits=client.limits, seccomp=client.seccomp
        )

    def info(self) -> EngineInfo:
        """What kind of engine this is."""
        host, store = self._said["host"], self._said.get("store") or {}
        return EngineInfo(
            kind=self.kind,
            version=str((self._said.get("version") or {}).get("Version", "")),
            endpoint=self.endpoint,
            storage_driver=str(store.get("graphDriverName", "")),
            cgroup=f"{host.get('cgroupVersion', '')} {host.get('cgroupManager', '')}".strip(),
            cpus=int(host.get("cpus", 0)),
            memory_bytes=int(host.get("memTotal", 0)),
            runtimes=(str((host.get("ociRuntime") or {}).get("name", "")),),
            root=str(store.get("graphRoot", "")),
            rootless=self._client.rootless,
        )

    def image(self, ref: str) -> ImageInfo | None:
        """The image with this name or id, or None."""
        found = self._inspect((ref,))
        return _info_of(found[0]) if found else None

    def images(self, reference: str) -> tuple[ImageInfo, ...]:
        """Images by a name pattern such as ``envbuild/cpu:*``, understood as Docker does: ``*`` ends at a slash."""
        return tuple(info for info in self.every_image() if any(matches(name, reference) for name in info.repo_tags))

    def every_image(self) -> tuple[ImageInfo, ...]:
        """Every image that it has, with a name or without."""
        listed = self._json("list images", "images", "--no-trunc", "--format", "json")
        ids = tuple(dict.fromkeys(str(each["Id"]) for each in listed))
        # One that goes meanwhile leaves the others to be asked for one by one.
        found = self._inspect(ids) if ids else []
        if ids and not found:
            return tuple(info for info in map(self.image, ids) if info is not None)
        return tuple(map(_info_of, found))

    @property
    def skips_layers(self) -> bool:
        """Whether it takes an image without the layers that it has: it does, where no service is between."""
        # A default connection of podman's own (containers.conf) goes to a service that no argument names.
        return self._client.endpoint is None and not self._said["host"].get("serviceIsRemote")

    def take(self, incoming: Incoming, fetched: Fetched) -> None:
        """Take in an image: as a folder, or as an archive where a service would have to read that."""
        if not self.skips_layers:
            self.load(archive(incoming, fetched))
            return
        with tempfile.TemporaryDirectory(prefix="envbuild-incoming-") as name:
            fill(Path(name), incoming, fetched)
            self._do("take in the image", "pull", "--quiet", f"dir:{name}", timeout=_TRANSFER_SECONDS)

    def load(self, pieces: Iterator[bytes]) -> None:
        """Take in an exported image as ``podman load`` does."""
        done = process.feed(self._client.line("load", "--quiet"), pieces)
        if done.returncode != 0:
            raise EngineError(f"the engine does not take the image: {process.last_words(done.stderr)}",
                              hint=hint(done.stderr))  # fmt: skip

    def tag(self, ref: str, new: str) -> None:
        """Give an image another name; the name moves when another image had it."""
        self._do(f"tag {ref} as {new}", "tag", ref, new)

    def untag(self, ref: str) -> None:
        """Take a name away; with its last name the image goes too. A name that is gone already is fine."""
        done = self._ask("rmi", "--no-prune", ref)
        if done.returncode not in (0, _NO_IMAGE):
            raise self._error(f"remove the name {ref}", done)

    def remove_unnamed(self, image: str) -> bool:
        """Remove an image that has no name; False where something still uses it. One that is gone already is fine."""
        done = self._ask("rmi", image)
        if done.returncode == _IN_USE:
            return False
        if done.returncode not in (0, _NO_IMAGE):
            raise self._error(f"remove the image {image[:19]}", done)
        return True

    @contextlib.contextmanager
    def save(self, ref: str) -> Iterator[BinaryIO]:
        """The image as ``podman save`` writes it, in the format that it is kept in: its config stays what it is."""
        doing = f"export the image {ref}"
        found = self._inspect((ref,))
        if not found:
            raise EngineError(f"cannot {doing}: there is no such image", hint="podman images shows what there is")
        form = "oci-archive" if "oci" in str(found[0].get("ManifestType", "")) else "docker-archive"
        pieces = process.chunks(self._client.line("save", "--quiet", "--format", form, ref), size=_CHUNK)

        @contextlib.contextmanager
        def guard() -> Iterator[None]:
            try:
                yield
            except EngineError as error:
                raise EngineError(f"cannot {doing}: {error.message}", hint=hint(error.message)) from error

        with contextlib.closing(pieces), io.BufferedReader(Chunks(pieces, guard), _CHUNK) as stream:
            yield cast(BinaryIO, stream)

    def import_root(self, tar: Path, ref: str, changes: tuple[str, ...] = ()) -> str:
        """Make an image of one layer from a root file system; ``changes`` are Dockerfile instructions."""
        asked = [part for change in changes for part in ("--change", change)]
        self._do(f"import {tar} as {ref}", "import", "--quiet", *asked, str(tar), ref, timeout=_TRANSFER_SECONDS)
        info = self.image(ref)
        if info is None:
            raise EngineError(f"cannot import {tar} as {ref}: it is not there afterwards")
        return info.id

    def pull(self, ref: str, sink: Sink = discard) -> None:
        """Fetch an image by tag or digest; each layer is a step."""
        # Like Docker, which takes a registry on this very host without TLS.
        plain = ("--tls-verify=false",) if registries.on_loopback(ref) else ()
        progress = Progress(sink)
        code = process.stream(self._client.line("pull", *plain, ref), on_line=progress.feed, timeout=_TRANSFER_SECONDS)
        if code != 0:
            raise EngineError(f"cannot pull {ref}: {progress.error}", hint=hint(progress.error))

    def ask_registry(self, ref: str, timeout: float = REGISTRY_TIMEOUT) -> RemoteAnswer:
        """Ask the registry what ``ref`` is: from here, since podman has no such question."""
        return registries.ask(ref, timeout)

    def build(self, request: BuildRequest, *, sink: Sink = discard, log: Path, timeout: float | None = None) -> None:
        """Build an image; see ``podman_build.build`` for what it raises."""
        version = self.info().version
        podman_build.build(self._client, request, version=version, sink=sink, log=log, timeout=timeout)

    def run(self, spec: ContainerSpec, *, timeout: float | None, sink: Sink = discard) -> ContainerResult:
        """Run a container to its end; see ``podman_run.run``."""
        return podman_run.run(self._client, spec, timeout=timeout, sink=sink)

    def granted(self, spec: ContainerSpec, sink: Sink = discard) -> ContainerSpec:
        """``spec`` as this engine can start it: without a locked-memory limit that it may not set."""
        # Asked without such a limit too: which others it has to be given turns out on the way.
        if podman_run.refuses_memlock(self._client, spec):
            say_refused(spec, sink)
            return replace(spec, memlock=None)
        return spec

    def containers(self, label: str) -> tuple[ContainerInfo, ...]:
        """Every container, running or not, with this ``key=value`` label; also what a killed build has left."""
        found = self._json("list containers", "ps", "--all", "--external", "--no-trunc", "--format", "json")
        folder = podman_builds.places(self._said.get("store") or {}) if self.local else None
        return podman_builds.containers(found, label, folder)

    def remove_container(self, container: str) -> None:
        """End and remove a container; one that is gone already is fine."""
        done = self._ask("rm", "--force", "--volumes", "--time", "0", container)
        if done.returncode != 0 and not any(word in done.stderr for word in _GONE):
            raise self._error(f"remove the container {container[:12]}", done)

    def _info(self) -> dict[str, Any]:
        done = self._ask("info", "--format", "json")
        if done.returncode != 0:
            raise EngineError(process.last_words(done.stderr) or "podman info failed", hint=hint(done.stderr))
        try:
            said = json.loads(done.stdout)
            return {**said, "host": dict(said["host"])}
        except (ValueError, KeyError, TypeError) as error:
            raise EngineError("what answers there is not Podman") from error

    def _inspect(self, refs: tuple[str, ...]) -> list[dict[str, Any]]:
        """What is there of the images with these names; nothing where one of them is not there."""
        done = self._ask("image", "inspect", *refs)
        if done.returncode != 0:
            if any(word in done.stderr for word in _GONE):
                return []
            raise self._error(f"inspect the image {refs[0]}", done)
        return self._decoded("inspect images", done)

    def _ask(self, *words: str, timeout: float = _CALL_SECONDS) -> process.Completed:
        return process.run(self._client.line(*words), timeout=timeout)

    def _do(self, doing: str, *words: str, timeout: float = _CALL_SECONDS) -> process.Completed:
        done = self._ask(*words, timeout=timeout)
        if done.returncode != 0:
            raise self._error(doing, done)
        return done

    def _json(self, doing: str, *words: str) -> list[dict[str, Any]]:
        return self._decoded(doing, self._do(doing, *words))

    def _decoded(self, doing: str, done: process.Completed) -> list[dict[str, Any]]:
        try:
            said = json.loads(done.stdout or "[]")
        except ValueError as error:
            raise EngineError(f"cannot {doing}: podman's answer cannot be read") from error
        return said if isinstance(said, list) else []

    def _error(self, doing: str, done: process.Completed) -> EngineError:
        return EngineError(f"cannot {doing}: {process.last_words(done.stderr)}", hint=hint(done.stderr))


def _info_of(said: dict[str, Any]) -> ImageInfo:
    info = image_info(said)
    return replace(
        info,
        id=f"sha256:{info.id.removeprefix('sha256:')}",
        repo_tags=tuple(map(familiar, info.repo_tags)),
        repo_digests=tuple(map(familiar, info.repo_digests)),
    )
