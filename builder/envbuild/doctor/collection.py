"""What the collector saw of a machine, as types. The collector writes it as JSON, on any Python from 3.6.

Everything may be missing: what could not be read is None (or an empty list), and ``errors`` says why. Fields that
this version does not know are dropped, so that the facts of a newer collector can still be read.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

SCHEMA = "envbuild.collection/1"


class Seen(BaseModel):
    """The base of all of them: frozen, and patient with what it does not know."""

    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=True)


class Failure(Seen):
    """A part that could not be collected."""

    part: str
    error: str


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


class NumaNode(Seen):
    """One node; memory in bytes. A node without CPUs is memory alone (CXL, HBM)."""

    node: int
    cpus: int
    total: int | None = None
    free: int | None = None


class Interface(Seen):
    """A network interface: its name, whether it is up, and whether it is one of a bridge or a virtual one."""

    name: str
    up: bool
    virtual: bool
    loopback: bool = False


class Machine(Seen):
    """The host, or the container as it looks from inside.

    Attributes:
        container: What holds the process (docker, podman, lxc, kubernetes, container), None on a bare host.
        memlock: RLIMIT_MEMLOCK in bytes, soft and hard; None is unlimited.
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
    memlock: tuple[int | None, int | None] | None = None
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


class Package(Seen):
    """A Python distribution: its location is the folder that holds it; ``requires`` are its raw Requires-Dist."""

    name: str
    version: str
    location: str | None = None
    requires: tuple[str, ...] = ()


class Interpreter(Seen):
    """The Python that is examined.

    Attributes:
        kind: venv, conda, or system.
        prefix: sys.prefix; ``base`` is sys.base_prefix.
        build: sysconfig's variables that say how extensions are compiled: CC, CXX, LDSHARED, CFLAGS, LDFLAGS, ...
        header: Whether Python.h is in ``include``.
        path: sys.path.
        user_site: The user's own site-packages, where it is in use.
    """

    executable: str
    real: str | None = None
    version: str | None = None
    kind: Literal["venv", "conda", "system"] | None = None
    prefix: str | None = None
    base: str | None = None
    build: dict[str, str] = Field(default_factory=dict)
    include: str | None = None
    header: bool | None = None
    path: tuple[str, ...] = ()
    user_site: str | None = None
    packages: tuple[Package, ...] = ()


class Tool(Seen):
    """A program as the PATH (or a variable) finds it.

    Attributes:
        role: Who would call it: ``shell`` (c++, g++, gcc, cc, nvcc, ninja, ld by PATH), ``CC``/``CXX``/``CUDAHOSTCXX``
            (the variable), ``sysconfig`` (Python's extension compiler), ``cuda_home`` (nvcc of CUDA_HOME).
        version: The number alone, such as 12.2.0; ``says`` is the first line of what it prints.
    """

    name: str
    role: str
    path: str | None = None
    real: str | None = None
    version: str | None = None
    says: str | None = None
    error: str | None = None


class Compile(Seen):
    """A small C++ program compiled and run with one compiler."""

    compiler: str
    works: bool
    error: str | None = None


class Alternative(Seen):
    """A link of update-alternatives: /usr/bin/gcc -> /etc/alternatives/gcc -> value."""

    name: str
    link: str
    value: str


class Toolkit(Seen):
    """A CUDA toolkit: a folder with nvcc or with headers.

    Attributes:
        found_by: CUDA_HOME, CUDA_PATH, nvcc (on PATH), default (/usr/local/cuda*), wheel, conda; several by comma.
        version: Such as 12.4, of nvcc or version.json.
        nvcc: Whether bin/nvcc is there and can be executed.
        headers: Which of cuda_runtime.h, curand_kernel.h, cublas_v2.h, ... are there.
        libraries: Link names in lib64 or lib: libcudart.so, libcurand.so, libcublas.so, ...
        taken_by_torch: torch.utils.cpp_extension takes this one for CUDA_HOME.
    """

    path: str
    real: str | None = None
    found_by: str = ""
    version: str | None = None
    nvcc: bool = False
    headers: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ()
    lib: str | None = None
    taken_by_torch: bool = False


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
    """``import deepspeed``: the accelerator it chose, and which ops were compiled into it."""

    accelerator: str | None = None
    installed_ops: tuple[str, ...] = ()
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


