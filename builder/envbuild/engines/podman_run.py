"""Running one container to its end through podman's own command line, whatever that end is."""

from __future__ import annotations

import contextlib
import json
import re
import resource
import secrets
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from envbuild import process
from envbuild.engines.container import STDERR, STDOUT, Streams, say_refused
from envbuild.engines.gpufaults import GpuStartError, known_fault
from envbuild.engines.podman_argv import client_argv, keeps_id, podman_argv
from envbuild.engines.types import ContainerResult, ContainerSpec
from envbuild.errors import EngineError
from envbuild.events import Event, Sink, StepLine, discard

# What podman run exits with when podman itself failed, and when it cannot start the program; over its API the second
# stands for everything that keeps a container from starting (measured with 4.3.1).
_NOT_STARTED = (125, 126, 127)
# The program itself is not there, or may not be executed: the container's result, as with Docker.
_NO_PROGRAM = re.compile(r'exec: "|executable file|open executable')
# runc names a limit by its number in Linux (asm-generic/resource.h), crun by its name: 8 is RLIMIT_MEMLOCK, 6 and 7
# are the numbers of processes and of open files, which podman raises for every container that it starts as root.
_MEMLOCK = re.compile(r"rlimit type 8\b|RLIMIT_MEMLOCK")
_OTHER_LIMITS = re.compile(r"rlimit type [67]\b|RLIMIT_(NOFILE|NPROC)")
_CALL_SECONDS = 60.0
_KILLED = 137
_BUILDAH_PROCESSES = 32768

