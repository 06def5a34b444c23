"""Samples a node on one time axis, from a thread of the launcher: CPU, memory, disks and network, each rank, the GPUs.

What the kernel says under /proc is read, twice a second: a millisecond's work. A host's figures are the host's even in
a container, except the network's. Standard library only, Python 3.7 and later; loaded by its path.
"""

import contextlib
import importlib.util
import os
import threading
import time

INTERVAL = 0.5
# The kernel walks all pages of a process for its proportional share: not often.
_SHARE_EVERY = 10
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_SECTOR = 512  # /proc/diskstats counts in these, whatever the disk's are (Documentation/admin-guide/iostats.rst)
# A host's other end of a container's network: what goes through it goes through a card, too, or stays on the host.
_NO_NETWORKS = ("veth", "docker", "br-", "cni", "podman", "virbr")
_NO_DISKS = ("loop", "ram", "zram", "dm-", "md", "sr", "fd", "nbd")


def _lines(path):
    try:
        with open(path) as stream:
            return stream.read().splitlines()
    except OSError:
        return []


def host_cpu():
    """Seconds that all CPUs were busy, and seconds in all."""
    words = (_lines("/proc/stat") or [""])[0].split()
    if len(words) < 9:
        return None
    figures = [int(word) for word in words[1:9]]  # user nice system idle iowait irq softirq steal
    return (sum(figures) - figures[3] - figures[4]) / _TICKS, sum(figures) / _TICKS


def memory_used():
    """Bytes of the host's memory that nobody else can have."""
    found = {}
    for line in _lines("/proc/meminfo"):
        name, _, value = line.partition(":")
        if name in ("MemTotal", "MemAvailable"):
            found[name] = int(value.split()[0]) * 1024
    return found["MemTotal"] - found["MemAvailable"] if len(found) == 2 else None


def disks():
    """Bytes read from and written to each whole disk."""
    found = {}
    for line in _lines("/proc/diskstats"):
        words = line.split()
        whole = len(words) > 9 and not words[2].startswith(_NO_DISKS) and os.path.exists("/sys/block/" + words[2])
        if whole:
            found[words[2]] = (int(words[5]) * _SECTOR, int(words[9]) * _SECTOR)
    return found


def networks():
    """Bytes received and sent by each interface that leads to another machine."""
    found = {}
    for line in _lines("/proc/net/dev")[2:]:
        name, _, rest = line.partition(":")
        words = rest.split()
        own = name.strip() == "lo" or name.strip().startswith(_NO_NETWORKS)
        if not own and len(words) > 8:
            found[name.strip()] = (int(words[0]), int(words[8]))
    return found


def process_cpu(pid):
    """Seconds of CPU that a process has used; None when it is gone."""
    text = "".join(_lines("/proc/{}/stat".format(pid)))
    words = text.rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / _TICKS if len(words) > 12 else None


def resident(pid):
    """Bytes of a process that are in memory."""
    words = "".join(_lines("/proc/{}/statm".format(pid))).split()
    return int(words[1]) * _PAGE if len(words) > 1 else None


def field(pid, file, name):
    """A size that the kernel says of a process in kB, in bytes."""
    for line in _lines("/proc/{}/{}".format(pid, file)):
        if line.startswith(name + ":"):
            return int(line.split()[1]) * 1024
    return None


class Gpus:
    """The GPUs of this node, asked through NVML, which knows nothing of CUDA_VISIBLE_DEVICES: which of them the ranks
    have, they say themselves (recorder.py). ``reason`` is why there are none.

    A GPU that is split (MIG) has no figures of its own but those of its parts: a part is a rank's device, and the whole
    may be anybody's.
    """

    def __init__(self, nvml_path):
        self.reason, self._devices = None, []
        try:
            self._nvml = _load_nvml(nvml_path)
            self._nvml.nvmlInit()
            for index in range(int(self._nvml.nvmlDeviceGetCount())):
                # One that is lost or somebody else's has no handle.
                with contextlib.suppress(self._nvml.NVMLError):
                    self._devices += self._named(self._nvml.nvmlDeviceGetHandleByIndex(index))
            if not self._devices:
                self.reason = "NVML sees no GPU"
        except ImportError:
            self.reason = "there is no pynvml (nvidia-ml-py) here to ask the driver with"
        except Exception as error:  # a library's own classes, which are not known before it is loaded
            self.reason = "NVML: {}".format(error)

    def _named(self, handle):
        """A GPU and its parts: the handle to be read, and what tells it apart from all others."""
        nvml, place = self._nvml, None
        with contextlib.suppress(nvml.NVMLError):
            info = nvml.nvmlDeviceGetPciInfo(handle)
            place = "{:08x}:{:02x}:{:02x}".format(info.domain, info.bus, info.device)
        split = self._split(handle)
        name = {"uuid": self._uuid(handle), "pci": place, "split": split}
        found = [(None if split or split is None else handle, name)]
        for index in range(int(nvml.nvmlDeviceGetMaxMigDeviceCount(handle))) if split else ():
            with contextlib.suppress(nvml.NVMLError):
                part = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)
                found.append((part, {"uuid": self._uuid(part), "pci": None, "split": False, "part": True}))
        return found

    def _split(self, handle):
        """Whether it is split into parts; None where the driver does not say so."""
        nvml = self._nvml
        try:
            return bool(nvml.nvmlDeviceGetMigMode(handle)[0])
        except nvml.NVMLError as error:
            # No such thing on this GPU, or with this driver (nvml.h, nvmlReturn_t).
            return False if getattr(error, "value", None) in (3, 13) else None

    def _uuid(self, handle):
        """Of ``GPU-...`` or ``MIG-...`` the 16 bytes, as CUDA tells them; None of older drivers' MIG-GPU-.../1/0."""
        text = self._nvml.nvmlDeviceGetUUID(handle)
        text = text.decode("ascii", "replace") if isinstance(text, bytes) else str(text)
        plain = text.partition("-")[2].replace("-", "").lower()
        return plain if len(plain) == 32 else None

    def read(self):
        """Figures of each GPU or part beside its name; one that the driver does not give is none."""
        nvml = getattr(self, "_nvml", None)
        asked = {
            "gpu_percent": lambda handle: nvml.nvmlDeviceGetUtilizationRates(handle).gpu,
            "gpu_memory_bytes": lambda handle: nvml.nvmlDeviceGetMemoryInfo(handle).used,
            "gpu_clock_hz": lambda handle: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM) * 1e6,
            "gpu_memory_clock_hz": lambda handle: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM) * 1e6,
            "gpu_power_watts": lambda handle: nvml.nvmlDeviceGetPowerUsage(handle) / 1000.0,
            "gpu_temperature_celsius": lambda handle: nvml.nvmlDeviceGetTemperature(handle, 0),
            # In KB/s, of 20 ms that the call itself takes (nvml.h, nvmlDeviceGetPcieThroughput).
            "pcie_send": lambda handle: nvml.nvmlDeviceGetPcieThroughput(handle, 0) * 1024,
            "pcie_receive": lambda handle: nvml.nvmlDeviceGetPcieThroughput(handle, 1) * 1024,
        }
        found = []
        for handle, name_of in self._devices:
            figures = dict(name_of)
            # What else a part's handle answers may be the whole GPU's: NVML's reference does not say.
            names = () if handle is None else ("gpu_memory_bytes",) if name_of.get("part") else asked
            for name in names:
                figures[name] = None
                # NVML's own exception, where a GPU does not support the question.
                with contextlib.suppress(Exception):
                    figures[name] = float(asked[name](handle))
            found.append(figures)
        return found


