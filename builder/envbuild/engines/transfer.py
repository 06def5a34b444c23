"""Images on the move: references, exported archives as files, pull progress as steps."""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import quote

from envbuild.events import Sink, StepDone, StepLine, StepStarted

if TYPE_CHECKING:
    from docker import APIClient
    from requests import Response

# A layer's progress is told again when it has grown by this share of its size.
_REPORT_SHARE = 0.1


class SupportsRead(Protocol):
    """Something with bytes to read."""

    def read(self, size: int, /) -> bytes:
        """Up to ``size`` bytes; fewer only at the end."""
        ...


def split(ref: str) -> tuple[str, str]:
    """Repository, and tag or digest, of a reference; ``latest`` where it names neither."""
    name, _, digest = ref.partition("@")
    if digest:
        return split(name)[0], digest
    repository, colon, tag = name.rpartition(":")
    if not colon or "/" in tag:  # the colon of a registry's port
        return name, "latest"
    return repository, tag


def open_export(api: APIClient, ref: str) -> Response:
    """The running ``GET /images/{name}/get``, to be closed by the caller.

    docker-py's own call hands out the chunks without the response, so an export that is given up half-way
    could not be closed and the engine would go on packing for nobody.

    Raises:
        docker.errors.APIError: The engine refused.
    """
    return _checked(api.get(_url(api, f"images/{quote(ref, safe='/:@')}/get"), stream=True, timeout=api.timeout))


def open_output(api: APIClient, container: str) -> Response:
    """The running ``POST /containers/{id}/attach``, to be read with ``frames`` and closed by the caller.

    docker-py's own call takes over the socket below the response and leaves it open.

    Raises:
        docker.errors.APIError: The engine refused.
    """
    parameters = {"stream": "1", "stdout": "1", "stderr": "1"}
    url = _url(api, f"containers/{container}/attach")
    # A container may be silent for as long as it likes: no limit on reading.
    return _checked(api.post(url, params=parameters, stream=True, timeout=(api.timeout, None)))


def frames(raw: SupportsRead) -> Iterator[tuple[int, bytes]]:
    """The pieces of an attached container's output: 1 and stdout's bytes, 2 and stderr's, in the order of arrival.

    The Engine API puts eight bytes before each: the stream's number, three zeros, a big-endian length.
    """
    while len(header := raw.read(8)) == 8:
        size = int.from_bytes(header[4:], "big")
        data = raw.read(size)
        if data:
            yield header[0], data
        if len(data) < size:
            return


def _url(api: APIClient, path: str) -> str:
    return f"{api.base_url}/v{api.api_version}/{path}"


def _checked(response: Response) -> Response:
    from docker.errors import create_api_error_from_http_exception
    from requests.exceptions import HTTPError

    try:
        response.raise_for_status()
    except HTTPError as error:
        create_api_error_from_http_exception(error)
    return response


class Chunks(io.RawIOBase):
    """An iterator of byte chunks as a readable file; ``guard`` wraps each step of the iterator."""

    def __init__(self, chunks: Iterator[bytes], guard: Callable[[], AbstractContextManager[None]]) -> None:
        self._chunks = chunks
        self._guard = guard
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        """Always."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill ``buffer`` from the next chunk; 0 at the end."""
        while not self._rest:
            with self._guard():
                chunk = next(self._chunks, None)
            if chunk is None:
                return 0
            self._rest = memoryview(chunk)
        size = min(len(buffer), len(self._rest))
        buffer[:size] = self._rest[:size]
        self._rest = self._rest[size:]
        return size


class PullProgress:
    """A pull's message stream as steps: one per layer, from the first word about it to its last.

    Attributes:
        error: What went wrong, in the engine's words; empty while nothing has.
    """

    def __init__(self, sink: Sink) -> None:
        self.error = ""
        self._sink = sink
        self._began: dict[str, float] = {}
        self._told: dict[str, tuple[str, float]] = {}

    def feed(self, message: dict[str, Any]) -> None:
        """Take one decoded message of ``POST /images/create``."""
        if message.get("error"):
            self.error = " ".join(str(message["error"]).split())
            return
        layer, status = str(message.get("id") or ""), str(message.get("status") or "")
        if not layer or status.startswith("Pulling from"):
            return
        name = f"layer {layer}"
        if layer not in self._began:
            self._began[layer] = time.monotonic()
            self._sink(StepStarted(key=layer, name=name))
        if status in ("Pull complete", "Already exists"):
            seconds = time.monotonic() - self._began[layer]
            cached = status == "Already exists"
            self._sink(StepDone(key=layer, name=name, status="cached" if cached else "done", seconds=seconds))
            return
        self._progress(layer, status, message.get("progressDetail") or {})

    def _progress(self, layer: str, status: str, detail: dict[str, Any]) -> None:
        current, total = float(detail.get("current") or 0), float(detail.get("total") or 0)
        share = current / total if total else 0.0
        told_status, told_share = self._told.get(layer, ("", 0.0))
        if status == told_status and share - told_share < _REPORT_SHARE:
            return
        self._told[layer] = (status, share)
        size = f" {current / 1e6:.1f} / {total / 1e6:.1f} MB" if total else ""
        self._sink(StepLine(key=layer, text=f"{status}{size}"))
