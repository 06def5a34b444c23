"""The processor, the memory, and what a control group leaves of both."""

import os
import re

from .common import unique

# x86-64 psABI, "Micro-Architecture Levels", by the names that /proc/cpuinfo has for the features.
_LEVELS = (
    ("x86-64-v2", "cx16 lahf_lm popcnt sse4_1 sse4_2 ssse3"),
    ("x86-64-v3", "avx avx2 bmi1 bmi2 f16c fma abm movbe xsave"),
    ("x86-64-v4", "avx512f avx512bw avx512cd avx512dq avx512vl"),
)
# A limit of 2^60 bytes is cgroup v1's way to say that there is none (PAGE_COUNTER_MAX).
_NO_LIMIT = 1 << 60
_V1, _V2 = "/sys/fs/cgroup/memory", "/sys/fs/cgroup"


def cpu(host):
    """The processor; ``usable`` is what affinity and a cgroup's quota leave."""
    text = host.text("/proc/cpuinfo") or ""
    fields = dict(re.findall(r"^([^\t:]+?)\s*:[ ]?(.*)$", text.split("\n\n")[0], re.M))
    flags = (fields.get("flags") or fields.get("Features") or "").split()
    machine = os.uname().machine
    return {
        "model": fields.get("model name"),
        "machine": machine,
        "flags": flags,
        "level": level(flags) if machine == "x86_64" else None,
        "count": os.cpu_count(),
        "usable": usable(host),
    }


def level(flags):
    """The highest x86-64 level that all flags are there for."""
    found = "x86-64"
    for name, wanted in _LEVELS:
        if not set(wanted.split()) <= set(flags):
            break
        found = name
    return found


def usable(host):
    """CPUs that this process may use; a quota of 1.5 CPUs counts as 2."""
    count = len(os.sched_getaffinity(0))
    for folder in _folders(host, "cpu"):
        quota = (host.text(folder + "/cpu.max") or "").split()
        if len(quota) != 2:
            quota = [host.text(folder + "/cpu.cfs_quota_us") or "-1", host.text(folder + "/cpu.cfs_period_us") or "0"]
        if all(part.lstrip("-").isdigit() for part in quota) and int(quota[0]) > 0 and int(quota[1]) > 0:
            count = min(count, max(1, -(-int(quota[0]) // int(quota[1]))))
    return count


def memory(host):
    """In bytes. ``used`` is without the page cache that the kernel would give back at once."""
    fields = dict(re.findall(r"^(\w+):\s+(\d+) kB", host.text("/proc/meminfo") or "", re.M))
    kib = {name: int(value) * 1024 for name, value in fields.items()}
    found = {
        "total": kib.get("MemTotal"),
        "available": kib.get("MemAvailable"),
        "swap": kib.get("SwapTotal"),
        "limit": None,
        "used": None,
        "oom_kills": None,
    }
    for folder in _folders(host, "memory"):
        limits = (host.text(folder + "/" + name) or "" for name in ("memory.max", "memory.limit_in_bytes"))
        limit = next((int(text) for text in limits if text.isdigit()), None)
        if limit is not None and limit < _NO_LIMIT and (found["limit"] is None or limit < found["limit"]):
            found["limit"] = limit
            found["used"] = _used(host, folder)
    for folder in _folders(host, "memory")[:1]:
        events = (host.text(folder + "/memory.events") or "") + "\n" + (host.text(folder + "/memory.oom_control") or "")
        kills = re.search(r"^oom_kill (\d+)$", events, re.M)
        found["oom_kills"] = int(kills.group(1)) if kills else None
    return found


def _used(host, folder):
    used = host.number(folder + "/memory.current")
    if used is None:
        used = host.number(folder + "/memory.usage_in_bytes")
    cache = re.search(r"^(?:total_)?inactive_file (\d+)$", host.text(folder + "/memory.stat") or "", re.M)
    return max(0, used - int(cache.group(1))) if used is not None and cache else used


def _folders(host, controller):
    """The folders of this process's control group and of those above it, the nearest first.

    Inside a container the group's path may be the host's, which is not to be seen there: then the mount itself is
    the container's group.
    """
    folders = []
    for line in (host.text("/proc/self/cgroup") or "").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers == "":
            mount = _V2 if host.exists(_V2 + "/cgroup.controllers") else _V2 + "/unified"
        elif controller in controllers.split(","):
            mount = _V1 if controller == "memory" else _V2 + "/" + controllers
            if controller == "cpu" and not host.exists(mount):
                mount = _V2 + "/cpu"
        else:
            continue
        parts = [part for part in path.split("/") if part and part != ".."]
        folders += ["/".join([mount, *parts[:length]]) for length in range(len(parts), -1, -1)]
    return unique(folder for folder in folders if host.exists(folder))


def numa(host):
    """The NUMA nodes; one without CPUs is memory alone."""
    base = "/sys/devices/system/node"
    found = []
    for name in host.names(base):
        if re.match(r"node\d+$", name):
            text = host.text("{}/{}/meminfo".format(base, name)) or ""
            kib = {key: int(value) * 1024 for key, value in re.findall(r"(MemTotal|MemFree):\s+(\d+) kB", text)}
            cpus = count_cpus(host.text("{}/{}/cpulist".format(base, name)) or "")
            found.append(
                {"node": int(name[4:]), "cpus": cpus, "total": kib.get("MemTotal"), "free": kib.get("MemFree")}
            )
    return sorted(found, key=lambda node: node["node"])


def count_cpus(text):
    """How many CPUs a list such as 0-15,32-47 names."""
    ranges = re.findall(r"(\d+)(?:-(\d+))?", text)
    return sum(int(last or first) - int(first) + 1 for first, last in ranges)
