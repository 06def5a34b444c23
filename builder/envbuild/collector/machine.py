"""The host, or the container as it looks from inside: kernel, system, limits, network."""

import os
import re
import resource

from . import disks, hardware

# Kernel modules that a training run depends on, or suffers from.
_MODULES = (
    "nvidia", "nvidia_uvm", "nvidia_drm", "nvidia_modeset", "nvidia_peermem", "nv_peer_mem", "nvidia_fs", "gdrdrv",
    "nouveau", "amdgpu", "ib_core", "ib_uverbs", "ib_umad", "ib_ipoib", "mlx4_core", "mlx5_core", "mlx5_ib", "rdma_cm",
    "efa", "irdma", "bnxt_re", "xpmem", "knem",
)  # fmt: skip
_LOOPBACK, _UP = "772", 1  # ARPHRD_LOOPBACK (if_arp.h), IFF_UP (if.h)
_CAP_IPC_LOCK = 14  # linux/capability.h
_ALL_USERS = ["0", "0", "4294967295"]  # a user namespace that is the first one (user_namespaces(7))


def machine(host, parts):
    """Everything about the machine; what cannot be read is left out and noted."""

    def part(name, work, default=None):
        return parts.run("machine." + name, work, default)

    return {
        "kernel": os.uname().release,
        "distribution": part("distribution", lambda: distribution(host), {}),
        "glibc": part("glibc", glibc),
        "cpu": part("cpu", lambda: hardware.cpu(host), {}),
        "memory": part("memory", lambda: hardware.memory(host), {}),
        "shm": part("shm", lambda: shm(host), {}),
        "disks": part("disks", lambda: disks.disks(host), []),
        "memlock": part("limits", lambda: limit(resource.RLIMIT_MEMLOCK)),
        "ipc_lock": part("limits", lambda: ipc_lock(host)),
        "nofile": part("limits", lambda: limit(resource.RLIMIT_NOFILE)),
        "container": part("container", lambda: container(host)),
        "wsl": bool(re.search(r"microsoft|wsl", host.text("/proc/sys/kernel/osrelease") or "", re.I)),
        "uid": os.getuid(),
        "selinux": part("selinux", lambda: selinux(host)),
        "numa": part("numa", lambda: hardware.numa(host), []),
        "numa_balancing": {"0": False, "1": True, "2": True}.get(host.text("/proc/sys/kernel/numa_balancing") or ""),
        "interfaces": part("interfaces", lambda: interfaces(host), []),
        "infiniband": host.names("/sys/class/infiniband"),
        "modules": part("modules", lambda: modules(host), {}),
    }


def distribution(host):
    """os-release, as os-release(5) describes it."""
    text = host.text("/etc/os-release") or host.text("/usr/lib/os-release") or ""
    fields = {}
    for line in text.splitlines():
        name, separator, value = line.strip().partition("=")
        if separator and re.match(r"[A-Z0-9_]+$", name):
            fields[name] = re.sub(r"\\([$\"`\\])", r"\1", value.strip("\"'"))
    return {
        "id": fields.get("ID"),
        "version": fields.get("VERSION_ID"),
        "name": fields.get("PRETTY_NAME") or fields.get("NAME"),
        "like": fields.get("ID_LIKE", "").split(),
    }


def glibc():
    """Version of the C library of this very process; None where it is another one than glibc."""
    try:
        return (os.confstr("CS_GNU_LIBC_VERSION") or "").partition(" ")[2] or None
    except (ValueError, OSError):
        return None


def limit(number):
    """A resource limit, soft and hard; None is unlimited."""
    return [None if value == resource.RLIM_INFINITY else value for value in resource.getrlimit(number)]


def ipc_lock(host):
    """Whether this process may lock memory beyond its limit: CAP_IPC_LOCK of the first user namespace (mlock(2))."""
    found = re.search(r"^CapEff:\s*([0-9a-f]+)$", host.text("/proc/self/status") or "", re.M)
    if not found:
        return None
    return bool(int(found.group(1), 16) >> _CAP_IPC_LOCK & 1) and (
        (host.text("/proc/self/uid_map") or "").split() == _ALL_USERS
    )


