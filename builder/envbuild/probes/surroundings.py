"""What a container gives its processes: CPUs, memory, shared memory, limits, the user. Linux only.

Standard library only, Python 3.7 and later. Loaded by its path, like ``common.py``.
"""

import contextlib
import os
import platform
import resource
import sys


def _read(path):
    try:
        with open(path, "rb") as stream:
            return stream.read(65536).decode("utf-8", "replace").strip()
    except OSError:
        return None


def usable_cpus():
    """CPUs this container may use: affinity, cut by a cgroup quota."""
    count = len(os.sched_getaffinity(0))
    quota = (_read("/sys/fs/cgroup/cpu.max") or "").split()
    if len(quota) != 2:
        quota = [
            _read("/sys/fs/cgroup/cpu/cpu.cfs_quota_us") or "-1",
            _read("/sys/fs/cgroup/cpu/cpu.cfs_period_us") or "100000",
        ]
    try:
        allowed = float(quota[0]) / float(quota[1])
    except (ValueError, ZeroDivisionError):
        return count
    return count if allowed <= 0 else max(1, min(count, int(allowed + 0.5)))


def memory():
    """The cgroup's memory limit in bytes and its count of out-of-memory kills; None where not readable."""
    limit = _read("/sys/fs/cgroup/memory.max") or _read("/sys/fs/cgroup/memory/memory.limit_in_bytes")
    events = _read("/sys/fs/cgroup/memory.events") or _read("/sys/fs/cgroup/memory/memory.oom_control")
    kills = None
    for line in (events or "").splitlines():
        name, _, value = line.partition(" ")
        if name == "oom_kill" and value.isdigit():
            kills = int(value)
    return {"limit_bytes": int(limit) if limit and limit.isdigit() else None, "oom_kills": kills}


def _shared_memory():
    try:
        figures = os.statvfs("/dev/shm")
    except OSError as error:
        return {"total_bytes": None, "free_bytes": None, "error": str(error)}
    return {
        "total_bytes": figures.f_blocks * figures.f_frsize,
        "free_bytes": figures.f_bavail * figures.f_frsize,
        "writable": os.access("/dev/shm", os.W_OK),
    }


def disk(folder):
    """A folder as async_io needs it: writable, and opened past the page cache (O_DIRECT), which some kinds refuse."""
    figures = {"direct": False, "error": None, "kind": None, "free_bytes": None}
    name = os.path.join(folder, "envbuild-direct")
    try:
        figures["kind"] = _mount_kind(folder)
        space = os.statvfs(folder)
        figures["free_bytes"] = space.f_bavail * space.f_frsize
        os.close(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_DIRECT, 0o600))
        figures["direct"] = True
    except OSError as error:
        figures["error"] = str(error)
    with contextlib.suppress(OSError):
        os.unlink(name)
    return figures


def _mount_kind(folder):
    """The kind of file system that holds a folder, such as ext4; the last mount that covers it counts."""
    folder, kind, longest = os.path.realpath(folder), None, -1
    for line in (_read("/proc/self/mountinfo") or "").splitlines():
        before, _, after = line.partition(" - ")
        words = before.split()
        place = words[4] if len(words) > 4 else ""
        inside = folder == place or folder.startswith(place.rstrip("/") + "/")
        if after and inside and len(place) >= longest:
            kind, longest = after.split()[0], len(place)
    return kind


def measure():
    """Everything of it, as raw numbers (bytes, counts)."""
    soft, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return {
        "uid": os.getuid(),
        "gid": os.getgid(),
        "cpus": usable_cpus(),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "memlock_bytes": [None if value == resource.RLIM_INFINITY else value for value in (soft, hard)],
        "shm": _shared_memory(),
        "memory": memory(),
        "python": sys.executable,
        "nvidia_driver": _read("/sys/module/nvidia/version"),
    }
