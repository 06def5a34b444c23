"""The checks of native code: healthy machines have nothing to tell, and each fault is named by the right check.

Each fault is the smallest change of a healthy machine that makes it. That the loader's answers are the real loader's,
and that faults of real environments are found, is the business of the integration tests.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from pydantic import ValidationError

from envbuild.doctor import run as running
from envbuild.doctor.checks import (
    CHECKS,
    abi,
    compilers,
    cuda_libraries,
    glibc,
    isa,
    jit,
    libcuda,
    libstdcxx,
    loader,
    nccl,
    ops,
    unfit,
)
from envbuild.doctor.collection import Collection
from envbuild.doctor.layers import layers
from envbuild.doctor.order import groups
from envbuild.doctor.view import Check, View
from envbuild.model import Finding, Severity
from machines import (
    CACHE,
    CPU_ADAM,
    FUSED_ADAM,
    LIB,
    LIBCUDA,
    NCCL,
    SHM_COMM,
    SITE,
    STDCXX,
    TORCH,
    gpu_machine,
    gpu_packages,
    machine,
    native,
    op,
    op_file,
    packages,
    stdcxx,
    view,
)

MINE = (
    abi.CHECK, compilers.CHECK, cuda_libraries.CHECK, glibc.CHECK, isa.CHECK, jit.CHECK, libcuda.CHECK, libstdcxx.CHECK,
    loader.CHECK, nccl.CHECK, ops.CHECK, unfit.CHECK,
)  # fmt: skip
ERROR, WARNING, INFO = Severity.ERROR, Severity.WARNING, Severity.INFO
CONDA = "/home/me/miniconda3/envs/train"
JIT = f"{CACHE}/cpu_adam/cpu_adam.so"
SEEDS = ["/opt/venv/bin/python", f"{TORCH}/libtorch_global_deps.so", f"{SITE}/torch/_C.cpython-311-x86_64-linux-gnu.so"]
SNAPPY = f"{CONDA}/lib/python3.11/site-packages/snappy/_snappy.so"
CU12 = "/usr/local/cuda-12.1/lib64"
AIO = f"{SITE}/deepspeed/ops/aio/async_io_op.cpython-311-x86_64-linux-gnu.so"
OLD_STRINGS = "_ZN3c105ErrorC2ENS_14SourceLocationESs"


def found(collection: Collection, checks: tuple[Check, ...] = MINE) -> list[Finding]:
    """What they say that is no mere information."""
    every = running.run(view(collection), checks)
    for finding in every:
        assert finding.message and finding.fix and finding.source, finding
        assert "LD_PRELOAD=" not in finding.command and "update-alternatives" not in finding.fix + finding.command
    return [finding for finding in every if finding.severity is not INFO]


def cached(**changes: Any) -> dict[str, Any]:
    """A GPU machine whose cpu_adam is in the JIT cache."""
    file = changes.pop("file", op_file())
    return {
        "files": {JIT: file}, "gone": [CPU_ADAM], "deepspeed": {"installed_ops": ["fused_adam"]},
        "ops": [op(JIT, "cached", **changes), op(FUSED_ADAM, sm=["sm_90"])],
        "libraries": {"seeds": [*SEEDS, JIT, FUSED_ADAM]},
    }  # fmt: skip


def on_gpu(**changes: Any) -> Collection:
    return gpu_machine(**changes)


@pytest.mark.parametrize("collection", [machine(), gpu_machine(), gpu_machine(**cached())], ids=["cpu", "gpu", "jit"])
def test_a_healthy_machine_has_nothing_to_tell_but_its_layers(collection: Collection) -> None:
    assert found(collection) == []
    assert [finding.rule for finding in running.run(view(collection), MINE)] == ["compilers"]


@dataclass(frozen=True)
class Fault:
    """A change of a machine; the rule and severity that have to come of it, words of message, fix and command."""

    make: Collection
    rule: str
    severity: Severity
    message: tuple[str, ...] = ()
    fix: tuple[str, ...] = ()
    command: str = ""
    besides: tuple[str, ...] = field(default=())


BAD = "/opt/bad/libstdc++.so.6"
BAD_FIRST = {"LD_LIBRARY_PATH": "/opt/bad/:/usr/local/lib"}
FAULTS: dict[str, Fault] = {
    "text in the place of libstdc++": Fault(
        machine(libraries={"broken": {BAD: "not ELF"}, "paths": {BAD: BAD}}, environment=BAD_FIRST),
        "unfit.damaged",
        ERROR,
        (BAD, "by LD_LIBRARY_PATH", "is not an ELF file", "libtorch_cpu.so"),
        ("take /opt/bad/ out of LD_LIBRARY_PATH", "every library then resolves"),
        "export LD_LIBRARY_PATH=/usr/local/lib",
    ),
    "a folder in the place of libc10": Fault(
        machine(
            libraries={"broken": {f"{TORCH}/libc10.so": "not ELF: a folder"}, "files": {f"{TORCH}/libc10.so": None}},
            torch={"ok": False, "error": "ImportError: libc10.so: cannot read file data: Is a directory"},
        ),
        "unfit.damaged",
        ERROR,
        ("libc10.so (of torch)", "RUNPATH of", "(a folder)"),
        ("install torch again",),
    ),
    "a libstdc++ without versions, with no symbol that is asked of it": Fault(
        machine(
            files={BAD: native("libc.so.6", soname="libstdc++.so.6")},
            libraries={"lacks": {BAD: ["_ZSt4cout"]}},
            environment=BAD_FIRST,
        ),
        "unfit.unversioned",
        ERROR,
        (BAD, "by LD_LIBRARY_PATH", "no symbol versions", "_ZSt4cout"),
        ("take /opt/bad/ out of LD_LIBRARY_PATH",),
        "export LD_LIBRARY_PATH=/usr/local/lib",
    ),
    "an empty libcuda that a mount has left in an image (fabricated GPU)": Fault(
        gpu_machine(
            libraries={"broken": {LIBCUDA: "not ELF: it is empty"}, "files": {LIBCUDA: None}},
            torch={"maps": {"libcuda.so.580.95.05": None}, "available": False},
        ),
        "unfit.damaged",
        ERROR,
        (LIBCUDA, "is what the loader takes for libcuda.so.1", "it is empty"),
        ("build the image without the NVIDIA runtime",),
    ),
    "an older libstdc++ in a hardware folder of a folder that is written with a link": Fault(
        machine(
            files={"/opt/new/glibc-hwcaps/x86-64-v3/libstdc++.so.6": stdcxx(28, 12)},
            links={"/opt/old": "/opt/new"},
            libraries={"paths": {"/opt/new": "/opt/new"}},
            environment={"LD_LIBRARY_PATH": "/usr/local/lib:;/opt/old/"},
        ),
        "libstdcxx.shadowed",
        ERROR,
        ("/glibc-hwcaps/x86-64-v3/libstdc++.so.6", "LD_LIBRARY_PATH"),
        ("take /opt/old/ out of LD_LIBRARY_PATH", "every library then resolves"),
        "export LD_LIBRARY_PATH=/usr/local/lib",
    ),
    "an older libstdc++ that /etc/ld.so.preload names": Fault(
        machine(files={"/opt/old/libstdc++.so.6": stdcxx(28, 12)}, libraries={"preload": "/opt/old/libstdc++.so.6\n"}),
        "libstdcxx.shadowed",
        ERROR,
        ("won by /etc/ld.so.preload",),
        ("take /opt/old/libstdc++.so.6 out of /etc/ld.so.preload (tried",),
        besides=("loader.preload",),
    ),
    "an older libstdc++ in a hardware folder of the system": Fault(
        machine(files={f"{LIB}/glibc-hwcaps/x86-64-v2/libstdc++.so.6": stdcxx(28, 12)},
                links={"/lib/x86_64-linux-gnu/glibc-hwcaps/x86-64-v2/libstdc++.so.6":
                       f"{LIB}/glibc-hwcaps/x86-64-v2/libstdc++.so.6"}),
        "libstdcxx.shadowed",
        ERROR,
        ("a default folder of the loader",),
        ("remove /lib/x86_64-linux-gnu/glibc-hwcaps/x86-64-v2/libstdc++.so.6",),
    ),
    "a library of another torch": Fault(
        machine(
            files={"/opt/libtorch/lib/libc10.so": native("libc.so.6", soname="libc10.so")},
            environment={"LD_LIBRARY_PATH": "/opt/libtorch/lib"},
            torch={"ok": False, "error": "ImportError: libtorch_cpu.so: undefined symbol: FLAGS_caffe2_log_level"},
        ),
        "loader.other-torch",
        ERROR,
        ("/opt/libtorch/lib/libc10.so is loaded, by LD_LIBRARY_PATH", TORCH),
        ("take /opt/libtorch/lib out of LD_LIBRARY_PATH",),
        "unset LD_LIBRARY_PATH",
    ),
    "the interpreter's own library is empty": Fault(
        machine(
            files={"/usr/bin/python3.11": native("libpython3.11.so.1.0", "libc.so.6", kind="executable")},
            libraries={"broken": {f"{LIB}/libpython3.11.so.1.0": "not ELF: it is empty"}},
            torch={"ok": False, "error": "ended"},
        ),
        "unfit.damaged",
        ERROR,
        (f"{LIB}/libpython3.11.so.1.0", "/usr/bin/python3.11"),
    ),
    "an older libstdc++ in a folder that is named from the working directory": Fault(
        machine(
            files={"/job/lib/libstdc++.so.6": stdcxx(28, 12),},
            libraries={"folder": "/job"},
            environment={"LD_LIBRARY_PATH": "lib:/usr/local/lib"},
        ),
        "libstdcxx.shadowed",
        ERROR,
        fix=("take lib out of LD_LIBRARY_PATH",),
        command="export LD_LIBRARY_PATH=/usr/local/lib",
    ),
    "an older libstdc++ in LD_LIBRARY_PATH": Fault(
        machine(
            files={"/opt/old/lib/libstdc++.so.6": stdcxx(28, 12)},
            environment={"LD_LIBRARY_PATH": "/opt/old/lib:/usr/local/lib"},
        ),
        "libstdcxx.shadowed",
        ERROR,
        ("op cpu_adam", "GLIBCXX_3.4.30 (GCC 12.1", "/opt/old/lib/libstdc++.so.6", "3.4.28 at most", "LD_LIBRARY_PATH"),
        ("take /opt/old/lib out of LD_LIBRARY_PATH", "every library then resolves"),
        "export LD_LIBRARY_PATH=/usr/local/lib",
    ),
    "an older libstdc++ is preloaded": Fault(
        machine(
            files={"/opt/old/libstdc++.so.6": stdcxx(28, 12)}, environment={"LD_PRELOAD": "/opt/old/libstdc++.so.6"}
        ),
        "libstdcxx.shadowed",
        ERROR,
        ("won by LD_PRELOAD",),
        ("take /opt/old/libstdc++.so.6 out of LD_PRELOAD",),
        "unset LD_PRELOAD",
        ("loader.preload",),
    ),
    "a conda package came first with conda's older libstdc++": Fault(
        machine(
            files={
                SNAPPY: native("libstdc++.so.6", "libc.so.6", rpath=["$ORIGIN/../../.."]),
                f"{CONDA}/lib/libstdc++.so.6.0.28": stdcxx(28, 12),
            },
            links={f"{CONDA}/lib/libstdc++.so.6": f"{CONDA}/lib/libstdc++.so.6.0.28"},
            libraries={"seeds": [SEEDS[0], SNAPPY, *SEEDS[1:], CPU_ADAM]},
        ),
        "libstdcxx",
        ERROR,
        (f"of the conda environment {CONDA}", f"RPATH of {SNAPPY}"),
        ("conda package libstdcxx-ng>=12",),
        f"conda install -p {CONDA} -c conda-forge 'libstdcxx-ng>=12'",
    ),
    "the system's libstdc++ is too old for torch, conda has a better one": Fault(
        machine(
            files={STDCXX: stdcxx(19, 7), f"{CONDA}/lib/libstdc++.so.6": stdcxx(33, 15)},
            libraries={
                "elsewhere": {"libstdc++.so.6": [f"{CONDA}/lib/libstdc++.so.6"]},
                "paths": {f"{CONDA}/lib/": f"{CONDA}/lib"},
            },
        ),
        "libstdcxx",
        ERROR,
        ("libtorch_cpu.so", "CXXABI_1.3.11 (GCC 7.1", "GLIBCXX_3.4.19 at most", "of the system"),
        (f"start Python with {CONDA}/lib in front", "every library then resolves"),
        f"export LD_LIBRARY_PATH={CONDA}/lib",
    ),
    "a cached op of a newer compiler, and the one of today is old enough": Fault(
        on_gpu(**cached(file=op_file(glibcxx="GLIBCXX_3.4.32"))),
        "libstdcxx",
        ERROR,
        ("the op in the JIT cache cpu_adam", "GLIBCXX_3.4.32 (GCC 13.2"),
        (f"remove its folder {CACHE}/cpu_adam", "GCC 12.2.0"),
        f"rm -r {CACHE}/cpu_adam",
    ),
    "an older libstdc++ of conda's waits for a package that is imported before torch": Fault(
        machine(
            files={f"{CONDA}/lib/libstdc++.so.6.0.28": stdcxx(28, 12)},
            libraries={"elsewhere": {"libstdc++.so.6": [f"{CONDA}/lib/libstdc++.so.6.0.28"]}},
            interpreter={"prefix": CONDA, "kind": "conda"},
        ),
        "libstdcxx.waiting",
        WARNING,
        (f"{CONDA}/lib/libstdc++.so.6.0.28", "GLIBCXX_3.4.28", "op cpu_adam", "GLIBCXX_3.4.30"),
        command=f"conda install -p {CONDA} -c conda-forge 'libstdcxx-ng>=12'",
    ),
    "numbers, not texts: 3.4.9 is older than 3.4.30": Fault(
        machine(files={STDCXX: stdcxx(9, 13)}), "libstdcxx", ERROR, ("GLIBCXX_3.4.9 at most",), ("use a base",)
    ),
    "the compiler of the next op is newer than the libstdc++": Fault(
        machine(tools=[{"name": "CXX", "role": "CXX", "path": "/usr/bin/g++-14", "version": "14.2.0"}]),
        "libstdcxx.jit",
        WARNING,
        ("/usr/bin/g++-14", "GLIBCXX_3.4.33", "GLIBCXX_3.4.30"),
    ),
    "an op of a newer distribution": Fault(
        on_gpu(**cached(file=op_file(requires={"libc.so.6": ["GLIBC_2.38"]}))),
        "glibc",
        ERROR,
        ("GLIBC_2.38", "GLIBC_2.36 at most"),
        (f"remove its folder {CACHE}/cpu_adam", "trixie"),
        f"rm -r {CACHE}/cpu_adam",
    ),
    "torch is for a newer distribution": Fault(
        machine(
            files={
                f"{TORCH}/libc10.so": native(
                    "libm.so.6", "libc.so.6", soname="libc10.so", requires={"libm.so.6": ["GLIBC_2.41"]}
                )
            }
        ),
        "glibc",
        ERROR,
        ("libc10.so (of torch)", "GLIBC_2.41"),
        ("use a base with glibc 2.41",),
    ),
    "an op of the old string ABI": Fault(
        machine(files={CPU_ADAM: op_file(cxx11_abi=False)}),
        "abi.strings",
        ERROR,
        ("the old C++ string ABI", "torch 2.13.0+cpu the new one"),
        ("DS_BUILD_CPU_ADAM=1", "_GLIBCXX_USE_CXX11_ABI"),
    ),
    "an extension that asks for the old ABI's names": Fault(
        machine(ops=[op(CPU_ADAM), op(f"{SITE}/fa.so", "other", "flash_attn_2_cuda", absent=[OLD_STRINGS])]),
        "abi.symbols",
        ERROR,
        ("extension flash_attn_2_cuda", OLD_STRINGS, "names of the old C++ string ABI"),
        ("install the package of flash_attn_2_cuda again",),
    ),
    "a stale cached op": Fault(
        on_gpu(**cached(absent=["_ZN3c104impl8GPUTrace13gpuTraceStateE"])),
        "jit.stale",
        ERROR,
        ("gpuTraceState", "another torch"),
        (f"remove its folder {CACHE}/cpu_adam", "TORCH_EXTENSIONS_DIR"),
        f"rm -r {CACHE}/cpu_adam",
    ),
    "a cache that another environment has written": Fault(
        on_gpu(**cached(built_against="/other/lib/python3.11/site-packages/torch/include", absent=["_ZN3c103foo"])),
        "jit.stale",
        WARNING,
        besides=("jit.shared",),
    ),
    "a lock that nobody holds": Fault(
        on_gpu(**cached(lock=7200.0)),
        "jit.locked",
        ERROR,
        ("for 2 hours",),
        (f"{CACHE}/cpu_adam/lock",),
        f"rm {CACHE}/cpu_adam/lock",
    ),
    "a lock that somebody may hold": Fault(on_gpu(**cached(lock=60.0)), "jit.locked", WARNING, ("60 seconds",)),
    "a build that never ended": Fault(
        on_gpu(ops=[{"kind": "cached", "name": "cpu_adam", "root": CACHE, "key": "py311_cu130"}]),
        "jit.half-built",
        WARNING,
        (f"{CACHE}/cpu_adam holds no library",),
        command=f"rm -r {CACHE}/cpu_adam",
    ),
    "a library of the system is not there": Fault(
        machine(files={CPU_ADAM: op_file("libnuma.so.1")}),
        "loader.unresolved",
        ERROR,
        ("op cpu_adam", "libnuma.so.1 is not found"),
        ("package libnuma1",),
    ),
    "a library of an op that nobody needs yet": Fault(
        machine(
            files={AIO: op_file("libaio.so.1")},
            ops=[op(CPU_ADAM), op(AIO)],
            libraries={"seeds": [*SEEDS, CPU_ADAM, AIO]},
        ),
        "loader.unresolved",
        WARNING,
        ("op async_io", "libaio.so.1 is not found"),
        ("libaio1",),
    ),
    "an op that was linked against CUDA 11": Fault(
        on_gpu(**cached(file=op_file("libcudart.so.11.0"))),
        "loader.unresolved",
        ERROR,
        ("libcudart.so.11.0 is not found",),
        ("this torch is built for 13.0", "remove its folder"),
        f"rm -r {CACHE}/cpu_adam",
    ),
    "a CUDA toolkit in LD_LIBRARY_PATH that harms nobody yet": Fault(
        on_gpu(environment={"LD_LIBRARY_PATH": "/usr/local/cuda/lib64"}),
        "loader.cuda-path",
        WARNING,
        ("/usr/local/cuda/lib64", "wheels"),
        command="unset LD_LIBRARY_PATH",
    ),
    "its libnvJitLink goes before the wheel's": Fault(
        on_gpu(
            environment={"LD_LIBRARY_PATH": f"{CU12}:"},
            files={f"{CU12}/libnvJitLink.so.13": native("libc.so.6", soname="libnvJitLink.so.13")},
        ),
        "cuda-libraries.shadowed",
        ERROR,
        ("libnvJitLink.so.13", "of CUDA 12.1", "LD_LIBRARY_PATH", "nvidia/cu13/lib/libnvJitLink.so.13", "libcusparse"),
        ("the wheels' copies are then loaded",),
        "unset LD_LIBRARY_PATH",
        ("loader.cuda-path",),
    ),
    "stubs in LD_LIBRARY_PATH": Fault(
        on_gpu(environment={"LD_LIBRARY_PATH": "/usr/local/cuda-13.0/lib64/stubs"}),
        "loader.stubs",
        WARNING,
        command="unset LD_LIBRARY_PATH",
    ),
    "conda's libraries for a Python that is not conda's": Fault(
        machine(environment={"LD_LIBRARY_PATH": f"{CONDA}/lib"}), "loader.conda-path", WARNING, (CONDA,)
    ),
    "a preload that is not there": Fault(
        machine(environment={"LD_PRELOAD": "/gone/libjemalloc.so"}), "loader.preload", WARNING, ("libjemalloc",)
    ),
    "conda's linker on PATH": Fault(
        machine(
            environment={"PATH": f"{CONDA}/compiler_compat:/usr/bin"},
            tools=[{"name": "ld", "role": "shell", "path": f"{CONDA}/compiler_compat/ld", "says": "GNU ld 2.38"}],
        ),
        "loader.conda-linker",
        WARNING,
        (f"{CONDA}/compiler_compat/ld",),
        command="export PATH=/usr/bin",
    ),
    "two sets of NVIDIA's wheels": Fault(
        on_gpu(interpreter={"packages": gpu_packages(nvidia_cudnn_cu12="9.1.0.70", nvidia_cublas_cu12="12.4.5.8")}),
        "cuda-libraries.majors",
        ERROR,
        ("nvidia-cudnn-cu12 9.1.0.70", "torch is built for CUDA 13"),
        command="pip uninstall -y nvidia-cudnn-cu12 nvidia-cublas-cu12 && "
        "pip install --no-deps --force-reinstall nvidia-cudnn-cu13==9.19.0.56",
    ),
    "two NCCL wheels": Fault(
        on_gpu(interpreter={"packages": gpu_packages(nvidia_nccl_cu12="2.29.3")}),
        "nccl.two-wheels",
        ERROR,
        ("nvidia-nccl-cu12 2.29.3", "torch 2.11.0+cu130 is built for CUDA 13"),
        command="pip uninstall -y nvidia-nccl-cu12 && "
        "pip install --no-deps --force-reinstall nvidia-nccl-cu13==2.28.9",
        besides=("cuda-libraries.majors",),
    ),
    "the system's NCCL wins, and is too old": Fault(
        on_gpu(
            environment={"LD_PRELOAD": f"{LIB}/libnccl.so.2"},
            files={f"{LIB}/libnccl.so.2.18.5": native("libstdc++.so.6", "libc.so.6", soname="libnccl.so.2")},
            links={f"{LIB}/libnccl.so.2": f"{LIB}/libnccl.so.2.18.5"},
            libraries={"lacks": {f"{LIB}/libnccl.so.2.18.5": ["ncclCommRegister"]}},
            torch={"ok": False, "error": "ImportError: libtorch_cuda.so: undefined symbol: ncclCommRegister"},
        ),
        "nccl.symbols",
        ERROR,
        ("libnccl.so.2.18.5 (of the system)", "LD_PRELOAD", NCCL, "ncclCommRegister", "NCCL 2.28.9"),
        ("out of LD_PRELOAD", "the wheel's is then loaded"),
        "unset LD_PRELOAD",
        ("loader.preload",),
    ),
    "an NCCL wheel that a later install has exchanged": Fault(
        on_gpu(interpreter={"packages": gpu_packages(nvidia_nccl_cu13="2.27.7")}),
        "nccl.version",
        ERROR,
        ("2.27.7", "2.28.9"),
        command="pip install --no-deps --force-reinstall nvidia-nccl-cu13==2.28.9",
    ),
    "a newer NCCL than torch's": Fault(
        on_gpu(interpreter={"packages": gpu_packages(nvidia_nccl_cu13="2.29.7")}), "nccl.version", WARNING
    ),
    "an import that NCCL has ended": Fault(
        on_gpu(torch={"ok": False, "error": "ImportError: undefined symbol: ncclCommResume"}),
        "nccl.import",
        ERROR,
        ("ncclCommResume", "2.28.9"),
    ),
    "a compatibility library before a newer driver": Fault(
        on_gpu(
            files={"/usr/local/cuda-12.1/compat/libcuda.so.530.30.02": native("libc.so.6", soname="libcuda.so.1")},
            links={"/usr/local/cuda-12.1/compat/libcuda.so.1": "/usr/local/cuda-12.1/compat/libcuda.so.530.30.02"},
            environment={"LD_LIBRARY_PATH": "/usr/local/cuda-12.1/compat"},
            gpu={"libcuda": {"/usr/local/cuda-12.1/compat/libcuda.so.1": "530.30.02"}},
            torch={"maps": {"libcuda.so.580.95.05": None}},
        ),
        "libcuda.compat",
        ERROR,
        ("530.30.02", "580.95.05", "LD_LIBRARY_PATH"),
        ("needs none",),
    ),
    "a stub for libcuda": Fault(
        on_gpu(
            files={"/usr/local/cuda/lib64/stubs/libcuda.so.1": native("libc.so.6", soname="libcuda.so.1")},
            environment={"LD_LIBRARY_PATH": "/usr/local/cuda/lib64/stubs"},
            torch={"maps": {"libcuda.so.580.95.05": None}},
        ),
        "libcuda.stub",
        ERROR,
        ("stub",),
        besides=("loader.stubs",),
    ),
    "a libcuda of another driver": Fault(
        on_gpu(gpu={"libcuda": {f"{LIB}/libcuda.so.1": "575.57.08"}}),
        "libcuda.mismatch",
        ERROR,
        ("575.57.08", "580.95.05"),
    ),
    "a container with GPUs and no libcuda": Fault(
        on_gpu(
            gone=[f"{LIB}/libcuda.so.1", "/lib/x86_64-linux-gnu/libcuda.so.1"],
            gpu={"libcuda": None},
            machine={"container": "docker"},
            torch={"maps": {"libcuda.so.580.95.05": None}},
        ),
        "libcuda.missing",
        ERROR,
        fix=("NVIDIA_DRIVER_CAPABILITIES",),
    ),
    "an op for other GPUs": Fault(
        on_gpu(ops=[op(CPU_ADAM), op(FUSED_ADAM, sm=["sm_80"])]),
        "ops.sm",
        ERROR,
        ("fused_adam", "sm_80", "NVIDIA H200", "sm_90"),
        ("TORCH_CUDA_ARCH_LIST",),
    ),
    "an op with PTX only": Fault(
        on_gpu(ops=[op(CPU_ADAM), op(FUSED_ADAM, sm=["sm_80", "compute_80"])]), "ops.sm", WARNING, ("PTX",)
    ),
    "a damaged op": Fault(
        machine(libraries={"broken": {CPU_ADAM: "it ends inside its header"}}), "ops.damaged", ERROR, ("damaged",)
    ),
    "an op of another Python": Fault(
        machine(interpreter={"version": "3.12.3"}), "ops.python", ERROR, ("another Python than 3.12",)
    ),
    "AVX-512 on a CPU without": Fault(
        on_gpu(**cached(flags=["-march=native", "-D__AVX512__"]), machine={"cpu": {"flags": ["avx", "avx2", "fma"]}}),
        "isa.flags",
        ERROR,
        ("-D__AVX512__", "no avx512f"),
        command=f"rm -r {CACHE}/cpu_adam",
    ),
    "AVX-512 in the code of a prebuilt op": Fault(
        machine(ops=[op(CPU_ADAM, wide=900.0)], machine={"cpu": {"flags": ["avx", "avx2", "fma"]}}),
        "isa.code",
        ERROR,
        ("full of AVX-512",),
        ("DS_BUILD_CPU_ADAM=1",),
    ),
    "an import that an instruction has ended": Fault(
        machine(torch={"ok": False, "signal": 4, "error": "ended by signal 4"}), "isa.signal", ERROR, ("illegal",)
    ),
    "a Python that was built with a compiler that is not here": Fault(
        machine(
            environment={"CC": None},
            tools=[
                {"name": "c++", "role": "shell", "path": "/usr/bin/c++", "version": "12.2.0"},
                {"name": "CXX", "role": "sysconfig", "error": "not found"},
            ],
            interpreter={"build": {"CXX": "x86_64-conda-linux-gnu-c++ -pthread"}},
        ),
        "compilers.python",
        WARNING,
        ("x86_64-conda-linux-gnu-c++",),
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_every_fault_is_named_by_its_check(fault: Fault) -> None:
    every = found(fault.make)
    rules = [finding.rule for finding in every]
    assert fault.rule in rules, rules
    finding = every[rules.index(fault.rule)]
    assert finding.severity is fault.severity
    for word in fault.message:
        assert word in finding.message, finding.message
    for word in fault.fix:
        assert word in finding.fix, finding.fix
    assert not fault.command or finding.command == fault.command, finding.command
    assert set(rules) - {fault.rule} <= set(fault.besides), every
    # An error of a native check explains an import that failed with it; ops are loaded later than that.
    check = next(check for check in MINE if fault.rule.startswith(check.name))
    explains = any(name.startswith("imports.") for name in check.explains)
    assert fault.severity is not ERROR or explains is (check.name not in ("jit", "ops")), check


def test_commands_stand_the_mask_and_strange_names() -> None:
    masked = "/home/USER/.cache/torch_extensions/py311_cu130/cpu_adam"
    locked = gpu_machine(ops=[op(f"{masked}/cpu_adam.so", "cached", lock=9000.0)])
    assert [each.command for each in found(locked)] == ['rm "$HOME"/.cache/torch_extensions/py311_cu130/cpu_adam/lock']
    stale = op("/my cache/$(x)/cpu_adam/cpu_adam.so", "cached", absent=["_ZN3c103foo"])
    assert [each.command for each in found(gpu_machine(ops=[stale]))] == ["rm -r '/my cache/$(x)/cpu_adam'"]
    library_path = {"LD_LIBRARY_PATH": "/home/USER/lib:/usr/local/cuda/lib64:/a b"}
    assert found(gpu_machine(environment=library_path))[0].command == "export LD_LIBRARY_PATH=\"$HOME\"/lib:'/a b'"


def test_what_is_not_this_pythons_is_not_looked_at() -> None:
    other = {**op(JIT, "cached", lock=7200.0, absent=["_ZN3c103fooE"]), "key": "py310_cu130"}
    assert found(gpu_machine(ops=[other])) == []
    cu118 = {**op(JIT, "cached", lock=7200.0, absent=["_ZN3c103fooE"]), "key": "py311_cu118"}
    assert found(gpu_machine(ops=[cu118])) == []
    folder = {**op("/scratch/ext/cpu_adam/cpu_adam.so", "cached", lock=7200.0), "key": "ext"}
    assert [finding.rule for finding in found(gpu_machine(ops=[folder]))] == ["jit.locked"]


def test_a_newer_compatibility_library_and_a_gcc_toolset_are_fine() -> None:
    newer = gpu_machine(
        files={"/usr/local/cuda/compat/libcuda.so.590.1.1": native("libc.so.6", soname="libcuda.so.1")},
        links={"/usr/local/cuda/compat/libcuda.so.1": "/usr/local/cuda/compat/libcuda.so.590.1.1"},
        environment={"LD_LIBRARY_PATH": "/usr/local/cuda/compat"},
        gpu={"libcuda": {"/usr/local/cuda/compat/libcuda.so.1": "590.1.1"}},
        torch={"maps": {"libcuda.so.580.95.05": None}},
    )
    assert found(newer) == []
    toolset = {"name": "c++", "role": "shell", "path": "/opt/rh/gcc-toolset-14/root/usr/bin/c++", "version": "14.2.1"}
    assert found(machine(tools=[toolset])) == []


def test_code_that_asks_the_cpu_first_is_fine() -> None:
    without = {"cpu": {"flags": ["avx", "avx2", "fma"]}}
    assert found(machine(ops=[op(CPU_ADAM, wide=2.2), op(SHM_COMM, wide=90.0)], machine=without)) == []
    # DeepSpeed 0.19.7 compiles the same code, and does not ask.
    old = machine(
        ops=[op(SHM_COMM, wide=90.0)], machine=without, interpreter={"packages": packages(deepspeed="0.19.7")}
    )
    assert [finding.rule for finding in found(old)] == ["isa.code"]


def test_nothing_collected_is_nothing_said_and_no_crash() -> None:
    bare = Collection.model_validate({"schema": "envbuild.collection/1", "taken": ""})
    assert running.run(view(bare), MINE) == []
    # An interpreter, and nothing of its libraries: that is said.
    alone = machine(libraries=None, ops=[])
    assert [finding.rule for finding in running.run(view(alone), MINE)] == ["compilers", "loader.unknown"]


def _places(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if isinstance(value, dict):
        for key, below in value.items():
            yield (*place, key)
            yield from _places(below, (*place, key))
    elif isinstance(value, list):
        for number, below in enumerate(value):
            yield from _places(below, (*place, number))


@pytest.mark.parametrize("whole", [machine(), gpu_machine(**cached(lock=5.0))], ids=["cpu", "gpu"])
def test_no_hole_in_a_collection_breaks_a_check(whole: Collection) -> None:
    """The collector may have missed anything, and a file that was sent here may say anything."""
    strange = op("/a b/x.so", "cached", "deepspeed_shm_comm", lock=-1.0, wide=1e9, absent=[""], sm=["sm_", "what"])
    text = whole.model_dump_json(by_alias=True)
    for place in _places(json.loads(text)):
        for instead in (None, "", "x.y.z"):
            changed = json.loads(text)
            changed["ops"].append({**strange, "key": "", "flags": ["-march=", "-m"]})
            at = changed
            for key in place[:-1]:
                at = at[key]
            at[place[-1]] = instead
            try:
                collection = Collection.model_validate(changed)
            except ValidationError:
                continue
            every = running.run(view(collection), MINE)
            assert not [finding for finding in every if finding.rule.startswith(running.BROKEN)], (place, every)


def test_a_check_that_breaks_down_is_told_and_stops_no_other() -> None:
    def broken(seen: View) -> list[Finding]:
        raise KeyError("nvcc\nof nothing")

    checks = (Check(name="broken", title="", look=broken), *MINE)
    first, *rest = running.run(view(machine()), checks)
    assert first.rule == "broken-check.broken" and first.severity is WARNING and "nvcc" in first.message
    assert rest == running.run(view(machine()), MINE)


def test_the_layers_say_who_compiled_what_and_what_serves_them() -> None:
    by_name = {layer.title: layer for layer in layers(view(machine()))}
    torch, adam = by_name["torch's libraries"], by_name["cpu_adam"]
    assert (torch.compiler, torch.abi, torch.needs[0]) == ("GCC 13.3.1", "new", "GLIBCXX_3.4.22")
    assert (adam.compiler, adam.abi, adam.note) == ("GCC 12.2.0", "new", "prebuilt")
    assert by_name["compiler of JIT ops"].where == "/usr/bin/g++-12"
    assert by_name["libstdc++ that is loaded"].provides == ("GLIBCXX_3.4.30", "CXXABI_1.3.13")
    # Without CXX it is c++ by PATH that torch calls.
    plain = machine(tools=[dataclasses.asdict(each) if dataclasses.is_dataclass(each) else each.model_dump()
                           for each in machine().tools if each.role != "CXX"])  # fmt: skip
    assert {layer.title: layer.note for layer in layers(view(plain))}["compiler of JIT ops"] == "by PATH"
    assert LIBCUDA and STDCXX


def test_what_an_import_says_decides_whose_echo_it_is() -> None:
    """No import loads an op of the JIT cache: the lock of one is no reason for a torch that lacks numpy's module."""
    failed = {"ok": False, "error": "ModuleNotFoundError: No module named 'numpy'"}
    broken = gpu_machine(ops=[op(JIT, "cached", lock=7200.0)], torch=failed)
    roots = [each.root.rule for each in groups(running.run(view(broken)), CHECKS) if each.root.severity is ERROR]
    assert "jit.locked" in roots and any(rule.startswith("imports.") for rule in roots)