def _load_nvml(path):
    if not path:
        import pynvml

        return pynvml
    spec = importlib.util.spec_from_file_location("pynvml", path)
    if spec is None or not os.path.exists(path):
        raise ImportError(path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class NoGpus:
    """Those of a node that somebody else asks."""

    reason = None

    def read(self):
        return []


class Sampler(threading.Thread):
    """Calls ``tell`` with a sample every half second.

    Args:
        pids: A function that gives the process of each rank so far.
        tell: Gets each sample, a dictionary.
        whole: The node's own figures, too: not where somebody else on this node says them.
    """

    def __init__(self, pids, tell, nvml_path="", interval=INTERVAL, whole=True):
        super().__init__(name="sampler", daemon=True)
        self._pids, self._tell, self._interval, self._whole = pids, tell, interval, whole
        self._over = threading.Event()
        self._last = None
        self._number = 0
        self.gpus = Gpus(nvml_path) if whole else NoGpus()

    def run(self):
        began = time.monotonic()
        while not self._over.is_set():
            # A process may end while it is read.
            with contextlib.suppress(OSError, ValueError, IndexError):
                self._sample()
            self._number += 1
            self._over.wait(max(0.05, began + self._number * self._interval - time.monotonic()))

    def stop(self):
        """End it, with a last sample."""
        self._over.set()
        self.join(5.0)

    def _sample(self):
        now = time.monotonic()
        pids = self._pids()
        seen = {
            "cpu": host_cpu() if self._whole else None,
            "disks": disks() if self._whole else {},
            "networks": networks() if self._whole else {},
            "processes": {rank: process_cpu(pid) for rank, pid in pids.items()},
        }
        sample = {"at": time.time(), "host_memory_bytes": None, "ranks": [], "disks": {}, "networks": {}}
        if self._whole:
            sample["host_memory_bytes"] = memory_used()
        before, seconds = self._last or (None, None)
        self._last = (seen, now)
        seconds = now - seconds if seconds else None
        sample["cpu_percent"] = _share(before, seen)
        for kind in ("disks", "networks"):
            for name, after in seen[kind].items():
                earlier = before[kind].get(name) if before else None
                sample[kind][name] = [
                    max(0, new - old) / seconds for new, old in zip(after, earlier)  # noqa: B905 (Python 3.7)
                ] if earlier else None  # fmt: skip
        for rank, pid in sorted(pids.items()):
            used, earlier = seen["processes"][rank], (before or {"processes": {}})["processes"].get(rank)
            known = used is not None and earlier is not None
            figures = {
                "rank": rank,
                "process_cpu_percent": max(0.0, 100.0 * (used - earlier) / seconds) if known else None,
                "process_memory_bytes": resident(pid),
            }
            if self._number % _SHARE_EVERY == _SHARE_EVERY - 1:
                figures["proportional_bytes"] = field(pid, "smaps_rollup", "Pss")
                figures["locked_bytes"] = field(pid, "status", "VmLck")
            sample["ranks"].append(figures)
        sample["gpus"] = self.gpus.read()
        self._tell(sample)


def _share(before, seen):
    if not before or before["cpu"] is None or seen["cpu"] is None:
        return None
    busy, total = (new - old for new, old in zip(seen["cpu"], before["cpu"]))  # noqa: B905 (Python 3.7)
    return min(100.0, max(0.0, 100.0 * busy / total)) if total > 0 else None
