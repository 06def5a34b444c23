"""Words that the checks of native code share: what a path belongs to, who compiled a file, what a version needs."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from typing import TYPE_CHECKING

from envbuild.doctor.collection import Collection, Op, Tool

if TYPE_CHECKING:
    from envbuild.doctor.view import View
    from envbuild.elf import ElfFile
    from envbuild.facts import Facts

OFFLOAD = "cpu_adam holds the optimizer step of ZeRO-3 offload: training stops before its first step without it"
# Where GCC writes its version into .comment: the last number of three parts; the Red Hat one repeats it in brackets.
_VERSION = re.compile(r"\d+\.\d+\.\d+")
_CONDA = re.compile(
    r"^(.*/(?:[^/]*conda[^/]*|[^/]*forge[^/]*|micromamba)(?:/envs/[^/]+)?)/(?:lib|bin|compiler_compat)/", re.I
)
_ENVS = re.compile(r"^(.*/envs/[^/]+)/(?:lib|bin|compiler_compat)/")
_SYSTEM = re.compile(r"^/(?:usr/)?lib(?:64|x32|32)?/")
_MAX_LISTED = 5


def conda_prefix(path: str, collection: Collection) -> str | None:
    """The conda environment that a path lies in; None when it is in none."""
    interpreter = collection.interpreter
    known = [collection.environment.get("CONDA_PREFIX")]
    if interpreter is not None and interpreter.kind == "conda":
        known += [interpreter.prefix, interpreter.base]
    for prefix in known:
        if prefix and path.startswith(f"{prefix.rstrip('/')}/"):
            return prefix.rstrip("/")
    found = _CONDA.match(path)
    return found[1] if found else None


def belongs(path: str, collection: Collection) -> str:
    """Whose file it is, in words: ``of the conda environment /opt/conda``, ``of the system``; empty when unknown."""
    if "/torch/lib/" in path or re.search(r"/torch/_C\.[^/]*$", path):
        return "of torch"
    if "/site-packages/nvidia/" in path or "/dist-packages/nvidia/" in path:
        return "of NVIDIA's wheels"
    prefix = conda_prefix(path, collection)
    if prefix is not None:
        return f"of the conda environment {prefix}"
    if "/opt/rh/" in path:
        return "of a gcc-toolset"
    if re.search(r"/cuda(?:-[\d.]+)?/", path):
        return "of a CUDA toolkit"
    return "of the system" if _SYSTEM.match(path) else ""


def told(path: str, collection: Collection) -> str:
    """A path with whose it is behind it."""
    words = belongs(path, collection)
    return f"{path} ({words})" if words else path


def listed(names: Iterable[str], most: int = _MAX_LISTED) -> str:
    """Names as one text, the first few of them."""
    every = list(dict.fromkeys(names))
    more = f" and {len(every) - most} more" if len(every) > most else ""
    return ", ".join(every[:most]) + more


def op_at(path: str, collection: Collection) -> Op | None:
    """The compiled op that a file is."""
    return next((op for op in collection.ops if op.file == path), None)


def ours(askers: Iterable[str], collection: Collection) -> list[str]:
    """Those that training loads: ops, and what is torch's or of NVIDIA's wheels."""
    return [asker for asker in askers if op_at(asker, collection) or re.search(r"/torch/|-packages/nvidia/", asker)]


def harmless(collection: Collection, askers: Iterable[str]) -> bool:
    """Whether they are ops for NVMe alone, which nobody asked about, or parts that torch can do without."""
    torch, ops = collection.torch, [op_at(asker, collection) for asker in askers]
    idle = all(op is not None and op.name in ("async_io", "gds") for op in ops) and not collection.nvme
    return idle or (torch is not None and torch.ok and not any(ops))


def title(op: Op) -> str:
    """An op in words: ``the cached op cpu_adam``."""
    kinds = {"prebuilt": "the prebuilt op", "cached": "the op in the JIT cache", "other": "the extension"}
    return f"{kinds[op.kind]} {op.name}"


def named(paths: Iterable[str], collection: Collection) -> str:
    """Files in words: ops by their names, one other by its path, several by their file names."""
    every = list(dict.fromkeys(paths))
    if len(every) == 1:
        op = op_at(every[0], collection)
        return f"{title(op)} ({every[0]})" if op else told(every[0], collection)
    return listed(title(op) if (op := op_at(path, collection)) else path.rpartition("/")[2] for path in every)


def release(version: str) -> str:
    """A GCC release as people call it: 9 for 9.3.0, 4.8 for 4.8.5."""
    parts = version.split(".")
    return ".".join(parts[:2]) if parts[0] in ("3", "4") else parts[0]


def folder(path: str) -> str:
    """The folder that holds a file."""
    return path.rpartition("/")[0] or "/"


def remedy_for(op: Op, view: View) -> tuple[str, str]:
    """How to have an op compiled anew, in words and, of a cached one, as a command."""
    if op.kind == "cached":
        place = cache_folder(op)
        return f"remove its folder {place}: it is compiled anew when it is next used", f"rm -r {shell_path(place)}"
    if op.kind == "prebuilt":
        # pip would take the newest DeepSpeed, and an op that no variable names would be gone afterwards.
        seen = view.collection.deepspeed
        version = ((seen.version if seen else None) or view.package("deepspeed") or "").partition("+")[0]
        names = [op.name, *(each.name for each in view.collection.ops if each.kind == "prebuilt")]
        variables = " ".join(f"{_build_variable(name, view.facts)}=1" for name in dict.fromkeys(names))
        how = "--no-build-isolation --no-cache-dir --no-binary deepspeed --force-reinstall --no-deps"
        exact = f"deepspeed=={version}" if version else "deepspeed"
        return f"compile it again, on this machine and for this torch: {variables} pip install {how} {exact}", ""
    return f"install the package of {op.name} again, in the build for this torch and its C++ ABI", ""


def _build_variable(name: str, facts: Facts) -> str:
    known = facts.deepspeed.ops.get(name)
    return known.build_variable if known is not None else f"DS_BUILD_{name.upper()}"


def shell_path(path: str) -> str:
    """A path for the shell. The collector masks the user's name: the home of whoever runs the line stands for it."""
    home = re.match(r"/home/USER(?=/)", path)
    return f'"$HOME"{shlex.quote(path[home.end() :])}' if home else shlex.quote(path)


