"""Machines as the collector would have seen them: two healthy ones, as data, and every fault as a change of them.

``machine()`` is a Debian 12 container with torch 2.13.0+cpu, ``gpu_machine()`` a host with two H200, CUDA 13.0 and
torch 2.11.0+cu130. Names, RPATHs, needs and symbol versions were read from the files of images of that kind; libraries
that no check asks for are left out.

A change is what ``document`` merges into the collection, place by place: a mapping goes into a mapping, anything else
takes the place of what was there, None deletes. Three changes are for native code: ``files`` puts ELF files
(``native``) where they are found, ``links`` gives a file another name, ``gone`` takes paths away.
"""

from __future__ import annotations

import datetime
import functools
from collections.abc import Iterable, Mapping
from typing import Any

from envbuild import facts
from envbuild.doctor.collection import Collection
from envbuild.doctor.view import View
from envbuild.model import Environment

LIB = "/usr/lib/x86_64-linux-gnu"
SITE = "/opt/venv/lib/python3.11/site-packages"
TORCH = f"{SITE}/torch/lib"
CPU_ADAM = f"{SITE}/deepspeed/ops/adam/cpu_adam_op.cpython-311-x86_64-linux-gnu.so"
SHM_COMM = f"{SITE}/deepspeed/ops/comm/deepspeed_shm_comm_op.cpython-311-x86_64-linux-gnu.so"
FUSED_ADAM = f"{SITE}/deepspeed/ops/adam/fused_adam_op.cpython-311-x86_64-linux-gnu.so"
STDCXX = f"{LIB}/libstdc++.so.6.0.30"
NCCL = f"{SITE}/nvidia/nccl/lib/libnccl.so.2"
LIBCUDA = f"{LIB}/libcuda.so.580.95.05"
CACHE = "/root/.cache/torch_extensions/py311_cu130"
TODAY = datetime.date(2026, 11, 30)

DEBIAN = "GCC: (Debian 12.2.0-14+deb12u1) 12.2.0"
TORCHS = "GCC: (GNU) 13.3.1 20240611 (Red Hat 13.3.1-2)"
_NVIDIA_RPATH = tuple(f"$ORIGIN/../../nvidia/{name}/lib" for name in ("cudnn", "nvshmem", "nccl", "cusparselt", "cu13"))
_LOADER = "/lib64/ld-linux-x86-64.so.2"
_AVX512 = ("avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")
_FLAGS = (
    "fpu", "cx8", "cmov", "mmx", "fxsr", "sse", "sse2", "cx16", "lahf_lm", "popcnt", "pni", "sse4_1", "sse4_2", "ssse3",
    "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe", "xsave", "osxsave", *_AVX512,
)  # fmt: skip


def native(
    *needed: str, soname: str | None = None, requires: Mapping[str, Iterable[str]] | None = None, **changes: Any
) -> dict[str, Any]:
    """An ELF file: what it needs, and by library the symbol versions that it asks for."""
    asked = [[library, version, False] for library, versions in (requires or {}).items() for version in versions]
    base: dict[str, Any] = {
        "machine": "x86_64", "bits": 64, "kind": "shared", "soname": soname, "needed": list(needed), "requires": asked,
    }  # fmt: skip
    return {**base, "versioned": bool(changes.get("provides")), **changes}


def stdcxx(newest: int, cxxabi: int, comment: str = DEBIAN) -> dict[str, Any]:
    """A libstdc++.so.6 up to GLIBCXX_3.4.newest and CXXABI_1.3.cxxabi."""
    provides = ["libstdc++.so.6", *_series("GLIBCXX_3.4", newest), *_series("CXXABI_1.3", cxxabi)]
    return native(
        "libm.so.6", "libc.so.6", soname="libstdc++.so.6", provides=provides, comment=[comment],
        requires={"libc.so.6": ["GLIBC_2.2.5", "GLIBC_2.17"]},
    )  # fmt: skip


