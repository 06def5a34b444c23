"""What goes wrong between an engine and a GPU, known by the words of the programs that say it.

The texts were collected from public reports; the source of each stands beside it. A fault of the driver or of the
engine's GPU runtime is never the image's.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from envbuild.errors import EngineError

_INSTALL = (
    "Install the NVIDIA Container Toolkit on the engine's host (package nvidia-container-toolkit), then: "
    "nvidia-ctk runtime configure --runtime=docker && systemctl restart docker"
)
_UPDATE = "Install a newer NVIDIA driver on the engine's host, or use a row with an older CUDA."
_TOOLKIT = "https://github.com/NVIDIA/nvidia-container-toolkit/issues/"
_OLD_TOOLKIT = "https://github.com/NVIDIA/nvidia-docker/issues/"


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuFault:
    """One cause: what it means, what to do about it, and where its text was seen.

    Attributes:
        pattern: What the program says.
        where: ``runtime`` (the engine and its GPU runtime) or ``driver``.
    """

    pattern: str
    where: str
    meaning: str
    fix: str
    source: str


# The first one that fits is told, so the special ones come before the general.
FAULTS = (
    GpuFault(
        pattern=r'could not select device driver "[^"]*" with capabilities: \[\[.*gpu',
        where="runtime",
        meaning="the engine has no GPU runtime",
        fix=_INSTALL,
        source=f"moby daemon/nvidia_linux.go (the driver exists when nvidia-container-runtime-hook is on dockerd's "
        f"PATH); {_OLD_TOOLKIT}1352",
    ),
    GpuFault(
        pattern=r"driver/library version mismatch",
        where="driver",
        meaning="the NVIDIA kernel module that is loaded and the driver's libraries are of different versions; "
        "usually the driver was updated and the old module is still loaded",
        fix="Reboot the host, or unload and load the nvidia modules; `nvidia-smi` must work there first.",
        source=f"{_TOOLKIT}394",
    ),
    GpuFault(
        pattern=r"nvml error: driver not loaded",
        where="driver",
        meaning="the NVIDIA kernel module is not loaded",
        fix="Load it (modprobe nvidia), or install the driver for this kernel; `nvidia-smi` must work there first.",
        source=f"{_OLD_TOOLKIT}1393",
    ),
    GpuFault(
        pattern=r"load library failed: libnvidia-ml\.so\.1",
        where="driver",
        meaning="the engine's host has no NVIDIA driver",
        fix="Install the NVIDIA driver on the engine's host; `nvidia-smi` must work there first.",
        source="https://github.com/NVIDIA/libnvidia-container/issues/231",
    ),
    GpuFault(
        pattern=r"requirement error: unsatisfied condition",
        where="driver",
        meaning="the driver is older than the image asks for in NVIDIA_REQUIRE_CUDA",
        fix=_UPDATE,
        source=f"libnvidia-container src/cli/dsl.c; {_OLD_TOOLKIT}1442",
    ),
    GpuFault(
        pattern=r"device error:.*unknown device",
        where="runtime",
        meaning="the GPU runtime does not know the GPU that was asked for",
        fix="See which there are on the engine's host: nvidia-smi -L. After a change of MIG slices restart the engine.",
        source=f"{_TOOLKIT}203",
    ),
    GpuFault(
        pattern=r"unresolvable CDI devices",
        where="runtime",
        meaning="there is no CDI description of the GPU that was asked for",
        fix="Write one on the engine's host: nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml",
        source=f"{_TOOLKIT}146",
    ),
    GpuFault(
        pattern=r"mount error: failed to add device rules",
        where="runtime",
        meaning="the GPU runtime may not change the container's device cgroup",
        fix="In /etc/nvidia-container-runtime/config.toml see no-cgroups; rootless engines need it true.",
        source=f"{_TOOLKIT}1482",
    ),
    GpuFault(
        pattern=r"nvidia-container-cli(\.real)?: initialization error",
        where="driver",
        meaning="the GPU runtime cannot talk to the driver",
        fix="`nvidia-smi` and `nvidia-container-cli info` must work on the engine's host first.",
        source=f"{_TOOLKIT}183",
    ),
    GpuFault(
        pattern=r"nvidia-container-(cli|runtime)",
        where="runtime",
        meaning="the engine's GPU runtime failed",
        fix="`nvidia-container-cli info` must work on the engine's host first.",
        source="libnvidia-container src/cli",
    ),
    # From here on what CUDA and torch say inside a container that did start.
    GpuFault(
        pattern=r"NVIDIA driver on your system is too old|CUDA driver version is insufficient",
        where="driver",
        meaning="the driver is older than torch's CUDA needs",
        fix=_UPDATE,
        source="https://github.com/pytorch/pytorch/issues/25581",
    ),
    GpuFault(
        pattern=r"system not yet initialized",
        where="driver",
        meaning="CUDA cannot start on this host (error 802): on machines with NVSwitch the fabric manager has to run",
        fix="Install and start nvidia-fabricmanager of the driver's version.",
        source="https://github.com/pytorch/pytorch/issues/35710",
    ),
    GpuFault(
        pattern=r"unsupported display driver / cuda driver combination",
        where="driver",
        meaning="CUDA's library and the kernel module do not belong together (error 803); a cuda-compat in the image "
        "works on datacenter GPUs only",
        fix="Take the cuda-compat library off the image's LD_LIBRARY_PATH, or install a newer driver.",
        source=f"{_TOOLKIT}234",
    ),
)


def known_fault(said: str) -> GpuFault | None:
    """The fault whose words a text contains, or None."""
    return next((fault for fault in FAULTS if re.search(fault.pattern, said, re.IGNORECASE | re.DOTALL)), None)


def essence(said: str) -> str:
    """The part of an engine's answer that names the fault: without the chain of who called whom."""
    start = re.search(r"nvidia-container-\w+(\.real)?:|could not select device driver|unresolvable CDI", said)
    text = said[start.start() :] if start else said
    return re.sub(r"[\\n\"\s]*(: unknown)?[.\s]*$", "", text)[:500]


class GpuStartError(EngineError):
    """The engine could not give a container its GPUs; the container never ran."""

    code = "gpu"

    def __init__(self, said: str, fault: GpuFault, *, doing: str) -> None:
        super().__init__(f"cannot {doing}: {fault.meaning}: {essence(said)}", hint=fault.fix)
        self.fault = fault
        self.said = essence(said)