def cache_folder(op: Op) -> str:
    """The folder of a cached op."""
    return folder(op.file) if op.file else f"{op.root}/{op.name}"


def torch_include(collection: Collection) -> str | None:
    """The folder of torch's headers."""
    torch = collection.torch
    if torch is not None and torch.file:
        return f"{folder(torch.file)}/include"
    if torch is not None and torch.lib:
        return f"{folder(torch.lib)}/include"
    return None


def serves(op: Op, collection: Collection) -> bool:
    """Whether this Python would take an op: a cached one is looked for under the key of Python and CUDA."""
    interpreter = collection.interpreter
    if op.kind != "cached" or not op.key or not re.match(r"py\d+", op.key):
        return True
    torch = collection.torch
    numbers = ((interpreter.version if interpreter else None) or "").split(".")[:2]
    if numbers[-1] and not re.match(rf"py{''.join(numbers)}(?!\d)", op.key):
        return False
    if torch is None or not torch.ok:
        return True
    return op.key.endswith(f"_cu{torch.cuda.replace('.', '')}" if torch.cuda else "_cpu") or "_" not in op.key


def rebuilt_anyway(op: Op, collection: Collection) -> bool:
    """Whether a cached op is compiled anew when it is next used: its command line names another torch's headers."""
    include = torch_include(collection)
    if op.kind != "cached" or op.built_against is None or include is None:
        return False
    # In a venv of Fedora lib64 is a link to lib.
    return op.built_against.replace("/lib64/", "/lib/") != include.replace("/lib64/", "/lib/")


def gcc_of(comments: Iterable[str]) -> str | None:
    """The newest GCC that left its mark in .comment: a file carries those of the C library's start files too."""
    found = [numbers[-1] for text in comments if text.startswith("GCC") and (numbers := _VERSION.findall(text))]
    return max(found, key=lambda version: tuple(map(int, version.split("."))), default=None)


def jit_compiler(collection: Collection) -> Tool | None:
    """The C++ compiler that torch calls for an op: CXX, else c++ by PATH (torch.utils.cpp_extension)."""
    if any(tool.role == "CXX" for tool in collection.tools):
        return next((tool for tool in collection.tools if tool.role == "CXX" and tool.path), None)
    return by_path(collection, "c++", "g++")


def python_compiler(collection: Collection) -> Tool | None:
    """Python's extension compiler, for C++ where there is one."""
    tools = [tool for tool in collection.tools if tool.role == "sysconfig"]
    return next((tool for tool in tools if tool.name == "CXX"), tools[0] if tools else None)


def named_by_python(tool: Tool, collection: Collection) -> str:
    """The program that sysconfig names, as it is written there."""
    interpreter = collection.interpreter
    return (interpreter.build.get(tool.name, "") if interpreter else "").partition(" ")[0] or tool.name


def has_toolset(tool: Tool) -> bool:
    """Whether it is a compiler of a Red Hat toolset: it links newer C++ symbols statically."""
    return "/opt/rh/" in (tool.real or tool.path or "")


def is_clang(tool: Tool) -> bool:
    """Whether it is a clang: its version is none of GCC's."""
    return "clang" in f"{tool.name} {(tool.real or '').rpartition('/')[2]} {tool.says}".lower()


def needs(file: ElfFile) -> tuple[str, ...]:
    """The newest symbol version of the C++ and C library that a file asks for, by family."""
    from envbuild.elf import by_family

    wanted = by_family(need.version for need in file.requires if not need.weak)
    return tuple(wanted[family] for family in ("GLIBCXX", "CXXABI", "GLIBC") if family in wanted)


def newest_symbol(tool: Tool, facts: Facts) -> str | None:
    """The newest GLIBCXX version of a compiler's own libstdc++; None where it is no GCC of a known release."""
    version = tool.version or ""
    if is_clang(tool) or not re.fullmatch(r"\d+(\.\d+){1,3}", version):
        return None
    return facts.symbol_of_gcc(version)


def gcc_words(version: str, facts: Facts) -> str:
    """`` (GCC 11.1 and later)`` for a symbol version; empty where it is not known."""
    gcc = facts.gcc_of_symbol(version)
    return f" (GCC {gcc.removesuffix('.0')} and later have it)" if gcc else ""


def by_path(collection: Collection, *names: str) -> Tool | None:
    """The first of some programs that PATH has."""
    there = {tool.name: tool for tool in collection.tools if tool.role == "shell" and tool.path}
    return next((there[name] for name in names if name in there), None)
