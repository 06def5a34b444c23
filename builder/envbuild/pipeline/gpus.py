"""The GPUs of this host and their driver, asked through NVML. Nothing here looks at a row.

NVML is the driver's own library (``libnvidia-ml.so.1``); ``nvidia-ml-py`` only calls it. What cannot be asked is a
typed fault with what to do about it, never an exception.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Any, TypeVar

# A driver whose GPU fell off the bus may never answer.
_NVML_SECONDS = 30.0
# PCI: NVIDIA's vendor number, and the class of display controllers (3D controllers among them).
_NVIDIA, _DISPLAY = "0x10de", "0x03"
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """One MIG instance: a part of a GPU that looks like a GPU; ``profile`` such as ``1g.10gb``."""

    uuid: str
    profile: str
    memory_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU.

    Attributes:
        index: As ``nvidia-smi`` counts.
        name: The product's name, such as ``NVIDIA H200``.
        sm: Compute capability, such as ``9.0``.
        brand: The product line in lower case, such as ``tesla``; ``unknown`` where the driver does not say.
        mig: It is divided: only its slices can be used.
    """

    index: int
    uuid: str
    name: str
    sm: str
    memory_bytes: int
    brand: str = "unknown"
    mig: bool = False
    slices: tuple[Slice, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class HostGpus:
    """What the driver says; ``cuda`` is the newest CUDA that it knows, such as ``13.0``."""

    driver: str
    cuda: str
    gpus: tuple[Gpu, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverFault:
    """Why the driver could not be asked.

    Attributes:
        absent: There is no NVIDIA GPU here either, so nothing is broken.
    """

    message: str
    fix: str
    absent: bool = False


# NVML return codes (nvml.h, nvmlReturn_t), by what they mean to a user.
_FAULTS = {
    4: (
        "this user may not talk to the NVIDIA driver (NVML: no permission)",
        "Run as a user who may open /dev/nvidiactl and /dev/nvidia*, or ask the administrator.",
    ),
    9: (
        "the NVIDIA kernel module is not loaded (NVML: driver not loaded)",
        "Load it: modprobe nvidia. Where that fails, install the driver for this kernel again; dmesg says why.",
    ),
    10: ("the NVIDIA driver does not answer (NVML: timeout)", "dmesg says why (look for Xid); reboot the host."),
    12: (
        "there is no NVIDIA driver on this host (libnvidia-ml.so.1 was not found)",
        "Install the NVIDIA driver; `nvidia-smi` must work before anything else can.",
    ),
    13: ("the NVIDIA driver is too old to be asked (NVML: function not found)", "Install a newer NVIDIA driver."),
    15: (
        "a GPU has fallen off the bus (NVML: GPU is lost)",
        "dmesg says why (look for Xid 79); reset the GPU or reboot the host.",
    ),
    16: ("a GPU must be reset (NVML: reset required)", "nvidia-smi --gpu-reset, or reboot the host."),
    17: (
        "the operating system blocks the NVIDIA driver (NVML: operating system)",
        "See that /dev/nvidia* exist and that no cgroup or security module denies them.",
    ),
    18: (
        "the NVIDIA kernel module and the driver's libraries are of different versions (NVML: driver/library version "
        "mismatch); usually the driver was updated and the old module is still loaded",
        "Reboot the host, or unload and load the nvidia modules.",
    ),
    20: ("the host has no memory left for the NVIDIA driver (NVML: insufficient memory)", "Free memory."),
}
_ABSENT = (9, 12)


def fault_of(code: int, said: str, *, hardware: bool) -> DriverFault:
    """The fault that an NVML return code stands for.

    Args:
        code: ``nvmlReturn_t``.
        said: NVML's own words, for codes that are not known here.
        hardware: Whether there is an NVIDIA GPU: without one, a missing driver is no fault.
    """
    message, fix = _FAULTS.get(
        code, (f"the NVIDIA driver cannot be used (NVML error {code}: {said})", "`nvidia-smi` must work first.")
    )
    if code in _ABSENT and not hardware:
        return DriverFault(message="this host has no NVIDIA GPU", fix="", absent=True)
    return DriverFault(message=message, fix=fix)


def read(*, sysfs: Path = Path("/sys")) -> HostGpus | DriverFault:
    """Ask the driver. Takes some milliseconds; one that hangs costs ``_NVML_SECONDS``."""
    pynvml = _nvml()
    try:
        return _bounded(_ask)
    except TimeoutError:
        return fault_of(10, "", hardware=True)
    except pynvml.NVMLError as error:
        return fault_of(int(getattr(error, "value", 999)), str(error), hardware=has_hardware(sysfs))
    except (UnicodeDecodeError, OSError, AttributeError) as error:
        return fault_of(999, str(error), hardware=has_hardware(sysfs))


def _nvml() -> Any:
    # Of nvidia-ml-py; local, because it takes a while and few commands need it.
    import pynvml  # type: ignore[import-untyped]

    return pynvml


def has_hardware(sysfs: Path) -> bool:
    """Whether a display controller of NVIDIA's is on the PCI bus."""
    for device in sysfs.glob("bus/pci/devices/*"):
        try:
            vendor, kind = ((device / name).read_text().strip() for name in ("vendor", "class"))
        except OSError:
            continue
        if vendor == _NVIDIA and kind.startswith(_DISPLAY):
            return True
    return False


def version_text(number: int) -> str:
    """CUDA's number for a version, as people write it: 13000 is 13.0, 12040 is 12.4 (cuda.h, CUDA_VERSION)."""
    return f"{number // 1000}.{number % 1000 // 10}"


def profile_of(name: str, memory_bytes: int) -> str:
    """The profile at the end of a slice's name; where there is none, its memory says enough."""
    found = re.search(r"MIG (\d+c?\.?\d*g\.\d+gb(?:\+\w+(?:\.\w+)*)?)\s*$", name)
    return found[1] if found else f"{round(memory_bytes / (1 << 30))}gb"


def _bounded(work: Callable[[], _T]) -> _T:
    """Run something that may never come back; it is left behind then.

    Raises:
        TimeoutError: It did not end in time.
    """
    answer: list[_T] = []
    raised: list[BaseException] = []

    def guarded() -> None:
        try:
            answer.append(work())
        except BaseException as error:
            raised.append(error)

    thread = Thread(target=guarded, name="nvml", daemon=True)
    thread.start()
    thread.join(_NVML_SECONDS)
    if raised:
        raise raised[0]
    if not answer:
        raise TimeoutError
    return answer[0]


def _ask() -> HostGpus:
    pynvml = _nvml()
    pynvml.nvmlInit()
    try:
        count = int(pynvml.nvmlDeviceGetCount())
        return HostGpus(
            driver=str(pynvml.nvmlSystemGetDriverVersion()),
            cuda=version_text(int(pynvml.nvmlSystemGetCudaDriverVersion())),
            gpus=tuple(_gpu(index) for index in range(count)),
        )
    finally:
        pynvml.nvmlShutdown()


def _gpu(index: int) -> Gpu:
    pynvml = _nvml()
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(handle)
    try:
        mig = bool(pynvml.nvmlDeviceGetMigMode(handle)[0])
    except pynvml.NVMLError:
        mig = False  # a GPU, or a driver, without MIG
    return Gpu(
        index=index,
        uuid=str(pynvml.nvmlDeviceGetUUID(handle)),
        name=str(pynvml.nvmlDeviceGetName(handle)),
        sm=f"{major}.{minor}",
        memory_bytes=int(pynvml.nvmlDeviceGetMemoryInfo(handle).total),
        brand=_brand(handle),
        mig=mig,
        slices=_slices(handle) if mig else (),
    )


def _brand(handle: Any) -> str:
    """As NVIDIA_REQUIRE_* names it: the words of nvmlBrandType_t run together, such as ``nvidiartx``."""
    pynvml = _nvml()
    try:
        number = pynvml.nvmlDeviceGetBrand(handle)
    except pynvml.NVMLError:
        return "unknown"
    names = {
        getattr(pynvml, name): name.removeprefix("NVML_BRAND_")
        for name in ("NVML_BRAND_QUADRO", "NVML_BRAND_TESLA", "NVML_BRAND_NVS", "NVML_BRAND_GRID", "NVML_BRAND_GEFORCE",
                     "NVML_BRAND_TITAN", "NVML_BRAND_QUADRO_RTX", "NVML_BRAND_NVIDIA_RTX", "NVML_BRAND_NVIDIA",
                     "NVML_BRAND_GEFORCE_RTX", "NVML_BRAND_TITAN_RTX")
    }  # fmt: skip
    return str(names.get(number, "unknown")).replace("_", "").lower()


def _slices(handle: Any) -> tuple[Slice, ...]:
    pynvml = _nvml()
    found = []
    for index in range(int(pynvml.nvmlDeviceGetMaxMigDeviceCount(handle))):
        try:
            part = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)
        except pynvml.NVMLError:
            continue  # nothing was made in this place
        memory = int(pynvml.nvmlDeviceGetMemoryInfo(part).total)
        name = str(pynvml.nvmlDeviceGetName(part))
        uuid = str(pynvml.nvmlDeviceGetUUID(part))
        found.append(Slice(uuid=uuid, profile=profile_of(name, memory), memory_bytes=memory))
    return tuple(found)
