"""What engines are asked for and what they answer, as values."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildRequest:
    """One image build.

    Attributes:
        context: Folder whose files the build may read.
        dockerfile: The Dockerfile; it may lie outside the context.
        tag: Name the image gets when, and only when, the build succeeds.
        target: Stage to build; None builds the last one.
        build_args: Values for ARG. They end up in the image's history: never a secret.
        labels: Labels of the image.
        secrets: Files that RUN steps mount by id; they never become part of a layer.
        network: Network of the RUN steps, such as ``host``; None is the engine's default.
        no_cache: Run every step again.
        platform: Such as ``linux/amd64``.
        owner: Labels of the run that builds, for what the build leaves behind when it is killed; never the image's.
    """

    context: Path
    dockerfile: Path
    tag: str
    platform: str
    target: str | None = None
    build_args: tuple[tuple[str, str], ...] = ()
    labels: tuple[tuple[str, str], ...] = ()
    secrets: tuple[tuple[str, Path], ...] = ()
    network: str | None = None
    no_cache: bool = False
    owner: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """A file or folder of the engine's host, seen inside a container; the source must exist."""

    source: Path
    target: str
    read_only: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerSpec:
    """One container, the same for the engine's API and for the docker command line.

    Attributes:
        image: Name or id.
        private: Variables whose values stand on no command line: the client that starts it gets them from its own
            environment.
        argv: The whole command; the image's own entrypoint is then out of the game, so that what runs is
            what is written here. Empty: whatever the image runs by itself.
        tmpfs: Target and options, such as ``("/tmp", "rw,exec,size=64m")``; Docker's default is noexec.
        user: ``uid`` or ``uid:gid``; None is the image's user.
        network: Such as ``none`` or ``host``; None is the engine's default.
        shm_bytes: Size of /dev/shm; None is the engine's default (64 MiB in Docker).
        memlock: RLIMIT_MEMLOCK in bytes, -1 for unlimited, None for the engine's default.
        memory_bytes: Memory limit, with swap counted in; None is no limit.
        cpu_shares: Its weight where the CPUs do not suffice for all, as Docker counts (1024 is everybody's); None is
            the engine's default. Docker alone is told: all the steps of its builds have one weight together, and
            rootless Podman may have no say over CPUs.
        gpus: ``("all",)`` or GPU/MIG UUIDs; empty is no GPU.
        interactive: A terminal and stdin, for people.
        stdin: stdin without a terminal, for pipes.
    """

    image: str
    argv: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    private: tuple[tuple[str, str], ...] = ()
    mounts: tuple[Mount, ...] = ()
    tmpfs: tuple[tuple[str, str], ...] = ()
    user: str | None = None
    network: str | None = None
    shm_bytes: int | None = None
    memlock: int | None = None
    memory_bytes: int | None = None
    cpu_shares: int | None = None
    read_only: bool = False
    gpus: tuple[str, ...] = ()
    labels: tuple[tuple[str, str], ...] = ()
    workdir: str | None = None
    cap_drop_all: bool = False
    no_new_privileges: bool = False
    interactive: bool = False
    stdin: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerResult:
    """A container that ended, by itself or not.

    Attributes:
        exit_code: As the engine reports it; 127 when the command does not exist in the image.
        stdout: What it printed, undecodable bytes replaced; complete up to the point where it ended.
        oom_killed: The kernel killed a process of it for memory.
        timed_out: It was killed because its time was up.
        seconds: From start to end.
    """

    exit_code: int
    stdout: str
    stderr: str
    oom_killed: bool
    timed_out: bool
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageInfo:
    """What an engine says about an image it has.

    ``id`` is the engine's own name for it and differs between image stores; an image's identity is
    read from its exported config, never from here. ``size`` is in bytes.
    """

    id: str
    diff_ids: tuple[str, ...]
    labels: tuple[tuple[str, str], ...]
    env: tuple[tuple[str, str], ...]
    architecture: str
    os: str
    size: int
    created: str
    repo_tags: tuple[str, ...]
    repo_digests: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerInfo:
    """A container that exists, running or not."""

    id: str
    image: str
    state: str
    labels: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineInfo:
    """The engine that answered.

    Attributes:
        root: The folder of its data on its own host.
        rootless: It runs as a user without root.
    """

    kind: str
    version: str
    endpoint: str
    storage_driver: str
    cgroup: str
    cpus: int
    memory_bytes: int
    runtimes: tuple[str, ...]
    root: str = ""
    rootless: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteAnswer:
    """What a registry said about a reference: a manifest digest, or why there is none."""

    digest: str | None
    reason: str = ""
