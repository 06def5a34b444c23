"""NVIDIA's side of the machine: the kernel module, the driver's libraries, the devices, the containers' parts.

The driver's libraries are called in child processes: a driver that is broken may crash or never answer.
"""

import glob
import json
import os
import re

from .common import real, run, unique

_SECONDS = 20.0
_NVIDIA, _DISPLAY = "0x10de", "0x03"  # PCI: NVIDIA's vendor number, display controllers
_RUNTIMES = ("nvidia-ctk", "nvidia-container-cli", "nvidia-container-runtime", "nvidia-smi")
_FOLDERS = (
    "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib", "/lib64", "/lib",
    "/usr/lib/x86_64-linux-gnu/nvidia/current", "/usr/lib64/nvidia", "/usr/lib/nvidia", "/usr/lib/wsl/lib",
    "/usr/local/nvidia/lib64", "/usr/local/nvidia/lib", "/usr/local/lib", "/run/opengl-driver/lib",
    "/.singularity.d/libs",
)  # fmt: skip
_PATTERNS = (
    "/usr/local/cuda*/compat",
    "/usr/local/cuda*/compat/lib.real",
    "/usr/local/cuda*/lib64/stubs",
    "/usr/lib/nvidia-*",
)

# Both use the driver API's own names and numbers (nvml.h, cuda.h). cuDriverGetVersion needs no initialisation.
_NVML = """
import ctypes, json, re
found = {}
try:
    nvml = ctypes.CDLL("libnvidia-ml.so.1")
    nvml.nvmlErrorString.restype = ctypes.c_char_p
    def call(name, *args):
        code = getattr(nvml, name)(*args)
        if code:
            said = nvml.nvmlErrorString(code).decode("utf-8", "replace")
            raise ValueError("%s: %s (NVML error %d)" % (name, said, code))
    def text(name, *args):
        buffer = ctypes.create_string_buffer(96)
        call(name, *(args + (buffer, ctypes.c_uint(96))))
        return buffer.value.decode("utf-8", "replace")
    class Memory(ctypes.Structure):
        _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]
    def ask(device):
        handle = ctypes.c_void_p()
        call("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(device["index"]), ctypes.byref(handle))
        device["name"] = text("nvmlDeviceGetName", handle)
        major, minor = ctypes.c_int(), ctypes.c_int()
        call("nvmlDeviceGetCudaComputeCapability", handle, ctypes.byref(major), ctypes.byref(minor))
        device["sm"] = "%d.%d" % (major.value, minor.value)
        memory = Memory()
        # One that shares the host's memory has none of its own to tell of (NVML_ERROR_NOT_SUPPORTED).
        if nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)) != 3:
            call("nvmlDeviceGetMemoryInfo", handle, ctypes.byref(memory))
            device["memory"] = memory.total
        current, pending = ctypes.c_uint(), ctypes.c_uint()
        try:
            call("nvmlDeviceGetMigMode", handle, ctypes.byref(current), ctypes.byref(pending))
            device["mig"] = bool(current.value)
        except (ValueError, AttributeError):
            device["mig"] = False  # a GPU, or a driver, without MIG
    try:
        call("nvmlInit_v2")
        found["nvml"] = text("nvmlSystemGetDriverVersion")
        count = ctypes.c_uint()
        call("nvmlDeviceGetCount_v2", ctypes.byref(count))
        found["devices"] = [{"index": index} for index in range(min(count.value, 64))]
        for device in found["devices"]:
            try:
                ask(device)
            except ValueError as error:
                found.setdefault("nvml_error", "GPU %d: %s" % (device["index"], error))
    except (ValueError, AttributeError) as error:
        found["nvml_error"] = str(error)
    # One that does not fit the kernel module answers nothing; its file tells its version.
    name = re.search("libnvidia-ml[.]so[.]([0-9]+[.][0-9.]*[0-9])", open("/proc/self/maps").read())
    if name:
        found.setdefault("nvml", name.group(1))
except OSError as error:
    found["nvml_error"] = str(error)
print(json.dumps(found))
"""
_CUDA = """
import ctypes, json
found = {}
try:
    version = ctypes.c_int()
    code = ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version))
    if code == 0 and version.value:
        found["cuda"] = "%d.%d" % (version.value // 1000, version.value % 1000 // 10)
except (OSError, AttributeError):
    pass
print(json.dumps(found))
"""


