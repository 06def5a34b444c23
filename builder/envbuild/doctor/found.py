"""What a machine was found to be, in the words of the matrix, so that its rules can be asked about it."""

from __future__ import annotations

import re
from collections.abc import Iterable

from envbuild.doctor.collection import Tool, Toolkit
from envbuild.doctor.view import View, normalised
from envbuild.doctor.words import by_path, is_clang
from envbuild.facts import Fact
from envbuild.facts.gpus import plain
from envbuild.facts.versions import cuda_of_build, parse, within
from envbuild.model import Cuda, DeepSpeed, Environment, Gcc

_RELEASE = re.compile(r"[0-9]{1,6}(\.[0-9]{1,6}){0,4}", re.ASCII)
# ld.so's own words, and a crash in what a compiler has just made.
_LOADER = (
    r"error while loading shared libraries|symbol lookup error|version `\S+' not found|"
    r"^running what it made: ended by signal (7|11)\b"
)
# What ZeRO-3 offload loads whatever else is in the ds_config; swapping to NVMe brings the second.
OPTIMIZER, SWAPPING = "cpu_adam", "async_io"


def release(text: str | None) -> str | None:
    """The numbers that a version begins with: 2.1.0 of ``2.1.0a0+git``; None where there are none."""
    found = _RELEASE.match(text or "")
    return found[0] if found else None


def minor(text: str | None) -> str | None:
    """The first two numbers of a version: 12.4 of ``12.4.131``; None of what no row could hold."""
    numbers = (*(release(text) or "").split("."), "0")[:2]
    return ".".join(numbers) if all(1 <= len(number) <= 3 for number in numbers) else None


def older(version: str | None, than: str | None) -> bool:
    """Whether both are known, and the first is the older one."""
    one, other = release(version), release(than)
    return one is not None and other is not None and parse(one) < parse(other)


def torch_version(view: View) -> str | None:
    """What torch says of itself, or what its metadata says where it cannot be imported."""
    torch = view.collection.torch
    return (torch.version if torch else None) or view.package("torch")


def deepspeed_version(view: View) -> str | None:
    """The numbers of DeepSpeed's version."""
    deepspeed = view.collection.deepspeed
    return release((deepspeed.version if deepspeed else None) or view.package("deepspeed"))


def absent(view: View, name: str) -> bool:
    """Whether torch or DeepSpeed is not installed at all: not on record, and no module but an empty folder."""
    seen = {"torch": view.collection.torch, "deepspeed": view.collection.deepspeed}[name]
    gone = seen is None or seen.is_empty or (not seen.ok and f"No module named '{name}'" in (seen.error or ""))
    return gone and view.package(name) is None


def torch_cuda(view: View) -> str | None:
    """torch.version.cuda as major.minor; None in a CPU build."""
    torch = view.collection.torch
    if torch is not None and torch.cuda:
        return minor(torch.cuda)
    local = (torch_version(view) or "").partition("+")[2]
    built = cuda_of_build(local) if re.fullmatch(r"cu[0-9]{2,4}", local) else None
    if built or local or torch is None or torch.ok:
        return built
    # It cannot be imported, and has PyPI's plain name: the facts say which build that is.
    known = view.facts.versions.get(release(torch_version(view)) or "")
    return cuda_of_build(known.pypi.build) if known and known.pypi else None


def on_gpu(view: View) -> bool:
    """Whether training is meant for a GPU: the row says so, or torch is built for CUDA and there is one."""
    if view.row is not None:
        return view.row.accelerator == "cuda"
    chosen = view.collection.environment.get("DS_ACCELERATOR")
    if chosen:
        return chosen == "cuda"
    return torch_cuda(view) is not None and has_gpu(view)


def has_gpu(view: View) -> bool:
    """Whether the machine has an NVIDIA GPU, whether or not it can be used."""
    gpu = view.collection.gpu
    return bool(gpu.devices or gpu.device_files or gpu.pci or gpu.module)


def ranks(view: View) -> int:
    """Processes that would train here."""
    return view.gpus or len(view.collection.gpu.devices) or 1


def wanted(view: View) -> tuple[str, ...]:
    """The ops that training needs: the row's, else the optimizer's, and async_io where a path to swap to was named."""
    row = view.row
    # Of another DeepSpeed the row's ops say nothing: its own image brings what they need.
    if row is not None and view.said is None and row.deepspeed.version == deepspeed_version(view):
        return row.deepspeed.ops
    return (OPTIMIZER, SWAPPING) if view.collection.nvme else (OPTIMIZER,)


def pending(view: View) -> tuple[str, ...]:
    """The wanted ops that are not part of the installed DeepSpeed: they are compiled, or looked up, when they load."""
    seen = view.collection
    if deepspeed_version(view) is None:
        return ()
    there = set(seen.deepspeed.installed_ops if seen.deepspeed else ())
    there |= {op.name.removesuffix("_op") for op in seen.ops if op.kind == "prebuilt"}
    return tuple(op for op in wanted(view) if op not in there)


def pending_for(view: View, need: str) -> tuple[str, ...]:
    """The pending ops whose builder needs something: ``toolkit``, ``nvcc`` or ``curand``."""
    version, known = deepspeed_version(view), view.facts.deepspeed.ops
    asks = {"toolkit": "needs_toolkit", "nvcc": "needs_nvcc", "curand": "needs_curand"}[need]
    if version is None or not on_gpu(view):
        return ()
    return tuple(op for op in pending(view) if op in known and getattr(known[op], asks)("cuda", version))


