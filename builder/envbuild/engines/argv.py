"""Command lines and API payloads, as pure functions of a request."""

from __future__ import annotations

from envbuild.engines.types import BuildRequest, ContainerSpec

# Docker spells "every GPU" as a count of -1 in a device request.
_ALL_GPUS = -1


def build_argv(client: str, endpoint: str, request: BuildRequest, *, builder: str | None = None) -> tuple[str, ...]:
    """The BuildKit build of ``request`` as a docker command line.

    ``builder`` is one of buildx's, by name. What it builds it keeps to itself; ``--load`` brings it into the engine.
    """
    argv = [
        client,
        "--host",
        endpoint,
        *(("buildx", "build", "--builder", builder, "--load") if builder else ("build",)),
    ]
    argv.append("--progress=plain")
    argv += build_options(request)
    argv.append(str(request.context))
    return tuple(argv)


def build_options(request: BuildRequest) -> list[str]:
    """What either client calls the same."""
    argv = ["--file", str(request.dockerfile), "--tag", request.tag, "--platform", request.platform]
    if request.target is not None:
        argv += ["--target", request.target]
    if request.network is not None:
        argv += ["--network", request.network]
    if request.no_cache:
        argv.append("--no-cache")
    for key, value in request.build_args:
        argv += ["--build-arg", f"{key}={value}"]
    for key, value in request.labels:
        argv += ["--label", f"{key}={value}"]
    for name, path in request.secrets:
        argv += ["--secret", csv((("id", name), ("src", str(path))))]
    return argv


def run_argv(client: str, endpoint: str, spec: ContainerSpec) -> tuple[str, ...]:
    """The docker command line that starts just the container that ``create_payload`` describes."""
    argv = [client, "--host", endpoint, "run", "--rm"]
    gpus: tuple[str, ...] = ()
    if spec.gpus == ("all",):
        gpus = ("--gpus", "all")
    elif spec.gpus:
        # The flag is parsed as CSV: without these quotes the second UUID would be read as an option.
        gpus = ("--gpus", f'"device={",".join(spec.gpus)}"')
    if spec.cpu_shares is not None:
        argv += ["--cpu-shares", str(spec.cpu_shares)]
    return (*argv, *run_options(spec, gpus))


def run_options(spec: ContainerSpec, gpus: tuple[str, ...]) -> tuple[str, ...]:
    """What docker and podman call by the same names, up to the image and its command."""
    argv: list[str] = []
    if spec.interactive:
        argv += ["--interactive", "--tty"]
    elif spec.stdin:
        argv.append("--interactive")
    argv += gpus
    if spec.shm_bytes is not None:
        argv += ["--shm-size", str(spec.shm_bytes)]
    if spec.memlock is not None:
        argv += ["--ulimit", f"memlock={spec.memlock}:{spec.memlock}"]
    if spec.memory_bytes is not None:
        argv += ["--memory", str(spec.memory_bytes), "--memory-swap", str(spec.memory_bytes)]
    for flag, value in (("--user", spec.user), ("--network", spec.network), ("--workdir", spec.workdir)):
        if value is not None:
            argv += [flag, value]
    if spec.read_only:
        argv.append("--read-only")
    if spec.cap_drop_all:
        argv += ["--cap-drop", "ALL"]
    if spec.no_new_privileges:
        argv += ["--security-opt", "no-new-privileges"]
    for mount in spec.mounts:
        pairs = [("type", "bind"), ("source", str(mount.source)), ("target", mount.target)]
        argv += ["--mount", csv(pairs) + (",readonly" if mount.read_only else "")]
    for target, options in spec.tmpfs:
        argv += ["--tmpfs", f"{target}:{options}" if options else target]
    for key, value in spec.env:
        argv += ["--env", f"{key}={value}"]
    for key, _ in spec.private:
        argv += ["--env", key]
    for key, value in spec.labels:
        argv += ["--label", f"{key}={value}"]
    if spec.argv:
        argv += ["--entrypoint", ""]
    return (*argv, spec.image, *spec.argv)


def create_payload(spec: ContainerSpec) -> dict[str, object]:
    """The body of ``POST /containers/create`` (Engine API 1.41) for ``spec``."""
    host: dict[str, object] = {
        "Mounts": [
            {"Type": "bind", "Source": str(mount.source), "Target": mount.target, "ReadOnly": mount.read_only}
            for mount in spec.mounts
        ],
        "Tmpfs": dict(spec.tmpfs),
        "ReadonlyRootfs": spec.read_only,
        # The output is read from the attached streams; a copy in the engine's log would only fill its disk.
        "LogConfig": {"Type": "none", "Config": {}},
    }
    if spec.network is not None:
        host["NetworkMode"] = spec.network
    if spec.shm_bytes is not None:
        host["ShmSize"] = spec.shm_bytes
    if spec.memlock is not None:
        host["Ulimits"] = [{"Name": "memlock", "Soft": spec.memlock, "Hard": spec.memlock}]
    if spec.memory_bytes is not None:
        host |= {"Memory": spec.memory_bytes, "MemorySwap": spec.memory_bytes}
    if spec.cpu_shares is not None:
        host["CpuShares"] = spec.cpu_shares
    if spec.gpus:
        host["DeviceRequests"] = [_device_request(spec.gpus)]
    if spec.cap_drop_all:
        host["CapDrop"] = ["ALL"]
    if spec.no_new_privileges:
        host["SecurityOpt"] = ["no-new-privileges"]
    payload: dict[str, object] = {
        "Image": spec.image,
        "Env": [f"{key}={value}" for key, value in (*spec.env, *spec.private)],
        "Labels": dict(spec.labels),
        "AttachStdout": True,
        "AttachStderr": True,
        "OpenStdin": spec.interactive or spec.stdin,
        "Tty": spec.interactive,
        "HostConfig": host,
    }
    if spec.argv:
        payload |= {"Entrypoint": [], "Cmd": list(spec.argv)}
    if spec.user is not None:
        payload["User"] = spec.user
    if spec.workdir is not None:
        payload["WorkingDir"] = spec.workdir
    return payload


def _device_request(gpus: tuple[str, ...]) -> dict[str, object]:
    everything = gpus == ("all",)
    return {
        "Driver": "",
        "Count": _ALL_GPUS if everything else 0,
        "DeviceIDs": [] if everything else list(gpus),
        "Capabilities": [["gpu"]],
        "Options": {},
    }


def csv(pairs: tuple[tuple[str, str], ...] | list[tuple[str, str]]) -> str:
    """Key=value fields the way docker's flag parser reads them: CSV, quoted where a value needs it."""
    return ",".join(_quoted(f"{key}={value}") for key, value in pairs)


def _quoted(field: str) -> str:
    if any(character in field for character in ',"\n'):
        return '"' + field.replace('"', '""') + '"'
    return field
