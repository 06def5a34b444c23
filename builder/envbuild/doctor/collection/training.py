"""GPUs, and what trains on them: torch, DeepSpeed and its ops."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from envbuild.doctor.collection.base import Seen


class GpuDevice(Seen):
    """One GPU as NVML sees it; memory in bytes, ``sm`` such as 9.0."""

    index: int
    name: str | None = None
    sm: str | None = None
    memory: int | None = None
    mig: bool | None = None


class Gpu(Seen):
    """NVIDIA's side of the machine.

    Attributes:
        module: Version of the loaded kernel module (/proc/driver/nvidia/version).
        nvml: Version that the user-space NVML says of the driver; ``nvml_error`` its own words where it fails.
        cuda: The CUDA version that libcuda says it supports, such as 12.4.
        libcuda: Every libcuda.so.1 that was found: path -> version from the real file's name (535.104.05), or "".
        device_files: /dev/nvidia*.
        runtimes: NVIDIA's container parts on PATH: nvidia-ctk, nvidia-container-cli, nvidia-container-runtime.
        cdi: CDI specifications in /etc/cdi and /var/run/cdi.
    """

    module: str | None = None
    nvml: str | None = None
    nvml_error: str | None = None
    cuda: str | None = None
    libcuda: dict[str, str] = Field(default_factory=dict)
    devices: tuple[GpuDevice, ...] = ()
    device_files: tuple[str, ...] = ()
    pci: int | None = None
    runtimes: tuple[str, ...] = ()
    cdi: tuple[str, ...] = ()


class Import(Seen):
    """An import in a child process: how it went, and how it ended when it did not.

    Attributes:
        error: The exception as one line, or "ended by signal 4", or "not done after 60 s".
        trace: The end of the traceback, or of what it printed.
        maps: Native libraries of the process after it, by their soname or file name -> path, from /proc/self/maps.
    """

    ok: bool
    version: str | None = None
    file: str | None = None
    error: str | None = None
    trace: tuple[str, ...] = ()
    signal: int | None = None
    seconds: float | None = None
    maps: dict[str, str] = Field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        """Whether nothing was imported but a folder of that name, such as an uninstall leaves behind."""
        return self.ok and self.file is None and self.version is None


class Torch(Import):
    """``import torch`` and what it says of itself.

    Attributes:
        cuda: torch.version.cuda; None in a CPU build.
        cxx11_abi: torch._C._GLIBCXX_USE_CXX11_ABI.
        architectures: torch.cuda.get_arch_list(): sm_80, compute_90, ...
        nccl: torch.cuda.nccl.version(), as text.
        available: torch.cuda.is_available(); ``unavailable`` the warning it gave.
    """

    cuda: str | None = None
    cxx11_abi: bool | None = None
    architectures: tuple[str, ...] = ()
    nccl: str | None = None
    available: bool | None = None
    unavailable: str | None = None
    lib: str | None = None


class DeepSpeed(Import):
    """``import deepspeed``, and what it says of itself.

    Attributes:
        accelerator: The one that it chose.
        installed_ops: Those that were compiled into it.
        torch_info: The torch and CUDA that they were compiled for, as major and minor.
        built_for: The accelerator that they were compiled for; None before that was written down.
        lost_ops: Those of ``installed_ops`` whose file is not there.
    """

    accelerator: str | None = None
    built_for: str | None = None
    installed_ops: tuple[str, ...] = ()
    lost_ops: tuple[str, ...] = ()
    torch_info: dict[str, str] = Field(default_factory=dict)


class Op(Seen):
    """One compiled op.

    Attributes:
        kind: prebuilt (in the deepspeed package), cached (JIT), other (another package's extension).
        name: Such as cpu_adam.
        file: The .so; None for a cache folder that has none (a build that never ended).
        root: Of a cached one: the cache folder, .../torch_extensions/py311_cu121; ``key`` its last part.
        built_against: Of a cached one: the torch include folder in its build.ninja.
        flags: Of a cached one: compiler flags of its build.ninja that matter (-std, -march, -D_GLIBCXX_USE_CXX11_ABI).
        compiler: Of a cached one: cxx of build.ninja.
        lock: Age in seconds of a ``lock`` file beside it; None without one.
        age: Age in seconds of the .so.
        undefined: Its undefined symbols that torch or CUDA or NCCL have to give (c10, at, torch, nccl, cu...).
        absent: Those of torch's namespaces among them that no library in torch/lib defines; None: not looked at.
        sm: Machine code for GPUs in it, such as sm_80; PTX as compute_80.
        wide: Instructions of 512 bits (AVX-512) for every 100,000 bytes of its code, by a look at the bytes: 2 or so
            are chance, 100 are not.
    """

    kind: Literal["prebuilt", "cached", "other"]
    name: str
    file: str | None = None
    root: str | None = None
    key: str | None = None
    built_against: str | None = None
    flags: tuple[str, ...] = ()
    compiler: str | None = None
    lock: float | None = None
    age: float | None = None
    undefined: tuple[str, ...] = ()
    absent: tuple[str, ...] | None = None
    sm: tuple[str, ...] = ()
    wide: float | None = None
