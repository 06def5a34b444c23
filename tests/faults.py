"""One fault each: a healthy machine (``machines``), what is changed, and the finding that has to come of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from envbuild.model import Severity
from machines import SITE, gpu_machine, gpu_packages, machine, packages

ERROR, WARNING, INFO = Severity.ERROR, Severity.WARNING, Severity.INFO
GIB = 1 << 30
# The optimizer is not compiled yet, and DeepSpeed is one whose optimizer wants the toolkit (up to 0.19.7).
JIT = {"ops": [], "deepspeed": {"installed_ops": [], "version": "0.19.7"}}
# One whose optimizer holds GPU code, which includes curand's headers (up to 0.14.2).
OLD: dict[str, Any] = {"ops": [], "deepspeed": {"installed_ops": [], "version": "0.14.0"}}
CU118: dict[str, Any] = {
    **OLD,
    "torch": {"version": "2.1.0+cu118", "cuda": "11.8", "architectures": ["sm_80", "sm_90"]},
    "interpreter": {"packages": gpu_packages(torch="2.1.0+cu118", deepspeed="0.14.0", numpy="1.26.4",
                                             setuptools="69.5.1", pydantic="1.10.13")},
}  # fmt: skip


def kit(**changes: Any) -> dict[str, Any]:
    """The toolkit of the GPU machine, with changes, and nothing beside it."""
    base = gpu_machine().toolkits[0].model_dump()
    return {"toolkits": [{**base, **changes}]}


def tools(base: Any, *names: str, **versions: str) -> dict[str, Any]:
    """Its tools without some, and others in another version."""
    kept = [tool.model_dump() for tool in base.tools if tool.name not in names]
    return {"tools": [{**tool, "version": versions.get(tool["name"], tool["version"])} for tool in kept]}


def merged(*changes: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for each in changes:
        for key, value in each.items():
            old = found.get(key)
            found[key] = merged(old, value) if isinstance(old, dict) and isinstance(value, Mapping) else value
    return found


def nvme(**changes: Any) -> dict[str, Any]:
    """A folder on a good disk, with changes; async_io is compiled."""
    folder = {"path": "/mnt/nvme", "exists": True, "writable": True, "kind": "xfs", "device": "nvme0n1",
              "rotational": False, "options": ["rw"], "free": 900 * GIB, "direct": True}  # fmt: skip
    ops = {"deepspeed": {"installed_ops": ["cpu_adam", "deepspeed_shm_comm", "fused_adam", "async_io"]}}
    return {**ops, "nvme": [{**folder, **changes}]}


UNBUILT_AIO = {"deepspeed": {"installed_ops": ["cpu_adam"]}}
Case = tuple[str, str, Severity, Mapping[str, Any], str]
# A machine, the rule that has to object and how, what is changed, and words that its message or fix holds.
RED: tuple[Case, ...] = (
    ("gpu", "toolkit.absent", ERROR, {**JIT, "toolkits": [], "environment": {"CUDA_HOME": None}}, "CUDA toolkit 13.0"),
    ("gpu", "toolkit.absent", INFO, {"toolkits": [], "environment": {"CUDA_HOME": None}}, "training needs none"),
    ("gpu", "toolkit.absent", ERROR, {**JIT, **kit(nvcc=False)}, "/usr/local/cuda has no nvcc"),
    ("gpu", "toolkit.headers", ERROR, {**JIT, **kit(headers=[], path="/usr/local")}, "takes /usr/local"),
    ("gpu", "toolkit.version", ERROR, {**JIT, **kit(version="12.4")}, "toolkit is 12.4, torch is built for 13.0"),
    ("gpu", "toolkit.version", WARNING, kit(version="12.4"), "no op that training needs has to be compiled"),
    ("gpu", "toolkit.version", WARNING,
     merged(JIT, kit(version="12.4"), {"environment": {"DS_SKIP_CUDA_CHECK": "1"}}), "lets it through"),
    ("gpu", "toolkit.gpu", ERROR, merged(CU118, kit(version="11.7"), tools(gpu_machine(), gcc="11.4.0")),
     "does not compile for NVIDIA H200"),
    ("gpu", "host-compiler.nvcc", ERROR, merged(CU118, kit(version="11.8")), "accepts GCC 11 at most"),
    ("cpu", "host-compiler.missing", ERROR, merged(JIT, tools(machine(), "CXX", "c++", "g++")), "no C++ compiler"),
    ("cpu", "host-compiler.broken", ERROR,
     {**JIT, "compiles": [{"compiler": "/usr/bin/g++-12", "works": False, "error": "cannot find -lstdc++"}]},
     "-lstdc++"),
    ("cpu", "host-compiler.broken", ERROR,
     {**JIT, "compiles": [], "tools": [*tools(machine(), "CXX")["tools"],
     {"name": "CXX", "role": "CXX", "path": "/bin/false", "error": "exit code 1"}]},
     "it does not run: exit code 1"),
    ("cpu", "host-compiler.broken", ERROR,  # CXX=/usr/bin/g++-12 was tried under another of its names
     {**JIT, "compiles": [{"compiler": "/usr/bin/c++", "works": False, "error": "cannot find -lstdc++"}]}, "-lstdc++"),
    ("cpu", "host-compiler.runtime", ERROR,
     {**JIT, "compiles": [{"compiler": "/usr/bin/g++-12", "works": False, "error":
      "running what it made: program: error while loading shared libraries: libstdc++.so.6: file too short"}]},
     "file too short"),
    ("cpu", "ninja.runtime", ERROR,
     {**JIT, "tools": [*tools(machine(), "ninja")["tools"], {"name": "ninja", "role": "shell", "path": "/usr/bin/ninja",
      "error": "exit code 127: symbol lookup error: libstdc++.so.6: undefined symbol: memcpy"}]}, "does not run"),
    ("cpu", "interpreter.dead", ERROR,
     {"torch": None, "deepspeed": None, "errors": [{"part": "interpreter", "error": "the interpreter ended with exit "
      "code 127; error while loading shared libraries: libm.so.6: file too short"}]}, "does not start in this"),
    ("cpu", "host-compiler.old", WARNING, merged(JIT, tools(machine(), CXX="9.4.0")), "GCC 11.3"),
    ("gpu", "host-compiler.language", ERROR,
     merged(CU118, {"deepspeed": {"version": "0.9.0"}}, kit(version="11.8"), tools(gpu_machine(), gcc="11.4.0")),
     "C++14"),
    ("gpu", "driver.old", ERROR, {"gpu": {"module": "535.104.05", "nvml": "535.104.05", "cuda": "12.2"}}, "580"),
    ("gpu", "driver.missing", ERROR,
     {"gpu": {"module": None, "nvml": None, "cuda": None, "devices": [], "device_files": [], "pci": 2},
      "torch": {"available": False}}, "no kernel module"),
    ("gpu", "driver.missing", ERROR,
     {"gpu": {"module": None, "nvml": None, "cuda": None, "devices": [], "device_files": [], "pci": 2},
      "machine": {"modules": {"nouveau": "", "nvidia": None}}, "torch": {"available": False}}, "no kernel module"),
    ("gpu", "driver.refused", ERROR,
     {"torch": {"available": False, "unavailable": "Error 802: system not yet initialized"}}, "fabric manager"),
    ("gpu", "nvml.mismatch", ERROR,
     {"gpu": {"devices": [], "nvml": "580.126.01", "nvml_error": "Driver/library version mismatch"},
      "torch": {"available": False}}, "reboot the host"),
    ("gpu", "nvml.cgroup", ERROR,
     {"gpu": {"devices": [], "nvml": None, "nvml_error": "Unknown Error"}, "machine": {"container": "docker"},
      "torch": {"available": False}}, "daemon-reload"),
    ("gpu", "nvml.permissions", ERROR,
     {"gpu": {"devices": [], "nvml": None, "nvml_error": "Insufficient Permissions"},
      "machine": {"container": "podman"}, "torch": {"available": False}}, "label=disable"),
    ("gpu", "gpu-arch.torch", ERROR, {"torch": {"architectures": ["sm_75", "sm_80", "sm_100"]}}, "none of it runs on"),
    ("gpu", "gpu-arch.torch", WARNING, {"torch": {"architectures": ["sm_80", "compute_80"]}}, "compiled by the driver"),
    ("gpu", "gpu-arch.torch", ERROR,
     {"torch": {"architectures": ["sm_80", "compute_80"]}, "gpu": {"cuda": "12.9"}}, "and cannot"),
    ("gpu", "gpu-arch.without-cuda", WARNING, {"torch": {"version": "2.13.0+cpu", "cuda": None, "available": False}},
     "they are not used"),
    ("gpu", "gpu-arch.list", WARNING, {"environment": {"TORCH_CUDA_ARCH_LIST": "8.0;8.6"}}, "leaves out NVIDIA H200"),
    ("gpu", "host-compiler.nvcc", WARNING, tools(gpu_machine(), CC="16.1.0"), "offload itself needs no op"),
    ("gpu", "toolkit.absent", ERROR, {"toolkits": [], "environment": {"CUDA_HOME": None}, "deepspeed": {
        "ok": False, "error": "FileNotFoundError: [Errno 2] No such file or directory: '/usr/local/cuda/bin/nvcc'"}},
     "when it is imported"),
    ("cpu", "packages.pydantic", ERROR,
     {"deepspeed": {"version": "0.11.1"}, "torch": {"version": "2.0.1+cpu"},
      "interpreter": {"packages": packages(deepspeed="0.11.1", torch="2.0.1", numpy="1.26.4", setuptools="69.0.0")}},
     "pydantic<2"),
    ("cpu", "packages.requirement", WARNING, {"interpreter": {"packages": packages(pydantic=None)}}, "not installed"),
    ("cpu", "packages.requirement", ERROR,
     {"interpreter": {"packages": [*packages(), {"name": "transformers", "version": "4.30.0", "location": SITE,
      "requires": ['deepspeed>=0.20; extra == "deepspeed"',
                   'torch<2; extra == "other"', "filelock; python_version<'3'"]}]}},
     "transformers 4.30.0 wants deepspeed>=0.20"),
    ("cpu", "packages.old-torch", WARNING,
     {"torch": {"version": "2.1.0+cpu"}, "interpreter": {"packages": packages(torch="2.1.0+cpu", setuptools="69.0.0")}},
     "numpy<2"),
    ("cpu", "packages.checkpoints", WARNING,
     {"torch": {"version": "2.7.1+cpu"}, "deepspeed": {"version": "0.15.4"},
      "interpreter": {"packages": packages(torch="2.7.1+cpu", deepspeed="0.15.4")}}, "checkpoints"),
    ("cpu", "packages.requirement", ERROR,
     {"interpreter": {"packages": packages(numpy=None)}, "deepspeed": {
         "ok": False, "error": "ModuleNotFoundError: No module named 'numpy'"}}, "install 'numpy'"),
    ("cpu", "packages.companions", ERROR, {"interpreter": {"packages": packages(torchvision="0.20.0")}},
     "install torchvision 0.28.0"),
    ("cpu", "packages.twice", WARNING,
     {"interpreter": {
         "packages": [{"name": "numpy", "version": "1.26.4", "location": "/root/.local/lib"}, *packages()]}},
     "hides"),
    ("cpu", "prebuilt.torch", ERROR, {"deepspeed": {"torch_info": {"version": "2.9"}}}, "here is torch 2.13"),
    ("gpu", "prebuilt.cuda", ERROR, {"deepspeed": {"torch_info": {"cuda_version": "12.8"}}}, "here is CUDA 13.0"),
    ("gpu", "prebuilt.torch", WARNING,
     {"deepspeed": {"installed_ops": ["fused_adam"], "torch_info": {"version": "2.9"}}}, "does not load"),
    ("cpu", "imports.pydantic", ERROR,
     {"deepspeed": {"ok": False, "error": "AttributeError: 'FieldInfo' object has no attribute 'field_info'"}},
     "DeepSpeed cannot be imported"),
    ("cpu", "imports.libstdcxx", ERROR,
     {"torch": {"ok": False, "error": "ImportError: /x/libstdc++.so.6: version `GLIBCXX_3.4.32' not found"}},
     "GLIBCXX"),
    ("cpu", "imports.isa", ERROR, {"torch": {"ok": False, "error": "ended by signal 4"}}, "this CPU"),
    ("cpu", "imports.module", ERROR, {"deepspeed": {
        "ok": False, "error": "ModuleNotFoundError: No module named 'hjson'",
        "trace": ['  File "/x/deepspeed/accelerator/real_accelerator.py", line 1', "    import numpy"]}}, "'hjson'"),
    ("cpu", "imports.slow", WARNING, {"torch": {"ok": False, "error": "not done after 120 s"}}, "file system"),
    ("cpu", "packages.more", INFO, {"interpreter": {"packages": [*packages(), {
        "name": "transformers", "version": "4.50", "location": SITE, "requires": [f"lost-{n}" for n in range(25)]}]}},
     "5 more"),
    ("cpu", "imports.unknown", ERROR, {"deepspeed": {"ok": False, "error": "ZeroDivisionError"}}, "ZeroDivisionError"),
    ("cpu", "imports.nothing", WARNING,
     {"interpreter": {"packages": []}, "torch": None, "deepspeed": None, "ops": []}, "--python"),
    ("cpu", "imports.nothing", ERROR,
     {"interpreter": {"packages": packages(torch=None)}, "ops": [],
      "torch": {"ok": False, "error": "ModuleNotFoundError: No module named 'torch'", "version": None},
      "deepspeed": {"ok": False, "error": "ModuleNotFoundError: No module named 'torch'", "version": None}},
      "no torch"),
    ("cpu", "ninja.missing", ERROR, merged(JIT, tools(machine(), "ninja")), "its program is not on PATH"),
    ("cpu", "python-headers.missing", ERROR, {**JIT, "interpreter": {"header": False}}, "python3.11-dev"),
    ("gpu", "curand.headers", ERROR,
     merged(CU118, kit(version="11.8", headers=["cuda_runtime.h"]), tools(gpu_machine(), gcc="11.4.0")),
     "curand_kernel.h"),
    ("gpu", "curand.library", ERROR, {**JIT, **kit(libraries=["libcudart.so"])}, "-lcurand"),
    ("cpu", "libaio.missing", ERROR, merged(nvme(), UNBUILT_AIO, {"libaio": {"header": True}}), "no libaio.so,"),
    ("cpu", "libaio.old", ERROR,
     merged(nvme(), UNBUILT_AIO, {"deepspeed": {"version": "0.16.8"}, "libaio": {
         "header": True, "link": "/usr/lib64/libaio.so", "path": "/usr/lib64/libaio.so.1",
         "provides": ["LIBAIO_0.4"]}}),
     "too old"),
    ("cpu", "launcher.missing", WARNING,
     {"environment": {"WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8"}, "tools": [*tools(machine())["tools"],
      {"name": "pdsh", "role": "shell"}]},
     "pdsh"),
    ("gpu", "shm.small", WARNING, {"machine": {"shm": {"total": 64 << 20, "free": 64 << 20}}}, "64 MiB"),
    ("cpu", "shm.small", INFO, {"machine": {"shm": {"total": 64 << 20, "free": 64 << 20}}}, "--shm-size=1g"),
    ("gpu", "shm.full", WARNING, {"machine": {"shm": {"free": 1 << 20}}}, "1 MiB of 64 GiB"),
    ("gpu", "shm.unwritable", ERROR, {"machine": {"shm": {"writable": False}}}, "1777"),
    ("gpu", "shm.unwritable", ERROR, {"machine": {"shm": {"total": 0, "free": 0, "writable": False}}}, "no /dev/shm"),
    ("gpu", "memlock.limited", WARNING,
     {"machine": {"memlock": [8 << 20, 8 << 20], "infiniband": ["mlx5_0"]}}, "InfiniBand (mlx5_0)"),
    ("cpu", "memlock.limited", WARNING, merged(nvme(), {"machine": {"memlock": [8 << 20, None]}}),
     "--ulimit memlock=-1"),
    ("gpu", "memlock.limited", WARNING, {"machine": {"memlock": [8 << 20, None], "infiniband": ["mlx5_0"],
                                                     "container": "kubernetes"}}, "IPC_LOCK"),
    ("cpu", "memory.killed", WARNING, {"machine": {"memory": {"oom_kills": 2}}}, "has killed 2"),
    ("cpu", "nvme.missing", ERROR, nvme(exists=False), "-v"),
    ("cpu", "nvme.missing", ERROR, nvme(exists=False, error="it does not answer"), "it does not answer"),
    ("cpu", "nvme.full", ERROR, nvme(direct=None, error="Disk quota exceeded"), "in your quota"),
    ("cpu", "nvme.full", ERROR, nvme(writable=False, direct=None, error="No space left on device"), "free room"),
    ("cpu", "nvme.unwritable", ERROR, nvme(direct=None, error="Input/output error"), "writing to it fails: Input"),
    ("cpu", "nvme.fuse", WARNING, nvme(kind="fuseblk"), "a process serves"),
    ("cpu", "nvme.unwritable", ERROR, nvme(writable=False), "cannot write"),
    ("cpu", "nvme.unwritable", ERROR, nvme(options=["ro", "noatime"]), "read-only"),
    ("cpu", "nvme.direct", ERROR, nvme(direct=False, error="Invalid argument"), "O_DIRECT: Invalid argument"),
    ("cpu", "nvme.memory", WARNING, nvme(kind="tmpfs"), "host memory"),
    ("cpu", "nvme.layer", WARNING, nvme(kind="overlay"), "writable layer"),
    ("cpu", "nvme.network", WARNING, nvme(kind="nfs4"), "over the network"),
    ("cpu", "nvme.rotational", WARNING, nvme(rotational=True, device="/dev/sda1"), "rotating"),
    ("cpu", "nvme.rotational", WARNING, nvme(rotational=True, device="/dev/mapper/vg0-swap"), "rotating"),
    ("cpu", "nvme.options", WARNING, nvme(options=["rw", "sync"]), "without sync"),
    ("cpu", "nvme.space", WARNING, nvme(free=1 << 20), "1 MiB is free"),
    ("cpu", "nvme.bandwidth", INFO, nvme(read_bandwidth=4e9, write_bandwidth=2e9), "at least 12 s a step"),
    ("cpu", "numa.nodes", INFO,
     {"machine": {"numa": [{"node": 0, "cpus": 16}, {"node": 1, "cpus": 16}, {"node": 2, "cpus": 0}]}},
     "1 that is memory alone"),
    ("cpu", "environment.nccl-error-handling", WARNING, {"environment": {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0"}},
     "wait for it"),
    ("cpu", "environment.nccl-error-handling", INFO, {"environment": {"NCCL_ASYNC_ERROR_HANDLING": "1"}},
     "reads TORCH_"),
    ("gpu", "environment.ds-accelerator", WARNING, {"environment": {"DS_ACCELERATOR": "cpu"}}, "trains on the CPU"),
    ("cpu", "environment.ds-accelerator", ERROR, {"environment": {"DS_ACCELERATOR": "cuda"}}, "without CUDA"),
    ("gpu", "environment.cuda-visible-devices", WARNING,
     {"environment": {"CUDA_VISIBLE_DEVICES": ""}, "torch": {"available": False}}, "hides all 2"),
    ("gpu", "environment.cuda-visible-devices", WARNING, {"environment": {"CUDA_VISIBLE_DEVICES": "0,7"}},
     "only those before it"),
    ("gpu", "environment.cuda-visible-devices", ERROR, {"environment": {"CUDA_VISIBLE_DEVICES": "4,5"}},
     "none is seen"),
    ("gpu", "environment.cuda-visible-devices", ERROR, {"environment": {"CUDA_VISIBLE_DEVICES": "all"}}, "'all'"),
    ("gpu", "environment.cuda-visible-devices", WARNING,
     {"environment": {"CUDA_VISIBLE_DEVICES": "NoDevFiles", "SLURM_NTASKS": "1"}, "torch": {"available": False}},
     "ask Slurm for GPUs"),
    ("gpu", "environment.nccl-p2p-level", WARNING, {"environment": {"NCCL_P2P_LEVEL": "LOC"}}, "copy to one another"),
    ("gpu", "environment.nccl-p2p-disable", WARNING, {"environment": {"NCCL_P2P_DISABLE": "1"}}, "copy to one another"),
    ("gpu", "environment.nccl-ib-disable", WARNING,
     {"environment": {"NCCL_IB_DISABLE": "1"}, "machine": {"infiniband": ["mlx5_0"]}}, "InfiniBand"),
    ("gpu", "environment.cuda-launch-blocking", WARNING, {"environment": {"CUDA_LAUNCH_BLOCKING": "1"}}, "unset it"),
    ("cpu", "environment.omp-num-threads", WARNING, {"environment": {"OMP_NUM_THREADS": "1"}}, "one thread of 32"),
    ("cpu", "environment.pythonhome", WARNING, {"environment": {"PYTHONHOME": "/opt/x"}}, "PYTHONHOME"),
    ("cpu", "shadows.outside", WARNING, {"environment": {"PYTHONPATH": f"/code:{SITE}/"}}, "deepspeed, numpy"),
    ("cpu", "shadows.module", ERROR,
     {"environment": {"PYTHONPATH": "/code:/mine"}, "torch": {
         "ok": False, "error": "ImportError: cannot import name 'Random' from 'random' (/mine/random.py)"}},
     "Python's own random"),
    ("cpu", "shadows.module", ERROR,
     {"environment": {"PYTHONPATH": "/mine"}, "torch": {"file": "/mine/torch.py", "version": None},
      "deepspeed": {"ok": False, "error": "No module named 'torch.optim'; 'torch' is not a package"}},
     "the environment's own torch"),
    ("cpu", "interpreter.dead", ERROR,
     {"interpreter": {"version": None, "packages": []}, "torch": None, "deepspeed": None, "ops": [],
      "errors": [{"part": "interpreter", "error": "the interpreter ended with exit code 3; no license"}]}, "*.pth"),
    ("cpu", "interpreter.dead", ERROR,
     {"torch": None, "deepspeed": None, "environment": {"PYTHONPATH": "/x"},
      "errors": [{"part": "interpreter", "error": "ended by signal 11"}]}, "take back what PYTHONPATH"),
    ("cpu", "interpreter.closed", ERROR, {"interpreter": {"closed": [SITE]}}, "chmod -R a+rX"),
    ("cpu", "installation.damaged", ERROR,
     {"torch": {"ok": False, "error": "ImportError: libtorch_cpu.so: cannot open shared object file"}, "damaged": [
         {"name": "torch", "version": "2.13.0+cpu", "missing": [f"{SITE}/torch/lib/libtorch_cpu.so"], "count": 1}]},
     "no build cpu"),
    ("cpu", "installation.damaged", WARNING,
     {"torch": {"ok": False, "error": "ImportError: something else"}, "damaged": [
         {"name": "torch", "version": "2.13.0+cpu", "missing": [f"{SITE}/torch/tests/odd.py"], "count": 1}]},
     "1 of its files is gone"),
    ("cpu", "installation.damaged", INFO, {"damaged": [{"name": "torch", "version": "2", "record": False}]}, "RECORD"),
    ("cpu", "imports.permission", ERROR,
     {"torch": {"ok": False, "error": "OSError: /x/libc10.so: cannot open: Permission denied"}}, "a+rX"),
    ("cpu", "disk.unwritable", ERROR,
     {**JIT, "machine": {"disks": [{"use": "cache", "path": "/root/.cache/torch_extensions", "writable": False}]}},
     "TORCH_EXTENSIONS_DIR"),
    ("cpu", "disk.full", ERROR, {**JIT, "machine": {"disks": [{"use": "cache", "path": "/x", "free": 4096}]}}, "4 KiB"),
    ("cpu", "ops.gone", ERROR, {"deepspeed": {"lost_ops": ["cpu_adam"]}}, "DS_BUILD_CPU_ADAM=1"),
    ("cpu", "packages.records", WARNING,
     {"interpreter": {"packages": [
         {"name": "torch", "version": "2.1.0", "location": SITE, "info": "torch-2.1.0.dist-info"}, *packages()]}},
     f"{SITE}/torch-2.1.0.dist-info"),
    ("cpu", "environment.torch-extensions-dir", INFO,
     {**JIT, "environment": {"TORCH_EXTENSIONS_DIR": "/tmp/ext"}}, "compiled again"),
    ("cpu", "alternatives.split", WARNING,
     merged(tools(machine(), gcc="11.4.0"), {"environment": {"CC": None, "CXX": None},
            "alternatives": [{"name": "gcc", "link": "/usr/bin/gcc", "value": "/usr/bin/gcc-11"}]}), "gcc is GCC 11"),
    ("gpu", "container.driver", ERROR,
     {"machine": {"container": "docker"}, "environment": {"NVIDIA_DRIVER_CAPABILITIES": "utility"},
      "gpu": {"libcuda": None}}, "without compute"),
    ("gpu", "container.without-gpus", WARNING,
     {"machine": {"container": "docker", "modules": None}, "gpu": None, "torch": {"available": False},
      "deepspeed": {"accelerator": "cpu"}, "environment": {"NVIDIA_VISIBLE_DEVICES": "void"}}, "'void'"),
    ("gpu", "selinux.enforcing", INFO, {"machine": {"selinux": "enforcing"}}, "leave SELinux itself on"),
    ("gpu", "network.unknown", ERROR, {"environment": {"NCCL_SOCKET_IFNAME": "ib"}}, "lo, eno1"),
    ("cpu", "network.unknown", ERROR, {"environment": {"GLOO_SOCKET_IFNAME": "^docker"}}, "eth0"),
    ("gpu", "network.virtual", INFO,
     {"environment": {"SLURM_NNODES": "2"}, "machine": {"interfaces": [
         {"name": "virbr0", "up": True, "virtual": True}, {"name": "eno1", "up": True, "virtual": False}]}}, "virbr0"),
    ("gpu", "network.p2p", INFO, {"gpu": {"devices": [
        {"index": n, "name": "NVIDIA GeForce RTX 4090", "sm": "8.9"} for n in range(2)]},
        "torch": {"architectures": ["sm_80", "sm_86"]}}, "NCCL_P2P_DISABLE=1"),
    ("gpu", "gpu-arch.torch", ERROR, {"torch": {"architectures": ["sm_90a", "sm_80"]}, "gpu": {"devices": [
        {"index": 0, "name": "x", "sm": "9.1"}]}}, "9.0a"),
    ("gpu", "wsl.pinned", WARNING, {"machine": {"wsl": True}}, ".wslconfig"),
)  # fmt: skip
# What else may be said above an info about a machine that is changed so: by the rule, or what it begins with.
ALSO: dict[str, set[str]] = {
    "driver.old": {"libcuda"}, "driver.missing": {"libcuda"}, "nvml.mismatch": {"libcuda"},
    "packages.pydantic": {"packages.requirement", "packages.cpu", "prebuilt"},
    "packages.checkpoints": {"packages.cpu", "prebuilt"}, "packages.old-torch": {"prebuilt"},
    "imports.nothing": {"packages.requirement"}, "packages.requirement": {"imports.numpy"}, "launcher.missing": set(),
    "shadows.module": {"imports"}, "interpreter.dead": {"imports"}, "installation.damaged": {"imports"},
    "packages.more": {"packages.requirement"},
    "gpu-arch.without-cuda": {"cuda-libraries", "ops", "libcuda", "prebuilt"},
    "network.p2p": {"ops.sm"}, "toolkit.absent": {"imports.nvcc"}, "host-compiler.nvcc": set(),
}  # fmt: skip
# Worlds that are old as a whole: whatever else is said about them is not the matter of the case.
LOOSE = {"toolkit.gpu", "host-compiler.nvcc", "host-compiler.language", "curand.headers", "libaio.old"}