Limits = dict[str, tuple[int, int]]
# Which resource limits may not be set: that of locked memory, or those that podman sets of its own accord.
_Refused = Literal["memlock", "others"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """A podman that runs containers.

    Attributes:
        program: Path of the client.
        endpoint: URL of the service that it talks to; None is podman itself, on this host.
        rootless: Whether it runs without root.
        seccomp: Filter of system calls in place of its own; None is its own.
        limits: Resource limits that its containers have to be given, as has turned out on the way.
    """

    program: str
    endpoint: str | None = None
    rootless: bool = False
    seccomp: Path | None = None
    limits: Limits = field(default_factory=dict)

    def line(self, *words: str) -> tuple[str, ...]:
        """One of its command lines."""
        return (*client_argv(self.program, self.endpoint), *words)


def run(client: Client, spec: ContainerSpec, *, timeout: float | None, sink: Sink = discard) -> ContainerResult:
    """Run a container to its end, and remove it, interruption included.

    One that still runs after ``timeout`` seconds is killed; what it had printed by then is in the result. Lines of its
    stderr go to ``sink`` as they come.

    An engine that may not set the locked-memory limit runs it under its own, which is the stricter test, and the sink
    gets a warning. One that may not raise the limits of processes and open files (itself in a container) runs it
    under this process's, and the client remembers.

    Raises:
        GpuStartError: It cannot get its GPUs.
        EngineError: Podman failed in another way, or it cannot make such a container.
    """
    spec = replace(spec, interactive=False, stdin=False)
    while not isinstance(outcome := _once(client, spec, timeout, sink), ContainerResult):
        if outcome == "memlock":
            say_refused(spec, sink)
            spec = replace(spec, memlock=None)
        else:
            client.limits.update(own_limits())
    return outcome


def refuses_memlock(client: Client, spec: ContainerSpec) -> bool:
    """Whether the engine may not set the locked-memory limit of ``spec``.

    Raises:
        EngineError: The engine failed in another way.
    """
    probe = ContainerSpec(image=spec.image, argv=("true",), memlock=spec.memlock, network="none", labels=spec.labels)
    outcome = _once(client, probe, _CALL_SECONDS, discard)
    if outcome == "others":
        client.limits.update(own_limits())
        outcome = _once(client, probe, _CALL_SECONDS, discard)
    return outcome == "memlock"


def own_limits() -> Limits:
    """This process's limits of open files and processes, soft and hard, as ``--ulimit`` takes them."""
    files, processes = resource.getrlimit(resource.RLIMIT_NOFILE), resource.getrlimit(resource.RLIMIT_NPROC)[1]
    # Podman lowers its own limit of processes before it starts a container; Buildah's default for a RUN step is
    # granted where this process's is not (measured with 4.3.1).
    most = _BUILDAH_PROCESSES if processes == resource.RLIM_INFINITY else min(processes, _BUILDAH_PROCESSES)
    return {"nofile": files, "nproc": (most, most)}


def _once(client: Client, spec: ContainerSpec, timeout: float | None, sink: Sink) -> ContainerResult | _Refused:
    name = f"envbuild-{secrets.token_hex(8)}"
    keep_id = keeps_id(spec, rootless=client.rootless)
    argv = podman_argv(
        client.program, client.endpoint, spec,
        name=name, keep_id=keep_id, limits=client.limits, seccomp=client.seccomp,
    )  # fmt: skip
    held = _Held(sink)
    streams = Streams(held)
    began = time.monotonic()
    try:
        code, late = process.watch(
            argv,
            on_data=streams.keep,
            timeout=timeout,
            stop=lambda: _quietly(client, "kill", name),
            env=dict(spec.private),
        )
        seconds = time.monotonic() - began
        streams.finish()
        state = _state(client, name) if code in (*_NOT_STARTED, _KILLED) else {}
    finally:
        _quietly(client, "rm", "--force", "--time", "0", "--volumes", name)
    said = streams.text(STDERR)
    if code in _NOT_STARTED and _never_started(state) and "Error:" in said:
        # Not the program's: the caller tells it, or mends it.
        return _not_started(spec, client.limits, code, said)
    held.let_go()
    killed = late or code < 0
    return ContainerResult(
        exit_code=_KILLED if killed else code,
        stdout=streams.text(STDOUT),
        stderr=said,
        # Conmon does not notice every kill of the kernel's (none under cgroup v1 with 2.1.6, measured); of a container
        # with a limit that somebody else has not killed, it is the likely reason.
        oom_killed=not killed and (bool(state.get("OOMKilled")) or (code == _KILLED and spec.memory_bytes is not None)),
        timed_out=late,
        seconds=seconds,
    )


def _not_started(spec: ContainerSpec, limits: Limits, code: int, said: str) -> ContainerResult | _Refused:
    words = process.last_words(said)
    doing = f"run a container of {spec.image}"
    if _MEMLOCK.search(words) and spec.memlock is not None:
        return "memlock"
    if _OTHER_LIMITS.search(words) and not limits:
        return "others"
    if fault := known_fault(words):
        raise GpuStartError(words, fault, doing=doing)
    if code == _NOT_STARTED[0] or not _NO_PROGRAM.search(words):
        raise EngineError(f"cannot {doing}: {words}", hint=hint(words))
    return ContainerResult(exit_code=code, stdout="", stderr=said, oom_killed=False, timed_out=False, seconds=0.0)


def hint(said: str) -> str:
    """What to do about a failure of podman's, by its words."""
    if re.search(r"subuid|subgid|newuidmap|newgidmap|insufficient UIDs|lchown|potentially insufficient", said):
        return (
            "rootless Podman needs ids to map: a line for this user in /etc/subuid and /etc/subgid (usermod "
            "--add-subuids 100000-165535 --add-subgids 100000-165535 USER), the programs newuidmap and newgidmap "
            "(package uidmap, shadow-utils), then: podman system migrate"
        )
    if found := re.search(r"/dev/(fuse|net/tun)[^/]{0,40}(Permission denied|No such file)", said):
        return (
            f"rootless Podman needs the device /dev/{found[1]}, and this user may not open it: as root chmod 0666 "
            f"/dev/{found[1]}, as it usually is, after modprobe {found[1].rpartition('/')[2]} where it is missing"
        )
    if "no space left on device" in said:
        return "the disk is full: podman system df shows why"
    if "rlimit" in said.lower():
        return "set default_ulimits in containers.conf to what this host allows (ulimit -Hn, ulimit -Hu)"
    if "cgroup" in said:
        return "another OCI runtime or cgroup manager may work here: runtime and cgroup_manager in containers.conf"
    if "short-name" in said or "image not known" in said:
        return "podman images shows what there is"
    return "`podman info` must work on the engine's host first"


class _Held:
    """Keeps podman's own complaint back until it is known not to be the program's."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._held: list[Event] = []

    def __call__(self, event: Event) -> None:
        if isinstance(event, StepLine) and event.text.startswith("Error: ") and not self._held:
            self._held.append(event)
            return
        self.let_go()
        self._sink(event)

    def let_go(self) -> None:
        """Tell what is held back."""
        for event in self._held:
            self._sink(event)
        self._held.clear()


def _never_started(state: dict[str, Any]) -> bool:
    return not state or str(state.get("StartedAt", "")).startswith("0001-")


def _state(client: Client, name: str) -> dict[str, Any]:
    with contextlib.suppress(EngineError, ValueError):
        argv = client.line("container", "inspect", "--format", "{{json .State}}", name)
        said = json.loads(process.run(argv, timeout=_CALL_SECONDS).stdout)
        return said if isinstance(said, dict) else {}
    return {}


def _quietly(client: Client, *words: str) -> None:
    """A call that never raises: a container that could not be removed is left to the next run's sweep."""
    with contextlib.suppress(EngineError):
        process.run(client.line(*words), timeout=_CALL_SECONDS)