def gpu(host, python, prefixes, parts, pool):
    """Everything about GPUs.

    Args:
        host: The machine.
        python: The interpreter that calls the driver's libraries: the collector's own.
        prefixes: Folders with libraries of environments, where another libcuda may lie.
        parts: What goes wrong is noted here.
        pool: The two libraries are called at the same time.
    """
    answers = pool.map(lambda code: ask(python, code, host.environ), (_NVML, _CUDA))
    found = {
        "module": parts.run("gpu.module", lambda: module(host)),
        "libcuda": parts.run("gpu.libcuda", lambda: libcuda(host, prefixes), {}),
        "device_files": device_files(host),
        "pci": parts.run("gpu.pci", lambda: pci(host)),
        "runtimes": [name for name in _RUNTIMES if host.which(name)],
        "cdi": specifications(host),
    }
    for part, (answer, error) in zip(("gpu.nvml", "gpu.cuda"), answers):
        found.update(answer)
        if error:
            parts.fail(part, error)
            if part == "gpu.nvml":
                found["nvml_error"] = error
    # No GPU, no driver, no word: that its library is not there is no fault then.
    if not found["pci"] and not found["module"] and not found["device_files"] and not found["libcuda"]:
        found["nvml_error"] = None
    return found


def ask(python, code, environ):
    """Call a library of the driver: what it says, and how the call ended when that was not well."""
    # -I and -S: the user's PYTHON* variables have no say; LD_LIBRARY_PATH has, for it decides which library is met.
    done = run([python, "-I", "-S", "-c", code], environ, _SECONDS)
    try:
        return json.loads(done.lines[-1]), ""
    except (ValueError, IndexError):
        return {}, done.explain(_SECONDS) or "it printed nothing that can be read"


def module(host):
    """Version of the loaded kernel module.

    ``NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat ...``; the open one says ``NVIDIA UNIX Open
    Kernel Module for x86_64  570.86.15  Release Build``.
    """
    text = host.text("/proc/driver/nvidia/version") or ""
    found = re.search(r"Kernel Module(?: for \S+)?\s+(\d+\.\d+(?:\.\d+)?)", text)
    return found.group(1) if found else (host.text("/sys/module/nvidia/version") or None)


def libcuda(host, prefixes):
    """Every libcuda.so.1, with the version that its real file's name tells; "" where it tells none."""
    folders = [each for each in host.environ.get("LD_LIBRARY_PATH", "").split(":") if each.startswith("/")]
    folders += _FOLDERS
    for pattern in _PATTERNS:
        folders += sorted(glob.glob(host.path(pattern)))
    folders += [os.path.join(prefix, "lib") for prefix in prefixes if prefix]
    found, seen = {}, set()
    for folder in unique(folders)[:500]:
        path = os.path.join(host.path(folder) if folder in _FOLDERS else folder, "libcuda.so.1")
        if os.path.exists(path) and (real(folder), "libcuda") not in seen:
            seen.add((real(folder), "libcuda"))
            number = re.search(r"\.so\.(\d+\.\d+(?:\.\d+)?)\Z", real(path))
            found[path] = number.group(1) if number else ""
    return found


def device_files(host):
    """/dev/nvidia*, capabilities of MIG included."""
    names = ["/dev/" + name for name in host.names("/dev") if name.startswith("nvidia")]
    return names + (["/dev/dxg"] if host.exists("/dev/dxg") else [])


def pci(host):
    """How many of NVIDIA's display controllers are on the bus; None where there is no bus to see."""
    base = "/sys/bus/pci/devices"
    if not host.exists(base):
        return None
    count = 0
    for name in host.names(base):
        vendor, kind = (host.text("{}/{}/{}".format(base, name, file)) or "" for file in ("vendor", "class"))
        count += vendor == _NVIDIA and kind.startswith(_DISPLAY)
    return count


def specifications(host):
    """CDI specifications, by their paths."""
    return [
        "{}/{}".format(folder, name)
        for folder in ("/etc/cdi", "/var/run/cdi")
        for name in host.names(folder)
        if name.endswith((".yaml", ".yml", ".json"))
    ]
