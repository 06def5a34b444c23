"""Running one container to its end, whatever that end is."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from dataclasses import replace
from threading import Thread
from typing import TYPE_CHECKING, Any

from envbuild.engines.argv import create_payload
from envbuild.engines.faults import explanation, plain
from envbuild.engines.transfer import frames, open_output
from envbuild.engines.types import ContainerResult, ContainerSpec
from envbuild.events import Note, Sink, StepLine, discard

if TYPE_CHECKING:
    from docker import APIClient
    from requests import Response

STDOUT, STDERR = 1, 2
# The key of a container's lines among the events of a phase.
OUTPUT_KEY = "container"
# A runaway program must not fill this process's memory; what is kept is the end of each stream.
_KEEP_BYTES = 32 * 1024 * 1024
# How long the last output may take to arrive after the container is gone.
_DRAIN_SECONDS = 10.0
_CLOSE_SECONDS = 3.0
_PROBE_SECONDS = 30.0
# What the engine records for a command that is not there, or may not be executed; docker run exits with the same.
_NO_COMMAND = (126, 127)
# runc names a limit by its number in Linux (asm-generic/resource.h): 8 is RLIMIT_MEMLOCK.
_RLIMIT_MEMLOCK = "rlimit type 8"


class _MemlockRefused(Exception):
    """The engine may not grant the locked-memory limit that was asked for."""


def run(api: APIClient, spec: ContainerSpec, *, endpoint: str, timeout: float | None, sink: Sink) -> ContainerResult:
    """Create, start, wait, collect, remove.

    ``timeout`` is in seconds from the start; a container that is still running then is killed, and what
    it had printed by then is in the result. The container is removed in every case, interruption
    included. Lines of its stderr go to ``sink`` as they come.

    An engine without CAP_SYS_RESOURCE (rootless, or itself in a container) cannot raise RLIMIT_MEMLOCK
    above its own and refuses to start the container. It is then run under the engine's limit, which is
    the stricter test, and the sink gets a warning.

    Raises:
        EngineError: The engine failed, or it cannot make such a container.
    """
    try:
        return _once(api, spec, endpoint, timeout, sink)
    except _MemlockRefused:
        say_refused(spec, sink)
        return _once(api, replace(spec, memlock=None), endpoint, timeout, sink)


def refuses_memlock(api: APIClient, spec: ContainerSpec, *, endpoint: str, sink: Sink) -> bool:
    """Whether the engine may not set the locked-memory limit of ``spec``; the sink is told if so.

    Raises:
        EngineError: The engine failed in another way.
    """
    probe = ContainerSpec(image=spec.image, argv=("true",), memlock=spec.memlock, network="none", labels=spec.labels)
    try:
        _once(api, probe, endpoint, _PROBE_SECONDS, discard)
    except _MemlockRefused:
        say_refused(spec, sink)
        return True
    return False


def say_refused(spec: ContainerSpec, sink: Sink) -> None:
    """Tell that the locked-memory limit of ``spec`` could not be set."""
    asked = "unlimited" if spec.memlock == -1 else f"{spec.memlock} bytes"
    message = f"the engine may not set the locked-memory limit to {asked}; its own, lower limit holds"
    sink(Note(message=message, level="warning"))


def _once(api: APIClient, spec: ContainerSpec, endpoint: str, timeout: float | None, sink: Sink) -> ContainerResult:
    # A terminal would merge the two streams.
    spec = replace(spec, interactive=False)
    with plain(f"create a container of {spec.image}", endpoint):
        container = str(api.create_container_from_config(create_payload(spec))["Id"])  # type: ignore[no-untyped-call]
    output: Output | None = None
    try:
        with plain(f"run a container of {spec.image}", endpoint):
            # Attached before it starts, so that nothing it prints is missed.
            output = Output(open_output(api, container), sink)
            return _started(api, container, output, timeout)
    finally:
        remove(api, container)
        # In this order: a connection that is still being read from cannot be closed, and the container's end ends it.
        if output is not None:
            output.close()


def remove(api: APIClient, container: str) -> None:
    """Kill and remove; never raises. One that could not be removed is left to the next run's sweep."""
    import urllib3.exceptions
    from docker.errors import DockerException
    from requests.exceptions import RequestException

    with contextlib.suppress(DockerException, RequestException, urllib3.exceptions.HTTPError, OSError):
        api.remove_container(container, force=True, v=True)