def mounts(host):
    """The mounts as (device number, mount point, kind, source, options), in their order (proc(5), mountinfo)."""
    found = []
    for line in (host.text("/proc/self/mountinfo") or "").splitlines():
        left, separator, right = line.partition(" - ")
        fields, rest = left.split(" "), right.split(" ")
        if separator and len(fields) >= 6 and len(rest) >= 2:
            options = fields[5].split(",") + (rest[2].split(",") if len(rest) > 2 else [])
            found.append((fields[2], unescaped(fields[4]), rest[0], unescaped(rest[1]), list(dict.fromkeys(options))))
    return found


def unescaped(text):
    """A path of mountinfo, where a blank is \\040."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found.group(1), 8)), text)


def shm(host):
    """/dev/shm; where there is none, it has no room and cannot be written."""
    found = {"total": 0, "free": 0, "writable": False, "kind": None}
    if not host.exists("/dev/shm"):
        return found
    state = os.statvfs(host.path("/dev/shm"))
    found["total"] = state.f_blocks * state.f_frsize
    found["free"] = state.f_bavail * state.f_frsize
    found["writable"] = os.access(host.path("/dev/shm"), os.W_OK)
    kinds = [kind for _, point, kind, _, _ in mounts(host) if os.path.realpath("/dev/shm") == point]
    found["kind"] = kinds[-1] if kinds else None
    return found


def container(host):
    """What holds this process; None on a bare host."""
    environ = host.environ
    if environ.get("KUBERNETES_SERVICE_HOST") or host.exists("/var/run/secrets/kubernetes.io"):
        return "kubernetes"
    if host.exists("/run/.containerenv"):
        return "podman"
    if host.exists("/.dockerenv"):
        return "docker"
    if host.exists("/.singularity.d"):
        return "apptainer"
    groups = host.text("/proc/1/cgroup") or ""
    for word, kind in (("kubepods", "kubernetes"), ("docker", "docker"), ("libpod", "podman"), ("lxc", "lxc")):
        if re.search(r"[/-]" + word, groups):
            return kind
    # Readable by the process's own user alone, which inside a container is often this one.
    marks = re.findall(r"(?:^|\0)container=([a-z-]+)", host.text("/proc/1/environ") or "")
    return (marks[0] if marks else environ.get("container")) or None


def selinux(host):
    """What the kernel enforces; None where it has no SELinux or does not show it."""
    enforce = host.text("/sys/fs/selinux/enforce")
    if enforce in ("0", "1"):
        return "enforcing" if enforce == "1" else "permissive"
    # A container is not shown what the host's kernel enforces, and its image may have brought the file.
    if host.exists("/sys/fs/selinux") or container(host):
        return None
    return "disabled" if re.search(r"^SELINUX=(\w+)", host.text("/etc/selinux/config") or "", re.M) else None


def interfaces(host):
    """The network's interfaces, without their addresses."""
    found = []
    for name in host.names("/sys/class/net"):
        base = "/sys/class/net/" + name
        if not os.path.isdir(host.path(base)):
            continue  # bonding_masters is a file
        try:
            flags = int(host.text(base + "/flags") or "0", 16)
        except ValueError:
            flags = 0
        loopback = host.text(base + "/type") == _LOOPBACK
        found.append(
            {
                "name": name,
                # "unknown" is what a loopback or a tunnel says: such drivers know no carrier.
                "up": bool(flags & _UP) and host.text(base + "/operstate") in ("up", "unknown", None),
                "virtual": not loopback and not physical(host, name),
                "loopback": loopback,
                "part": host.exists(base + "/master"),
            }
        )
    return found


def physical(host, name, depth=4):
    """Whether an interface has a device, or stands on one that has: a bond, a VLAN, a bridge with a port outside."""
    base = "/sys/class/net/" + name
    if "/devices/virtual/" not in os.path.realpath(host.path(base)):
        return True
    below = [each[len("lower_") :] for each in host.names(base) if each.startswith("lower_")]
    return depth > 0 and any(physical(host, each, depth - 1) for each in below)


def modules(host):
    """The modules of interest that are loaded; "" where one tells no version."""
    loaded = set(host.names("/sys/module")) & set(_MODULES)
    return {name: host.text("/sys/module/{}/version".format(name)) or "" for name in sorted(loaded)}
