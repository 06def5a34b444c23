"""Containers with GPUs on Podman, through its own command line.

Podman answers Docker's API, but takes a request for GPUs there and ignores it
(https://github.com/containers/podman/issues/22645); its own ``--device nvidia.com/gpu=...`` (CDI, from Podman 4.1 on)
gives them.
"""

from __future__ import annotations

import contextlib
import re
import secrets
import time
from dataclasses import replace

from envbuild import process
from envbuild.engines.argv import podman_argv
from envbuild.engines.gpufaults import GpuStartError, known_fault
from envbuild.engines.types import ContainerResult, ContainerSpec
from envbuild.errors import EngineError

# What podman run exits with when podman itself failed, and when it cannot start the program; over its API the second
# stands for everything that keeps a container from starting (measured with 4.3.1).
_OWN_FAILURE, _NOT_STARTED = 125, (125, 126, 127)
# What is left when the program itself is not there, or may not be executed: the container's result, as with Docker.
_NO_PROGRAM = re.compile(r'exec: "|executable file|open executable')
# runc names a limit by its number in Linux (asm-generic/resource.h): 8 is RLIMIT_MEMLOCK.
_RLIMIT_MEMLOCK = "rlimit type 8"
_REMOVE_SECONDS = 60.0


def run(client: str, endpoint: str, spec: ContainerSpec, *, timeout: float | None) -> ContainerResult:
    """Run a container to its end; one that is still running after ``timeout`` seconds is removed.

    An engine that may not set the locked-memory limit runs it under its own, which is the stricter test.

    What a container that had to be removed had printed is lost, and whether the kernel killed a process of it for
    memory is not known: its exit code is 137 then.

    Raises:
        GpuStartError: It cannot get its GPUs.
        EngineError: Podman failed in another way.
    """
    name = f"envbuild-{secrets.token_hex(8)}"
    argv = podman_argv(client, endpoint, replace(spec, interactive=False, stdin=False), name=name)
    began = time.monotonic()
    try:
        done = process.run(argv, timeout=timeout)
    except process.TimedOut:
        _remove(client, endpoint, name)
        return ContainerResult(exit_code=137, stdout="", stderr="", oom_killed=False, timed_out=True,
                               seconds=time.monotonic() - began)  # fmt: skip
    except BaseException:
        _remove(client, endpoint, name)
        raise
    if done.returncode in _NOT_STARTED and done.stderr.lstrip().startswith("Error:"):
        _remove(client, endpoint, name)
        said = " ".join(done.stderr.split())[-1000:]
        doing = f"run a container of {spec.image}"
        if _RLIMIT_MEMLOCK in said and spec.memlock is not None:
            return run(client, endpoint, replace(spec, memlock=None), timeout=timeout)
        if fault := known_fault(said):
            raise GpuStartError(said, fault, doing=doing)
        if done.returncode == _OWN_FAILURE or not _NO_PROGRAM.search(said):
            raise EngineError(f"cannot {doing}: {said}", hint="`podman info` must work on the engine's host first")
    return ContainerResult(exit_code=done.returncode, stdout=done.stdout, stderr=done.stderr, oom_killed=False,
                           timed_out=False, seconds=time.monotonic() - began)  # fmt: skip


def _remove(client: str, endpoint: str, name: str) -> None:
    with contextlib.suppress(EngineError):
        process.run((client, "--url", endpoint, "rm", "--force", name), timeout=_REMOVE_SECONDS)