def _started(api: APIClient, container: str, output: Output, timeout: float | None) -> ContainerResult:
    from docker.errors import APIError

    began = time.monotonic()
    try:
        api.start(container)
    except APIError as error:
        said = explanation(error)
        if _RLIMIT_MEMLOCK in said:
            raise _MemlockRefused from error
        code = int(api.inspect_container(container)["State"]["ExitCode"])
        # Other failures to start get these codes too; only this one names the program it could not execute.
        if code not in _NO_COMMAND or 'exec: "' not in said:
            raise
        return ContainerResult(exit_code=code, stdout="", stderr=said, oom_killed=False, timed_out=False, seconds=0.0)
    output.start()
    timed_out = not _wait(api, container, timeout)
    seconds = time.monotonic() - began
    if timed_out:
        with contextlib.suppress(APIError):  # it may have ended by itself in this very moment
            api.kill(container)
        _wait(api, container, _DRAIN_SECONDS)
    output.join(_DRAIN_SECONDS)
    state = _final_state(api, container)
    return ContainerResult(
        exit_code=int(state["ExitCode"]),
        stdout=output.text(STDOUT),
        stderr=output.text(STDERR),
        oom_killed=bool(state["OOMKilled"]),
        timed_out=timed_out,
        seconds=seconds,
    )


def _wait(api: APIClient, container: str, timeout: float | None) -> bool:
    """Whether the container ended in time."""
    from requests.exceptions import ConnectionError as NoConnection
    from requests.exceptions import ReadTimeout
    from urllib3.exceptions import ReadTimeoutError

    try:
        # The stubs want whole seconds; requests takes any number.
        api.wait(container, timeout=timeout)  # type: ignore[arg-type]
    except ReadTimeout:
        return False
    except NoConnection as error:
        # requests wraps a time-out that strikes while it reads the body as a lost connection.
        if error.args and isinstance(error.args[0], ReadTimeoutError):
            return False
        raise
    return True


def _final_state(api: APIClient, container: str) -> dict[str, Any]:
    # The kernel's out-of-memory notice reaches the engine on another path than the exit, sometimes later.
    state: dict[str, Any] = api.inspect_container(container)["State"]
    for _ in range(10):
        if state["OOMKilled"] or state["ExitCode"] != 137:
            break
        time.sleep(0.1)
        state = api.inspect_container(container)["State"]
    return state


class Streams:
    """What a container prints on its two streams: the end of each is kept, stderr's lines are told as they come."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._kept: dict[int, deque[bytes]] = {STDOUT: deque(), STDERR: deque()}
        self._size = {STDOUT: 0, STDERR: 0}
        self._line = b""

    def text(self, stream: int) -> str:
        """What has come on one stream, undecodable bytes replaced."""
        return b"".join(self._kept[stream]).decode(errors="replace")

    def keep(self, stream: int, data: bytes) -> None:
        """Take one more piece."""
        kept = self._kept[stream]
        kept.append(data)
        self._size[stream] += len(data)
        while self._size[stream] > _KEEP_BYTES and len(kept) > 1:
            self._size[stream] -= len(kept.popleft())
        if stream == STDERR:
            self._lines(data)

    def finish(self) -> None:
        """Tell a last line that has no end."""
        self._lines(b"\n" if self._line else b"")

    def _lines(self, data: bytes) -> None:
        *lines, self._line = (self._line + data).split(b"\n")
        for line in lines:
            text = line.decode(errors="replace").rstrip("\r")
            if text.strip():
                self._sink(StepLine(key=OUTPUT_KEY, text=text))


class Output(Streams):
    """The two streams of an attached container, read by a thread of its own until they end."""

    def __init__(self, response: Response, sink: Sink) -> None:
        super().__init__(sink)
        self._response = response
        self._thread = Thread(target=self._read, name="container output", daemon=True)

    def start(self) -> None:
        """Begin to read."""
        self._thread.start()

    def join(self, seconds: float) -> None:
        """Wait for the end of both streams."""
        if self._thread.ident is not None:
            self._thread.join(seconds)

    def close(self) -> None:
        """Let go of the connection, unless an engine that went silent keeps the reader waiting."""
        self.join(_CLOSE_SECONDS)
        if not self._thread.is_alive():
            self._response.close()

    def _read(self) -> None:
        # A broken connection ends the output; what became of the container is asked separately.
        with contextlib.suppress(Exception):
            for stream, data in frames(self._response.raw):
                self.keep(stream, data)
        self.finish()