def op(
    path: str, kind: str = "prebuilt", name: str | None = None, **changes: Any
) -> dict[str, Any]:  # a compiled op of the list ``ops``
    """An entry of ``ops``; of a cached one also where it was built."""
    stem = path.rpartition("/")[2].partition(".")[0].removesuffix("_op")
    found: dict[str, Any] = {"kind": kind, "name": name or stem, "file": path, "age": 86400.0}
    if kind == "cached":
        root = path.rsplit("/", 2)[0]
        found |= {
            "root": root, "key": root.rpartition("/")[2], "built_against": f"{SITE}/torch/include",
            "flags": ["-std=c++20", "-march=native"], "compiler": "c++", "undefined": [],
        }  # fmt: skip
    return {**found, **changes}


def op_file(*needed: str, glibcxx: str = "GLIBCXX_3.4.30", **changes: Any) -> dict[str, Any]:
    """The ELF file of an op as GCC 12.2 compiles it."""
    base: dict[str, Any] = {
        "requires": {
            "libstdc++.so.6": ["GLIBCXX_3.4", "GLIBCXX_3.4.21", "CXXABI_1.3.9", glibcxx],
            "libc.so.6": ["GLIBC_2.2.5", "GLIBC_2.34"],
        },
        "comment": [DEBIAN],
        "cxx11_abi": True,
    }
    needs = ("libc10.so", "libtorch_cpu.so", "libtorch_python.so", "libstdc++.so.6", "libm.so.6", "libc.so.6")
    return native(*needed, *needs, **{**base, **changes})


def machine(**changes: Any) -> Collection:
    """A healthy container for the CPU, with changes."""
    return Collection.model_validate(document(_cpu(), changes))


def gpu_machine(**changes: Any) -> Collection:
    """A healthy GPU host, with changes."""
    return Collection.model_validate(document(_gpu(), changes))


def view(collection: Collection, row: Environment | None = None, **fields: Any) -> View:
    """A view of a machine, on the day that the facts are of."""
    return View(collection=collection, facts=facts.load(), row=row, **{"today": TODAY, **fields})


def packages(**changes: str | None) -> list[dict[str, Any]]:
    """The packages of the CPU machine; an underscore stands for a hyphen, None takes one away."""
    return _packages({**_PACKAGES, **{name.replace("_", "-"): version for name, version in changes.items()}})


def gpu_packages(**changes: str | None) -> list[dict[str, Any]]:
    """The packages of the GPU machine."""
    known = {**_PACKAGES, **_GPU_PACKAGES, **{name.replace("_", "-"): value for name, value in changes.items()}}
    return _packages(known)