class Libaio(Seen):
    """libaio, for DeepSpeed's async_io.

    Attributes:
        header: Whether the compiler's default folders (or CFLAGS' -I) hold libaio.h.
        link: libaio.so, the name that -laio asks for.
        path: libaio.so.1 (or .so.1t64) as the loader finds it.
        provides: Its symbol versions, such as LIBAIO_0.4.
    """

    header: bool | None = None
    link: str | None = None
    path: str | None = None
    provides: tuple[str, ...] = ()


class Bench(Seen):
    """With --bench: bytes a second of a copy in host memory."""

    memory_bandwidth: float | None = None


class Native(Seen):
    """One ELF file, as envbuild.elf.ElfFile has it; ``requires`` as (library, version, weak)."""

    machine: str
    bits: int
    kind: Literal["shared", "executable", "other"]
    soname: str | None = None
    needed: tuple[str, ...] = ()
    rpath: tuple[str, ...] | None = None
    runpath: tuple[str, ...] | None = None
    interp: str | None = None
    requires: tuple[tuple[str, str, bool], ...] = ()
    provides: tuple[str, ...] = ()
    versioned: bool = False
    no_default: bool = False
    comment: tuple[str, ...] = ()
    cxx11_abi: bool | None = None


class Loader(Seen):
    """The dynamic linker of the interpreter, as envbuild.elf.Linker has it."""

    path: str
    machine: str
    folders: tuple[str, ...]
    lib: str
    hwcaps: bool
    legacy: bool


class Libraries(Seen):
    """Everything that the loader's answer needs.

    Attributes:
        files: ELF files by their real path.
        broken: Real path -> why it could not be read; a file that is no ELF begins with "not ELF".
        paths: Every path that was tried and is there -> its real path: files, links and folders in real folders, so
            that any path can be walked as the kernel does. What is not in it is not there. With a slash at its end, a
            folder that was looked into for every library that anybody asks for.
        cache: /etc/ld.so.cache, zlib-compressed, base64.
        preload: /etc/ld.so.preload.
        seeds: What would be loaded into the process, in order: the interpreter first, then torch's libraries, ops.
        folder: The working directory, which empty entries of LD_LIBRARY_PATH mean.
        elsewhere: Copies of the libraries that matter in usual places, those that a search finds among them:
            soname -> real paths.
        lacks: Real path of a copy of libnccl.so.2 -> the functions that torch's libraries ask of NCCL and it has not.
        errors: Why there is no loader, and where the search was cut short.
    """

    loader: Loader | None = None
    files: dict[str, Native] = Field(default_factory=dict)
    broken: dict[str, str] = Field(default_factory=dict)
    paths: dict[str, str] = Field(default_factory=dict)
    cache: str | None = None
    preload: str = ""
    seeds: tuple[str, ...] = ()
    folder: str = "/"
    elsewhere: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    lacks: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    errors: tuple[str, ...] = ()


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


class Collection(Seen):
    """One machine, or one image, at one time.

    Attributes:
        taken: UTC, ISO 8601.
        collector: Version of the collector; ``seconds`` how long it took, by part.
        image: The image reference it ran in, when envbuild ran it in one.
        environment: Environment variables of interest, masked.
    """

    schema_name: Literal["envbuild.collection/1"] = Field(alias="schema")
    taken: str
    collector: str = ""
    seconds: dict[str, float] = Field(default_factory=dict)
    image: str | None = None
    errors: tuple[Failure, ...] = ()
    machine: Machine = Machine()
    environment: dict[str, str] = Field(default_factory=dict)
    interpreter: Interpreter | None = None
    tools: tuple[Tool, ...] = ()
    compiles: tuple[Compile, ...] = ()
    alternatives: tuple[Alternative, ...] = ()
    toolkits: tuple[Toolkit, ...] = ()
    gpu: Gpu = Gpu()
    torch: Torch | None = None
    deepspeed: DeepSpeed | None = None
    ops: tuple[Op, ...] = ()
    libraries: Libraries = Libraries()
    nvme: tuple[NvmePath, ...] = ()
    libaio: Libaio | None = None
    bench: Bench | None = None
    system: System = System()