def toolkit(view: View) -> Toolkit | None:
    """The CUDA toolkit that torch takes for CUDA_HOME."""
    return next((kit for kit in view.collection.toolkits if kit.taken_by_torch), None)


def compiler(view: View) -> Tool | None:
    """The C++ compiler of extensions: ``CXX``, else c++ by PATH, as torch.utils.cpp_extension takes it."""
    if view.collection.environment.get("CXX"):
        return next((tool for tool in view.collection.tools if tool.role == "CXX"), None)
    return by_path(view.collection, "c++", "g++")


def host_compiler(view: View) -> Tool | None:
    """The compiler that nvcc runs: torch hands it ``CC`` as -ccbin; else it takes gcc by PATH."""
    if view.collection.environment.get("CC"):
        return next((tool for tool in view.collection.tools if tool.role == "CC"), None)
    return by_path(view.collection, "gcc", "g++", "cc")


def is_gcc(tool: Tool) -> bool:
    """Whether it says that it is GCC (or says nothing at all)."""
    return not is_clang(tool)


def by_loader(error: str | None) -> bool:
    """Whether a program did not come to run because of a library that the loader took, or did not find."""
    return re.search(_LOADER, error or "") is not None


def gpu_names(view: View) -> tuple[str, ...]:
    """The machine's GPUs by the names of the facts; those that they do not know are left out."""
    known = {plain(alias): name for name, gpu in view.facts.gpus.items() for alias in (name, gpu.name)}
    found = {}
    for device in view.collection.gpu.devices:
        words = re.split(r"[\s/-]+", (device.name or "")[:80])
        # "NVIDIA H100 80GB HBM3", "Tesla V100-SXM2-32GB", "NVIDIA GeForce RTX 4090": a name, and what kind of it.
        for end in range(len(words), 0, -1):
            name = known.get(plain("".join(words[:end])))
            if name is not None and device.sm in (None, view.facts.gpus[name].sm):
                found[name] = True
                break
    return tuple(found)


def without_p2p(view: View) -> bool:
    """Whether there are several GPUs of a kind that is known to have no direct copies between them.

    Such as hang in NCCL's first collective on some machines (deepspeedai/DeepSpeed#4433).
    """
    names = [device.name or "" for device in view.collection.gpu.devices]
    return len(names) > 1 and all("RTX 4090" in name for name in names)


def driver(view: View) -> str | None:
    """The version of the loaded kernel module, else what NVML says; the user-space part can be another."""
    return release(view.collection.gpu.module or view.collection.gpu.nvml)


def as_row(view: View) -> Environment | None:
    """The machine as a row of the matrix; None without a torch. Nothing in it is guessed: what is not known is 0."""
    torch, python = release(torch_version(view)), view.collection.interpreter
    if torch is None:
        return None
    kit, tool, cuda, version = toolkit(view), compiler(view), torch_cuda(view), driver(view)
    # GPU code is compiled by the compiler that nvcc runs; without a toolkit there is only the other one.
    tool = (host_compiler(view) if kit else None) or tool
    packages = view.collection.system.packages
    row = Environment.model_validate(
        {
            "name": "machine",
            "summary": "what was found",
            "accelerator": "cuda" if on_gpu(view) else "cpu",
            "family": "any",
            "base": {"image": "none"},
            "python": minor(python.version if python else None) or "0.0",
            "gcc": {"version": "0.0", "package": "gcc"},
            "torch": {"version": torch, "build": "cpu"},
            "deepspeed": {"version": deepspeed_version(view) or "0", "ops": []},
            "requires": "cpu",
            "sources": {},
        }
    )
    return row.model_copy(
        update={
            "torch": row.torch.model_copy(
                update={
                    "build": f"cu{cuda.replace('.', '')}" if cuda else "cpu",
                    "torchvision": release(view.package("torchvision")),
                    "torchaudio": release(view.package("torchaudio")),
                }
            ),
            "gcc": Gcc(version=minor(tool.version) or "0.0", package="gcc") if tool and is_gcc(tool) else row.gcc,
            "deepspeed": DeepSpeed.model_construct(version=row.deepspeed.version, ops=wanted(view)),
            "cuda": Cuda(version=minor(kit.version) or "0.0", toolkit="image") if kit and kit.version else None,
            "gpus": gpu_names(view),
            "driver": version,
            "pins": tuple(_installed(view)),
            "packages": tuple(name for name in packages if name.startswith("cuda-compat-")),
            "env": dict(view.collection.environment),
        }
    )


def _installed(view: View) -> Iterable[str]:
    """Packages with limits in the rules, as pins of just their version."""
    for name in ("pydantic", "numpy", "setuptools"):
        version = release(view.package(name))
        if version:
            yield f"{name}=={version}"


def sources(facts: Iterable[Fact]) -> str:
    """Who says so, of some facts; what is not fully checked is said to be."""
    told = dict.fromkeys(
        fact.source + ("" if fact.mark.value == "verified" else f" ({fact.mark.value})") for fact in facts
    )
    return "; ".join(told)


def matters(name: str) -> bool:
    """Whether a distribution is one that ZeRO-3 training loads or starts from."""
    return normalised(name) in {
        "torch", "deepspeed", "transformers", "accelerate", "torchvision", "torchaudio", "triton", "numpy", "pydantic",
        "pydantic-core", "peft", "trl", "flash-attn", "bitsandbytes", "safetensors", "tokenizers", "huggingface-hub",
        "datasets",
    }  # fmt: skip


def between(version: str | None, since: str | None, through: str | None) -> bool:
    """Whether a version is known and lies between two others, both included."""
    return version is not None and within(version, since, through)
