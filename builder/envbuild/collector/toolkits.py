"""CUDA toolkits: every one that something would find, and the one that torch takes."""

import glob
import json
import os
import re

from .common import is_program, opened, real
from .tools import asked_version

# What DeepSpeed's and torch's extensions include and link.
_HEADERS = (
    "cuda.h", "cuda_runtime.h", "cuda_runtime_api.h", "curand.h", "curand_kernel.h", "cublas_v2.h", "cusparse.h",
    "cusolverDn.h", "cufile.h", "nccl.h", "cudnn.h", "cuda_fp16.h", "cuda_bf16.h", "thrust/version.h", "cub/cub.cuh",
)  # fmt: skip
_LIBRARIES = (
    "libcudart.so", "libcurand.so", "libcublas.so", "libcublasLt.so", "libcusparse.so", "libcusolver.so",
    "libcufile.so", "libnccl.so", "libcudnn.so", "libnvrtc.so", "libnvJitLink.so", "libcudart_static.a",
)  # fmt: skip
_COUNT = 40
# A variable is worth a line even when it leads to a folder with nothing in it.
_SAID = ("CUDA_HOME", "CUDA_PATH", "CUDA_ROOT", "CUDA_TOOLKIT_ROOT_DIR")


def toolkits(host, interpreter, nvcc, pool):
    """Every toolkit, each real folder once.

    Args:
        host: The machine.
        interpreter: What the examined interpreter is.
        nvcc: nvcc by PATH, or None.
        pool: Compilers are asked for their versions at the same time.
    """
    taken = taken_by_torch(host, nvcc)
    found = {}

    def add(path, how):
        if path and len(found) < _COUNT and os.path.isdir(path):
            toolkit = found.get(real(path)) or (described(path) if looks_like_one(path) or how in _SAID else None)
            if toolkit:
                found[real(path)] = toolkit
                if how not in toolkit["found_by"].split(","):
                    toolkit["found_by"] = ",".join(filter(None, (toolkit["found_by"], how)))

    for name in _SAID:
        add(host.environ.get(name), name)
    if nvcc:
        add(os.path.dirname(os.path.dirname(nvcc)), "nvcc")
        add(os.path.dirname(os.path.dirname(real(nvcc))), "nvcc")
    for path in sorted(glob.glob(host.path("/usr/local/cuda*")) + glob.glob(host.path("/opt/cuda*"))):
        add(path, "default")
    add(interpreter.get("prefix"), "conda" if interpreter.get("kind") == "conda" else "prefix")
    prefix = host.environ.get("CONDA_PREFIX")
    add(prefix, "conda")
    add(os.path.join(prefix, "targets", "x86_64-linux") if prefix else None, "conda")
    for folder in interpreter.get("path") or ():
        for path in sorted(glob.glob(os.path.join(glob.escape(folder), "nvidia", "cu[0-9]*"))):
            add(path, "wheel")
        add(os.path.join(folder, "nvidia", "cuda_nvcc"), "wheel")
    asked = [toolkit for toolkit in found.values() if toolkit["nvcc"]]
    answers = pool.map(lambda each: asked_version(os.path.join(each["path"], "bin", "nvcc"), host.environ), asked)
    for toolkit, answer in zip(asked, answers):
        toolkit["version"] = ".".join((answer["version"] or "").split(".")[:2]) or toolkit["version"]
    for toolkit in found.values():
        toolkit["taken_by_torch"] = bool(taken) and real(taken) == toolkit["real"]
    return list(found.values())


def taken_by_torch(host, nvcc):
    """The folder that torch.utils.cpp_extension takes for CUDA_HOME, as its _find_cuda_home does.

    The variables first, then nvcc's grandparent, then /usr/local/cuda (torch 2.13.0); None where there is none.
    """
    home = host.environ.get("CUDA_HOME") or host.environ.get("CUDA_PATH")
    if home:
        return home
    if nvcc:
        return os.path.dirname(os.path.dirname(nvcc))
    return "/usr/local/cuda" if host.exists("/usr/local/cuda") else None


def looks_like_one(path):
    """Whether a folder has a compiler or headers of CUDA in it."""
    return is_program(os.path.join(path, "bin", "nvcc")) or any(
        os.path.isfile(os.path.join(path, folder, "cuda_runtime.h")) for folder in _includes(path)
    )


def described(path):
    """What is in a toolkit's folder."""
    nvcc = os.path.join(path, "bin", "nvcc")
    lib = next((folder for folder in ("lib64", "lib") if os.path.isdir(os.path.join(path, folder))), None)
    folder = os.path.join(path, lib) if lib else None
    includes = [os.path.join(path, each) for each in _includes(path)]
    return {
        "path": path,
        "real": real(path),
        "found_by": "",
        "version": version(path, includes),
        "nvcc": is_program(nvcc),
        "headers": [name for name in _HEADERS if any(os.path.isfile(os.path.join(each, name)) for each in includes)],
        "libraries": [name for name in _LIBRARIES if folder and os.path.exists(os.path.join(folder, name))],
        "lib": folder,
        "taken_by_torch": False,
    }


def _includes(path):
    targets = (os.path.join("targets", "{}-linux".format(name), "include") for name in ("x86_64", "sbsa", "aarch64"))
    return ["include", os.path.join("include", "cccl")] + [
        each for each in targets if os.path.isdir(os.path.join(path, each))
    ]


def version(path, includes):
    """A toolkit's version without starting anything: version.json, version.txt, CUDA_VERSION in cuda.h."""
    text = _read(os.path.join(path, "version.json"))
    try:
        parts = json.loads(text)
        for name in ("cuda_nvcc", "cuda", "cuda_cudart"):
            if name in parts:
                return ".".join(str(parts[name]["version"]).split(".")[:2])
    except (ValueError, KeyError, TypeError):
        pass
    said = re.search(r"CUDA Version (\d+\.\d+)", _read(os.path.join(path, "version.txt")))
    if said:
        return said.group(1)
    for folder in includes:
        number = re.search(r"^#define CUDA_VERSION (\d+)", _read(os.path.join(folder, "cuda.h")), re.M)
        if number:  # 12040 is 12.4
            return "{}.{}".format(int(number.group(1)) // 1000, int(number.group(1)) % 1000 // 10)
    return None


def _read(path):
    try:
        with opened(path) as stream:
            return stream.read(2 << 20).decode("utf-8", "replace")
    except OSError:
        return ""
