"""DeepSpeed's compiled ops: those in the package, and those that torch compiled into its cache of extensions."""

import contextlib
import glob
import os
import re
import time

from . import gpucode, symbols, wide
from .common import opened, real, unique
from .elf import Damaged

_COUNT = 200
_SYMBOLS = 500
_NINJA_BYTES = 1 << 20
# Flags that decide whether an op fits to a torch, to a CPU, to a GPU.
_FLAGS = re.compile(
    r"-std=\S+|--std=\S+|-m(?:arch|tune|cpu)=\S+|-mavx\S*|-mfma|-D_GLIBCXX_USE_CXX11_ABI=\S+|-D__AVX\d+__|-D__SCALAR__|"
    r"-D__ENABLE_CUDA__|-D__DISABLE_CUDA__|-fopenmp|-gencode=?\s*\S+|-arch=\S+|-ccbin[= ]\S+|"
    r"-allow-unsupported-compiler"
)
# Where flash-attn, apex, xformers and Transformer Engine put what they compile against torch.
_OTHERS = (
    "flash_attn*.so", "apex*C*.so", "amp_C*.so", "fused_*.so", "xformers/_C*.so", "transformer_engine*.so",
)  # fmt: skip


def prebuilt(folders):
    """The ops in a deepspeed package; ``folders`` are those of sys.path, the first with the package counts."""
    for folder in folders:
        package = os.path.join(folder, "deepspeed")
        if os.path.isfile(os.path.join(package, "__init__.py")):
            pattern = os.path.join(glob.escape(package), "ops", "**", "*_op*.so")
            return [_prebuilt(path) for path in sorted(glob.glob(pattern, recursive=True))[:_COUNT]]
    return []


def _prebuilt(path):
    name = os.path.basename(path).partition(".")[0]
    name = name[: -len("_op")] if name.endswith("_op") else name
    return dict({"kind": "prebuilt", "name": name, "file": path, "age": age(path)}, **contents(path))


def roots(host):
    """The folders of torch's cache: what TORCH_EXTENSIONS_DIR says alone, else one for each Python and CUDA.

    torch.utils.cpp_extension, _get_build_directory: with the variable there is no part such as py311_cu121.
    """
    said = host.environ.get("TORCH_EXTENSIONS_DIR")
    if said:
        return [said]
    base = os.path.join(host.environ.get("XDG_CACHE_HOME") or os.path.join(host.home(), ".cache"), "torch_extensions")
    try:
        names = sorted(os.listdir(base))
    except OSError:
        return []
    keyed = [os.path.join(base, name) for name in names if re.match(r"py\d+\w*_", name)]
    # torch before 1.11 put the ops into the folder itself.
    return keyed + ([base] if len(keyed) < len(names) else [])


def cached(host):
    """Every op in the cache, finished or not. Nothing in it is opened for writing."""
    found = []
    for root in roots(host):
        try:
            names = sorted(os.listdir(root))
        except OSError:
            continue
        for name in names:
            folder = os.path.join(root, name)
            if len(found) < _COUNT and os.path.isdir(folder) and _is_build(folder):
                found.append(_cached(root, name, folder))
    return found


def _is_build(folder):
    there = ("build.ninja", "lock", ".ninja_log")
    return any(os.path.lexists(os.path.join(folder, each)) for each in there) or bool(
        glob.glob(os.path.join(glob.escape(folder), "*.so"))
    )


def _cached(root, name, folder):
    library = os.path.join(folder, name + ".so")
    if not os.path.isfile(library):
        # torch numbers the module when one process loads an op twice: cpu_adam_v1.so.
        others = sorted(glob.glob(os.path.join(glob.escape(folder), glob.escape(name) + "*.so")))
        library = others[-1] if others else None
    found = {
        "kind": "cached",
        "name": name,
        "file": library,
        "root": root,
        "key": os.path.basename(root) if re.match(r"py\d+\w*_", os.path.basename(root)) else None,
        "lock": age(os.path.join(folder, "lock")),
        "age": age(library) if library else None,
    }
    found.update(ninja(os.path.join(folder, "build.ninja")))
    if library:
        found.update(contents(library))
    return found


def ninja(path):
    """What a build.ninja of torch says of a build."""
    try:
        with opened(path) as stream:
            text = stream.read(_NINJA_BYTES).decode("utf-8", "replace")
    except OSError:
        return {}
    # "$" at the end of a line goes on with the next; "$ " is a blank in a path (Ninja's manual, lexical syntax).
    text = re.sub(r"\$\n[ ]*", "", text)
    variables = dict(re.findall(r"^(\w+) = (.*)$", text, re.M))
    flags = " ".join(variables.get(name, "") for name in ("cflags", "post_cflags", "cuda_cflags", "cuda_post_cflags"))
    include = re.search(r"-(?:isystem|I)\s*((?:\$[ :]|\S)*/torch/include)(?=\s|\Z)", flags)
    return {
        "built_against": _plain(include.group(1)) if include else None,
        "flags": unique(_plain(flag) for flag in re.findall(_FLAGS, flags)),
        "compiler": _plain(variables["cxx"]) if "cxx" in variables else None,
    }


def _plain(text):
    return re.sub(r"\$([ :$])", r"\1", text)


def age(path):
    """Seconds since a file was written; None where there is none."""
    try:
        return round(max(0.0, time.time() - os.lstat(path).st_mtime), 1)
    except OSError:
        return None


def contents(path):
    """What is read of the file itself; nothing of one that is no ELF file, or damaged."""
    found = {"undefined": symbols.undefined(path)[:_SYMBOLS], "sm": []}
    with contextlib.suppress(OSError, Damaged), opened(path) as stream:
        found["sm"] = gpucode.gpus(stream)
        found["wide"] = wide.wide(stream)
    return found


def absent(found, python, lib):
    """Says of each op what it asks of torch in vain; not of those that another Python has in the cache.

    Args:
        found: The ops.
        python: The examined interpreter's version, such as 3.11.2.
        lib: The folder torch/lib.
    """
    for op in found:
        if op.get("file") and not foreign(op, python):
            op["absent"] = symbols.absent(op["undefined"], lib)
    return found


def foreign(op, python):
    """Whether a cached op belongs to another Python than the examined one; the cache's folders begin with py311."""
    mine = "py" + "".join((python or "").split(".")[:2])
    return op["kind"] == "cached" and bool(op.get("key")) and not re.match(mine + r"(?!\d)", op["key"])


def others(folders):
    """Extensions of other packages that are known to be compiled against torch: a file for each."""
    found = []
    for folder in unique(real(each) for each in folders):
        for pattern in _OTHERS:
            for path in sorted(glob.glob(os.path.join(glob.escape(folder), pattern))):
                if len(found) < _COUNT:
                    name = os.path.basename(path).partition(".")[0]
                    found.append(
                        dict({"kind": "other", "name": name, "file": path, "age": age(path)}, **contents(path))
                    )
    return found
