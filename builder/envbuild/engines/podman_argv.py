"""Podman's command lines, as pure functions of a request."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from envbuild.engines.argv import build_options, run_options
from envbuild.engines.podman_builds import mark
from envbuild.engines.types import BuildRequest, ContainerSpec


def client_argv(client: str, endpoint: str | None) -> tuple[str, ...]:
    """How every podman command line begins: the service at ``endpoint``, or podman itself on this host."""
    return (client, "--url", endpoint) if endpoint else (client,)


def podman_argv(
    client: str,
    endpoint: str | None,
    spec: ContainerSpec,
    *,
    name: str | None = None,
    keep_id: bool = False,
    limits: Mapping[str, tuple[int, int]] | None = None,
    seccomp: Path | None = None,
) -> tuple[str, ...]:
    """The command line that starts just the container that ``run_argv`` and ``create_payload`` describe for Docker.

    GPUs go by CDI, one device each (names: nvidia-ctk cdi generate). Where the two engines' defaults differ, Docker's
    are asked for.

    Args:
        name: Of a container that somebody else removes; without a name it goes with its end.
        keep_id: The user of ``spec`` is the user of this host, also where an engine without root maps users.
        limits: Resource limits, soft and hard, in place of Podman's own.
        seccomp: Filter of system calls in place of Podman's own.
    """
    argv = [*client_argv(client, endpoint), "run", *(("--name", name, "--log-driver", "none") if name else ("--rm",))]
    # It is here already, by id or name: an image that is not there is an error, nothing to look for in a registry.
    argv += ["--pull", "never", "--http-proxy=false"]
    if spec.read_only:
        argv.append("--read-only-tmpfs=false")
    if keep_id:
        argv += ["--userns", "keep-id"]
    if spec.mounts or spec.gpus:
        # Where SELinux is enforced, files of the host have labels that no container may read; relabelling would
        # change them for everybody (podman-run(1), --security-opt label=disable).
        argv += ["--security-opt", "label=disable"]
    if seccomp is not None:
        argv += ["--security-opt", f"seccomp={seccomp}"]
    for limit, (soft, hard) in (limits or {}).items():
        argv += ["--ulimit", f"{limit}={soft}:{hard}"]
    gpus = tuple(part for gpu in spec.gpus for part in ("--device", f"nvidia.com/gpu={gpu}"))
    # Podman fills a tmpfs with what the image has there; Docker's is empty.
    tmpfs = tuple((target, f"{options},notmpcopyup" if options else "notmpcopyup") for target, options in spec.tmpfs)
    return (*argv, *run_options(replace(spec, tmpfs=tmpfs), gpus))


def build_argv(client: str, endpoint: str | None, request: BuildRequest) -> tuple[str, ...]:
    """The build of ``request``.

    In Docker's format: the config that is exported is then, byte for byte, the config that the image's id is the digest
    of. Secrets, cache mounts and bind mounts of RUN are Buildah's own; the proxies of this host are not handed in.
    """
    argv = [*client_argv(client, endpoint), "build", "--format", "docker", "--pull=missing", "--http-proxy=false"]
    argv += build_options(request)
    if endpoint is None:
        argv += mark(request.owner)
    return (*argv, str(request.context))


def keeps_id(spec: ContainerSpec, *, rootless: bool) -> bool:
    """Whether ``spec`` runs as the user of this host on an engine that would map that user to another one."""
    return rootless and spec.user is not None and spec.user.partition(":")[0] == str(os.getuid()) != "0"
