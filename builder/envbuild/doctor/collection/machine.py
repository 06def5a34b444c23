"""The host, or the container as it looks from inside."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from envbuild.doctor.collection.base import Seen


class Cpu(Seen):
    """``level`` such as x86-64-v3; ``usable`` counts what affinity and the cgroup's quota leave."""

    model: str | None = None
    machine: str | None = None
    flags: tuple[str, ...] = ()
    level: str | None = None
    count: int | None = None
    usable: int | None = None


class Distribution(Seen):
    """os-release: ``id`` such as rhel, ``like`` such as (fedora,)."""

    id: str | None = None
    version: str | None = None
    name: str | None = None
    like: tuple[str, ...] = ()


class Memory(Seen):
    """In bytes. ``limit`` and ``used`` are the cgroup's; None without one."""

    total: int | None = None
    available: int | None = None
    swap: int | None = None
    limit: int | None = None
    used: int | None = None
    oom_kills: int | None = None


class Shm(Seen):
    """/dev/shm, in bytes; ``kind`` is the file system's."""

    total: int | None = None
    free: int | None = None
    writable: bool | None = None
    kind: str | None = None


class Disk(Seen):
    """A folder that is written to, and what is free on its disk, in bytes.

    Attributes:
        use: ``cache`` (torch's compiled ops), ``temporary`` or ``images`` (the container engine's).
        writable: Whether this user may write there, or make the folder.
        inodes: How many files more fit; None where the file system does not count them.
    """

    use: str
    path: str
    free: int | None = None
    writable: bool = True
    inodes: int | None = None


class NumaNode(Seen):
    """One node; memory in bytes. A node without CPUs is memory alone (CXL, HBM)."""

    node: int
    cpus: int
    total: int | None = None
    free: int | None = None


class Interface(Seen):
    """A network interface.

    Attributes:
        virtual: Neither a device's, nor one that stands on a device (a bond, a VLAN).
        part: Of a bond or a bridge, which has the address in its place.
    """

    name: str
    up: bool
    virtual: bool
    loopback: bool = False
    part: bool = False


class Machine(Seen):
    """The host, or the container as it looks from inside.

    Attributes:
        container: What holds the process (docker, podman, lxc, kubernetes, apptainer, ...), None on a bare host.
        memlock: RLIMIT_MEMLOCK in bytes, soft and hard; None is unlimited.
        ipc_lock: The process may lock more than that (CAP_IPC_LOCK).
        selinux: enforcing, permissive or disabled; None where the kernel has none.
        modules: Kernel modules of interest that are loaded, with their versions.
        infiniband: Names of devices.
    """

    kernel: str | None = None
    distribution: Distribution = Distribution()
    glibc: str | None = None
    cpu: Cpu = Cpu()
    memory: Memory = Memory()
    shm: Shm = Shm()
    disks: tuple[Disk, ...] = ()
    memlock: tuple[int | None, int | None] | None = None
    ipc_lock: bool | None = None
    nofile: tuple[int | None, int | None] | None = None
    container: str | None = None
    wsl: bool = False
    uid: int | None = None
    selinux: Literal["enforcing", "permissive", "disabled"] | None = None
    numa: tuple[NumaNode, ...] = ()
    numa_balancing: bool | None = None
    interfaces: tuple[Interface, ...] = ()
    infiniband: tuple[str, ...] = ()
    modules: dict[str, str] = Field(default_factory=dict)


class NvmePath(Seen):
    """A folder that offload would swap to (``--nvme``), as it is.

    Attributes:
        device: The block device behind it; ``rotational`` is its queue's word.
        options: Mount options.
        direct: O_DIRECT works in it.
        bandwidth: With --bench: bytes a second, read and write past the page cache.
    """

    path: str
    exists: bool = False
    writable: bool = False
    kind: str | None = None
    device: str | None = None
    rotational: bool | None = None
    options: tuple[str, ...] = ()
    free: int | None = None
    direct: bool | None = None
    error: str | None = None
    read_bandwidth: float | None = None
    write_bandwidth: float | None = None


class Bench(Seen):
    """With --bench: bytes a second of a copy in host memory."""

    memory_bandwidth: float | None = None


class Owner(Seen):
    """The operating system's package that a file belongs to, and when the package manager last changed something."""

    name: str
    version: str


class System(Seen):
    """The operating system's packages that matter: name -> version, and the last transactions (for --since).

    Attributes:
        manager: dpkg or rpm.
        transactions: When and what, newest last, such as ``2026-11-28 upgrade libaio1 0.3.113-4 -> 0.3.113-5``.
    """

    manager: Literal["dpkg", "rpm"] | None = None
    packages: dict[str, str] = Field(default_factory=dict)
    transactions: tuple[str, ...] = ()