def document(base: dict[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """A collection's JSON document with changes."""
    changes = dict(changes)
    libraries = base["libraries"]
    for path, file in dict(changes.pop("files", {})).items():
        libraries["files"][path] = file
        libraries["paths"][path] = path
    for link, path in dict(changes.pop("links", {})).items():
        libraries["paths"][link] = path
    for path in changes.pop("gone", ()):
        libraries["paths"].pop(path)
        libraries["files"].pop(path, None)
    return _merged(base, changes)


def _merged(base: Any, change: Any) -> Any:
    if not (isinstance(base, dict) and isinstance(change, Mapping)):
        return change
    merged = {**base, **{key: _merged(base.get(key), value) for key, value in change.items()}}
    return {key: value for key, value in merged.items() if value is not None or key not in change}


def _series(family: str, newest: int) -> list[str]:
    return [family, *(f"{family}.{number}" for number in range(1, newest + 1))]


_PACKAGES: dict[str, str | None] = {
    "torch": "2.13.0+cpu", "deepspeed": "0.19.8", "numpy": "2.3.5", "pydantic": "2.12.5", "setuptools": "80.9.0",
    "packaging": "25.0", "ninja": "1.13.0", "psutil": "7.1.3", "hjson": "3.1.0", "einops": "0.8.1", "msgpack": "1.1.2",
    "py-cpuinfo": "9.0.0", "tqdm": "4.67.1", "typing-extensions": "4.15.0",
}  # fmt: skip
_GPU_PACKAGES: dict[str, str | None] = {
    "torch": "2.11.0", "triton": "3.6.0", "nvidia-nccl-cu13": "2.28.9", "nvidia-cudnn-cu13": "9.19.0.56",
    "nvidia-cublas": "13.1.0.3", "nvidia-cuda-runtime": "13.0.96", "nvidia-cusparse": "12.6.3.3",
    "nvidia-nvjitlink": "13.0.88", "nvidia-ml-py": "13.580.82",
}  # fmt: skip


def _packages(known: Mapping[str, str | None]) -> list[dict[str, Any]]:
    needs = {"deepspeed": ["numpy", "pydantic>=2.0.0", "ninja", "torch"], "torch": ["typing-extensions", "setuptools"]}
    return [
        {"name": name, "version": version, "location": SITE, "requires": needs.get(name, [])}
        for name, version in known.items()
        if version is not None
    ]


@functools.cache
def _glibc() -> tuple[str, ...]:
    return ("libc.so.6", "GLIBC_2.2.5", *(f"GLIBC_2.{number}" for number in range(3, 37)), "GLIBC_PRIVATE")


def _system() -> tuple[dict[str, Any], dict[str, str]]:
    """The libraries of Debian 12 and their names."""
    glibc = list(_glibc())
    files: dict[str, Any] = {
        f"{LIB}/ld-linux-x86-64.so.2": native(soname="ld-linux-x86-64.so.2", provides=glibc),
        f"{LIB}/libc.so.6": native("ld-linux-x86-64.so.2", soname="libc.so.6", provides=glibc),
        f"{LIB}/libm.so.6": native("libc.so.6", soname="libm.so.6", provides=glibc),
        f"{LIB}/libgcc_s.so.1": native("libc.so.6", soname="libgcc_s.so.1", provides=["GCC_3.0", "GCC_3.4"]),
        STDCXX: stdcxx(30, 13),
        "/usr/bin/python3.11": native(
            "libm.so.6", "libc.so.6", kind="executable", interp=_LOADER,
            requires={"libc.so.6": ["GLIBC_2.2.5", "GLIBC_2.35"], "libm.so.6": ["GLIBC_2.29"]},
        ),
    }  # fmt: skip
    paths = {path: path for path in files}
    paths |= {f"/lib/x86_64-linux-gnu/{path.rpartition('/')[2]}": path for path in files if path.startswith(LIB)}
    for folder in (LIB, "/lib/x86_64-linux-gnu"):
        paths |= {f"{folder}/libstdc++.so.6": STDCXX, f"{folder}/libstdc++.so.6.0.30": STDCXX}
    paths |= {_LOADER: f"{LIB}/ld-linux-x86-64.so.2", "/opt/venv/bin/python": "/usr/bin/python3.11"}
    return files, paths


def _torch(where: str, path: tuple[str, ...], *cuda: str) -> dict[str, Any]:
    """torch's own libraries; ``where`` is rpath in CUDA builds, runpath in CPU builds."""
    own = {where: [*path, "$ORIGIN"], "comment": [TORCHS], "cxx11_abi": True}
    asked = {
        "libstdc++.so.6": ["GLIBCXX_3.4", "GLIBCXX_3.4.9", "GLIBCXX_3.4.22", "CXXABI_1.3.11"],
        "libc.so.6": ["GLIBC_2.2.5", "GLIBC_2.28"],
    }
    base = ("libstdc++.so.6", "libgcc_s.so.1", "libm.so.6", "libc.so.6")
    module = {where: [*path, "$ORIGIN", "$ORIGIN/lib"], "comment": [TORCHS]}
    return {
        f"{TORCH}/libc10.so": native(*base, soname="libc10.so", requires=asked, **own),
        f"{TORCH}/libtorch_cpu.so": native(
            "libc10.so", *cuda, *base, soname="libtorch_cpu.so", requires=asked, **own
        ),
        f"{TORCH}/libtorch_global_deps.so": native(
            "libm.so.6", *cuda, "libc.so.6", soname="libtorch_global_deps.so", **{where: [*path, "$ORIGIN"]}
        ),
        f"{TORCH}/libtorch_python.so": native(
            *(("libtorch_cuda.so",) if cuda else ()), "libtorch_cpu.so", "libc10.so", *base,
            soname="libtorch_python.so", requires=asked, **own,
        ),
        f"{SITE}/torch/_C.cpython-311-x86_64-linux-gnu.so": native("libtorch_python.so", "libc.so.6", **module),
    }  # fmt: skip


def _wheels() -> dict[str, Any]:
    """NVIDIA's wheels: their libraries look for one another by RUNPATH, which LD_LIBRARY_PATH goes before."""
    cu13, base = f"{SITE}/nvidia/cu13/lib", ("libm.so.6", "libgcc_s.so.1", "libc.so.6")
    asked = {"libc.so.6": ["GLIBC_2.2.5", "GLIBC_2.17"]}
    beside: dict[str, Any] = {"runpath": ["$ORIGIN"], "requires": asked}
    return {
        f"{cu13}/libcudart.so.13": native(
            *base, soname="libcudart.so.13", provides=["libcudart.so.13"], requires=asked
        ),
        f"{cu13}/libcublas.so.13": native("libcublasLt.so.13", *base, soname="libcublas.so.13", **beside),
        f"{cu13}/libcublasLt.so.13": native(*base, soname="libcublasLt.so.13", **beside),
        f"{cu13}/libcusparse.so.12": native("libnvJitLink.so.13", *base, soname="libcusparse.so.12", **beside),
        f"{cu13}/libnvJitLink.so.13": native(*base, soname="libnvJitLink.so.13", **beside),
        f"{SITE}/nvidia/cudnn/lib/libcudnn.so.9": native(*base, soname="libcudnn.so.9", **beside),
        NCCL: native(
            "libstdc++.so.6", *base, soname="libnccl.so.2",
            requires={"libstdc++.so.6": ["GLIBCXX_3.4.19", "CXXABI_1.3.9"], "libc.so.6": ["GLIBC_2.18"]},
        ),
    }  # fmt: skip


def _cpu() -> dict[str, Any]:
    files, paths = _system()
    own = {
        **_torch("runpath", ()),
        CPU_ADAM: op_file(),
        SHM_COMM: op_file(glibcxx="GLIBCXX_3.4.19"),
    }
    files |= own
    paths |= {path: path for path in own}
    python = {
        "executable": "/opt/venv/bin/python",
        "real": "/usr/bin/python3.11",
        "version": "3.11.2",
        "kind": "venv",
        "prefix": "/opt/venv",
        "base": "/usr",
        "build": {
            "CC": "x86_64-linux-gnu-gcc",
            "CXX": "x86_64-linux-gnu-g++",
            "LDSHARED": "x86_64-linux-gnu-gcc -shared -Wl,-O1 -Wl,-Bsymbolic-functions",
            "CFLAGS": "-Wsign-compare -DNDEBUG -g -fwrapv -O2 -Wall",
            "LDFLAGS": "",
        },
        "include": "/usr/include/python3.11",
        "header": True,
        "path": ["/usr/lib/python311.zip", "/usr/lib/python3.11", "/usr/lib/python3.11/lib-dynload", SITE],
        "packages": packages(),
    }
    maps = {
        "libstdc++.so.6.0.30": STDCXX,
        "libc.so.6": f"{LIB}/libc.so.6",
        "libc10.so": f"{TORCH}/libc10.so",
        "libtorch_cpu.so": f"{TORCH}/libtorch_cpu.so",
    }
    return {
        "schema": "envbuild.collection/1",
        "taken": "2026-11-30T10:00:00Z",
        "collector": "0.1.0",
        "seconds": {"torch": 2.1, "deepspeed": 3.4, "libraries": 0.4},
        "machine": {
            "kernel": "6.1.0-26-amd64",
            "distribution": {"id": "debian", "version": "12", "name": "Debian GNU/Linux 12 (bookworm)", "like": []},
            "glibc": "2.36",
            "cpu": {
                "model": "Intel(R) Xeon(R) Platinum 8480+", "machine": "x86_64", "flags": list(_FLAGS),
                "level": "x86-64-v4", "count": 32, "usable": 32,
            },
            "memory": {"total": 256 << 30, "available": 240 << 30, "swap": 0},
            "shm": {"total": 64 << 30, "free": 64 << 30, "writable": True, "kind": "tmpfs"},
            "memlock": [None, None],
            "nofile": [1048576, 1048576],
            "container": "docker",
            "uid": 0,
            "numa": [{"node": 0, "cpus": 32, "total": 256 << 30, "free": 240 << 30}],
            "numa_balancing": False,
            "interfaces": [
                {"name": "lo", "up": True, "virtual": True, "loopback": True},
                {"name": "eth0", "up": True, "virtual": True},
            ],
        },
        "environment": {
            "PATH": "/opt/venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "CC": "/usr/bin/gcc-12", "CXX": "/usr/bin/g++-12", "DS_ACCELERATOR": "cpu", "VIRTUAL_ENV": "/opt/venv",
        },
        "interpreter": python,
        "tools": [
            *(_tool(name, "shell", f"/usr/bin/{name}", f"/usr/bin/x86_64-linux-gnu-{name}-12", "12.2.0")
              for name in ("gcc", "g++")),
            *(_tool(name, "shell", f"/usr/bin/{name}", f"/usr/bin/x86_64-linux-gnu-{real}-12", "12.2.0")
              for name, real in (("cc", "gcc"), ("c++", "g++"))),
            _tool("CC", "CC", "/usr/bin/gcc-12", "/usr/bin/x86_64-linux-gnu-gcc-12", "12.2.0"),
            _tool("CXX", "CXX", "/usr/bin/g++-12", "/usr/bin/x86_64-linux-gnu-g++-12", "12.2.0"),
            _tool("CXX", "sysconfig", "/usr/bin/x86_64-linux-gnu-g++",
                  "/usr/bin/x86_64-linux-gnu-g++-12", "12.2.0"),
            _tool("ninja", "shell", "/opt/venv/bin/ninja", "/opt/venv/bin/ninja", "1.13.0"),
            _tool("ld", "shell", "/usr/bin/ld", "/usr/bin/x86_64-linux-gnu-ld.bfd", "2.40"),
        ],
        "compiles": [{"compiler": "/usr/bin/g++-12", "works": True}],
        "torch": {
            "ok": True, "version": "2.13.0+cpu", "file": f"{SITE}/torch/__init__.py", "seconds": 2.0, "maps": maps,
            "cxx11_abi": True, "architectures": [], "available": False, "lib": TORCH,
        },
        "deepspeed": {
            "ok": True, "version": "0.19.8", "file": f"{SITE}/deepspeed/__init__.py", "seconds": 3.0,
            "accelerator": "cpu", "installed_ops": ["cpu_adam", "deepspeed_shm_comm"],
            "torch_info": {"version": "2.13", "cuda_version": "0.0", "nccl_version": "0.0", "bf16_support": "True"},
        },
        "ops": [op(CPU_ADAM), op(SHM_COMM)],
        "libraries": {
            "loader": {
                "path": _LOADER, "machine": "x86_64", "lib": "lib/x86_64-linux-gnu", "hwcaps": True, "legacy": False,
                "folders": ["/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/lib", "/usr/lib"],
            },
            "files": files,
            "broken": {},
            "paths": paths,
            "seeds": [
                "/opt/venv/bin/python", f"{TORCH}/libtorch_global_deps.so",
                f"{SITE}/torch/_C.cpython-311-x86_64-linux-gnu.so", CPU_ADAM, SHM_COMM,
            ],
            "elsewhere": {},
        },
        "system": {
            "manager": "dpkg",
            "packages": {"libc6": "2.36-9+deb12u13", "libstdc++6": "12.2.0-14+deb12u1", "g++-12": "12.2.0-14+deb12u1"},
        },
    }  # fmt: skip


def _gpu() -> dict[str, Any]:
    """What the GPU host has otherwise than the container."""
    base = _cpu()
    own = {
        **_torch("rpath", _NVIDIA_RPATH, "libcudart.so.13"),
        **_wheels(),
        f"{TORCH}/libc10_cuda.so": native(
            "libc10.so", "libcudart.so.13", "libstdc++.so.6", "libc.so.6", soname="libc10_cuda.so",
            rpath=[*_NVIDIA_RPATH, "$ORIGIN"], comment=[TORCHS],
        ),
        f"{TORCH}/libtorch_cuda.so": native(
            "libc10_cuda.so", "libcudart.so.13", "libcusparse.so.12", "libnccl.so.2", "libcublas.so.13",
            "libcublasLt.so.13", "libcudnn.so.9", "libc10.so", "libtorch_cpu.so", "libstdc++.so.6", "libc.so.6",
            soname="libtorch_cuda.so", rpath=[*_NVIDIA_RPATH, "$ORIGIN"], comment=[TORCHS], cxx11_abi=True,
            requires={"libstdc++.so.6": ["GLIBCXX_3.4.22", "CXXABI_1.3.11"], "libc.so.6": ["GLIBC_2.27"]},
        ),
        FUSED_ADAM: op_file("libcudart.so.13", "libc10_cuda.so", glibcxx="GLIBCXX_3.4.21"),
        LIBCUDA: native("libm.so.6", "libc.so.6", soname="libcuda.so.1"),
    }  # fmt: skip
    links = {f"{folder}/libcuda.so.1": LIBCUDA for folder in (LIB, "/lib/x86_64-linux-gnu")}
    toolkit = "/usr/local/cuda-13.0"
    changes: dict[str, Any] = {
        "files": own,
        "links": links,
        "gone": [SHM_COMM],
        "machine": {
            "container": None,
            "modules": {"nvidia": "580.95.05"},
            "interfaces": [
                {"name": "lo", "up": True, "virtual": True, "loopback": True},
                {"name": "eno1", "up": True, "virtual": False},
            ],
        },
        "environment": {
            "PATH": f"/opt/venv/bin:{toolkit}/bin:/usr/local/bin:/usr/bin:/bin", "CUDA_HOME": "/usr/local/cuda",
            "DS_ACCELERATOR": None,
        },
        "interpreter": {"packages": gpu_packages()},
        "tools": [
            *base["tools"],
            _tool("nvcc", "shell", f"{toolkit}/bin/nvcc", f"{toolkit}/bin/nvcc", "13.0"),
            _tool("nvcc", "cuda_home", "/usr/local/cuda/bin/nvcc", f"{toolkit}/bin/nvcc", "13.0"),
        ],
        "toolkits": [
            {
                "path": "/usr/local/cuda", "real": toolkit, "found_by": "CUDA_HOME,nvcc,default", "version": "13.0",
                "nvcc": True, "headers": ["cuda_runtime.h", "curand_kernel.h", "cublas_v2.h", "cusparse.h"],
                "libraries": ["libcudart.so", "libcurand.so", "libcublas.so", "libcusparse.so"],
                "lib": f"{toolkit}/lib64", "taken_by_torch": True,
            }
        ],
        "gpu": {
            "module": "580.95.05", "nvml": "580.95.05", "cuda": "13.0", "pci": 2,
            "libcuda": {f"{LIB}/libcuda.so.1": "580.95.05"},
            "devices": [
                {"index": index, "name": "NVIDIA H200", "sm": "9.0", "memory": 141 << 30, "mig": False}
                for index in range(2)
            ],
            "device_files": ["/dev/nvidia-uvm", "/dev/nvidia0", "/dev/nvidia1", "/dev/nvidiactl"],
        },
        "torch": {
            "version": "2.11.0+cu130", "cuda": "13.0", "nccl": "2.28.9", "available": True,
            "architectures": ["sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120"],
            "maps": {"libnccl.so.2": NCCL, "libcuda.so.580.95.05": LIBCUDA,
                     "libcudart.so.13": f"{SITE}/nvidia/cu13/lib/libcudart.so.13"},
        },
        "deepspeed": {
            "accelerator": "cuda", "installed_ops": ["cpu_adam", "fused_adam"],
            "torch_info": {"version": "2.11", "cuda_version": "13.0", "nccl_version": "2.28"},
        },
        "ops": [op(CPU_ADAM), op(FUSED_ADAM, sm=["sm_90"])],
        "libraries": {
            "seeds": [
                "/opt/venv/bin/python", f"{TORCH}/libtorch_global_deps.so",
                f"{SITE}/torch/_C.cpython-311-x86_64-linux-gnu.so", CPU_ADAM, FUSED_ADAM,
            ],
        },
    }  # fmt: skip
    return document(base, changes)


def _tool(name: str, role: str, path: str, real: str, version: str) -> dict[str, Any]:
    says = f"{name} {version}"
    return {"name": name, "role": role, "path": path, "real": real, "version": version, "says": says}
