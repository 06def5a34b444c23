"""The program that runs inside the examined interpreter: what it is, then ``import torch``, then ``import deepspeed``.

Its text is handed over with ``-c``; it imports nothing of the collector. It writes one line of JSON for each piece as
soon as it has it: when an import takes the process down, what came before is kept. Standard output is left to what
is imported, which prints what it likes; the lines go to a descriptor of their own.
"""

import sys

# The current folder is no part of the environment; -c puts it first.
if sys.path and sys.path[0] == "":
    del sys.path[0]

import json
import os
import time
import traceback
import warnings

_TRACE_LINES = 25
_LINE_CHARS = 500


def tell(descriptor, part, found):
    """Write one piece."""
    data = (json.dumps({"part": part, "found": found}) + "\n").encode("ascii")
    while data:
        data = data[os.write(descriptor, data) :]


def interpreter():
    """What this interpreter is, and how it compiles extensions."""
    import site
    import sysconfig

    names = ("CC", "CXX", "LDSHARED", "LDCXXSHARED", "CFLAGS", "OPT", "LDFLAGS", "CPPFLAGS", "CCSHARED", "BLDSHARED",
             "LIBDIR", "LDLIBRARY", "EXT_SUFFIX", "MULTIARCH", "HOST_GNU_TYPE", "Py_ENABLE_SHARED")  # fmt: skip
    build = {name: str(sysconfig.get_config_var(name)) for name in names if sysconfig.get_config_var(name)}
    include = sysconfig.get_paths().get("include")
    user_site = None
    if getattr(site, "ENABLE_USER_SITE", False):
        folder = site.getusersitepackages()
        user_site = folder if folder in sys.path else None
    return {
        "executable": sys.executable,
        "version": ".".join(str(part) for part in sys.version_info[:3]),
        "prefix": sys.prefix,
        "base": getattr(sys, "base_prefix", sys.prefix),
        "build": build,
        "include": include,
        "header": os.path.isfile(os.path.join(include, "Python.h")) if include else None,
        "path": list(sys.path),
        "user_site": user_site,
    }


def maps():
    """The native libraries of this process: file name -> path; a second one of a name stands under its path."""
    found = {}
    with open("/proc/self/maps", "rb") as stream:
        for line in stream:
            path = line.decode("utf-8", "replace").rstrip("\n").partition("/")
            path = path[1] + path[2]
            name = path.rpartition("/")[2]
            if ".so" in name and found.setdefault(name, path) != path:
                found[path] = path
    return found


def attempt(function):
    """A part of an answer that may be missing in this version, or in this build."""
    try:
        return function()
    except Exception:
        return None


def imported(name, describe):
    """Import a module, and let it say what it is; None where it is not installed."""
    import importlib
    import importlib.util

    if attempt(lambda: importlib.util.find_spec(name)) is None:
        return None
    began = time.time()
    try:
        module = importlib.import_module(name)
    except BaseException as error:
        lines = traceback.format_exc().splitlines()[-_TRACE_LINES:]
        text = " ".join(("%s: %s" % (type(error).__name__, error)).split())
        return {
            "ok": False,
            "error": text[:2000],
            "trace": [line[:_LINE_CHARS] for line in lines],
            "seconds": round(time.time() - began, 3),
            "maps": attempt(maps) or {},
        }
    found = {
        "ok": True,
        "version": str(getattr(module, "__version__", "")) or None,
        "file": getattr(module, "__file__", None),
        "seconds": round(time.time() - began, 3),
        "maps": attempt(maps) or {},
    }
    found.update(attempt(lambda: describe(module)) or {})
    return found


def torch_says(torch):
    """What torch says of itself. The architectures are asked below torch.cuda, which gives none without a GPU."""
    lib = os.path.join(os.path.dirname(torch.__file__), "lib")
    nccl = attempt(torch.cuda.nccl.version) if attempt(lambda: torch.version.cuda) else None
    if isinstance(nccl, int):  # torch before 1.11; NCCL's own numbers: 2708 is 2.7.8, 21003 is 2.10.3
        step = 10000 if nccl >= 10000 else 1000
        nccl = (nccl // step, nccl % step // 100, nccl % 100)
    abi = attempt(lambda: bool(torch._C._GLIBCXX_USE_CXX11_ABI))
    return {
        "cuda": attempt(lambda: torch.version.cuda),
        "cxx11_abi": abi,
        "architectures": (attempt(lambda: torch._C._cuda_getArchFlags()) or "").split(),
        "nccl": ".".join(str(part) for part in nccl) if nccl else None,
        "lib": lib if os.path.isdir(lib) else None,
    }


def torch_available():
    """Whether torch can use a GPU, and what it says where it cannot. It talks to the driver, which may hang."""
    import torch

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        available = bool(torch.cuda.is_available())
    said = [" ".join(str(each.message).split()) for each in caught]
    return {"available": available, "unavailable": "; ".join(said)[:2000] or None}


def lost_ops(deepspeed, installed):
    """The ops that are said to be installed, and have no file where DeepSpeed would import them from."""
    from deepspeed.ops.op_builder.all_ops import ALL_OPS

    names = [(name, ALL_OPS[name].absolute_name().split(".")) for name in installed if name in ALL_OPS]
    base = os.path.dirname(os.path.dirname(deepspeed.__file__))
    found = []
    for name, parts in names:
        folder = os.path.join(base, *parts[:-1])
        if not any(file.startswith(parts[-1] + ".") for file in (os.listdir(folder) if os.path.isdir(folder) else ())):
            found.append(name)
    return found


def deepspeed_says(deepspeed):
    """What DeepSpeed says of itself."""
    from deepspeed import git_version_info

    ops = attempt(lambda: git_version_info.installed_ops) or {}
    info = attempt(lambda: git_version_info.torch_info) or {}
    installed = sorted(name for name in ops if ops[name])
    return {
        "installed_ops": installed,
        "lost_ops": attempt(lambda: lost_ops(deepspeed, installed)) or [],
        "torch_info": {str(name): str(info[name]) for name in info},
        "built_for": attempt(lambda: str(git_version_info.accelerator_name)),
        "accelerator": attempt(lambda: str(deepspeed.accelerator.get_accelerator()._name)),
    }


def main(descriptor, wanted, seconds):
    """Tell about everything that is wanted, piece by piece."""
    tell(descriptor, "interpreter", interpreter())
    if not wanted:
        return
    # Where a hang hangs is worth more than that it does.
    faulthandler = attempt(lambda: __import__("faulthandler"))
    if faulthandler and seconds > 2:
        attempt(lambda: faulthandler.dump_traceback_later(seconds - 1, exit=False))
    tell(descriptor, "torch begins", None)
    found = imported("torch", torch_says)
    tell(descriptor, "torch", found)
    if found and found["ok"]:
        tell(descriptor, "available begins", None)
        tell(descriptor, "available", attempt(torch_available))
    tell(descriptor, "deepspeed begins", None)
    tell(descriptor, "deepspeed", imported("deepspeed", deepspeed_says))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2] == "imports", float(sys.argv[3]))
    sys.stdout.flush()
    # What was imported may hang or crash while it is torn down; that is not what was asked.
    os._exit(0)
