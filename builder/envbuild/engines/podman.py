"""Containers with GPUs on Podman, through its own command line.

Podman answers Docker's API, but takes a request for GPUs there and ignores it
(https://github.com/containers/podman/issues/22645); its own ``--device nvidia.com/gpu=...`` (CDI, from Podman 4.1 on)
gives them.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from dataclasses import replace

from envbuild import process
from envbuild.engines.argv import podman_argv
from envbuild.engines.gpufaults import GpuStartError, known_fault
from envbuild.engines.types import ContainerResult, ContainerSpec
from envbuild.errors import EngineError

# What podman run exits with when podman itself failed, and not the program in the container.
_OWN_FAILURE = 125
_REMOVE_SECONDS = 60.0


def run(client: str, endpoint: str, spec: ContainerSpec, *, timeout: float | None) -> ContainerResult:
    """Run a container to its end; one that is still running after ``timeout`` seconds is removed.

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
    if done.returncode == _OWN_FAILURE:
        _remove(client, endpoint, name)
        said = " ".join(done.stderr.split())[-1000:]
        doing = f"run a container of {spec.image}"
        if fault := known_fault(said):
            raise GpuStartError(said, fault, doing=doing)
        raise EngineError(f"cannot {doing}: {said}", hint="`podman info` must work on the engine's host first")
    return ContainerResult(exit_code=done.returncode, stdout=done.stdout, stderr=done.stderr, oom_killed=False,
                           timed_out=False, seconds=time.monotonic() - began)  # fmt: skip


def _remove(client: str, endpoint: str, name: str) -> None:
    with contextlib.suppress(EngineError):
        process.run((client, "--url", endpoint, "rm", "--force", name), timeout=_REMOVE_SECONDS)
