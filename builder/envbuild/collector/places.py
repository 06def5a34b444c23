"""Where copies of the libraries that matter usually lie, besides the places that the loader searches."""

import glob
import os
import re

# Bounds; a large site has some hundred environments of conda.
_MAX_FOLDERS = 400
_MAX_COPIES = 200

NAMES = re.compile(
    r"lib(stdc\+\+\.so\.6|gcc_s\.so\.1|cudart(-[0-9a-f]+)?\.so\.[0-9.]+|nccl\.so\.2|cuda\.so\.1|nvidia-ml\.so\.1"
    r"|nvJitLink\.so\.\d+|cublas(Lt)?\.so\.\d+|cudnn\w*\.so\.\d+|aio\.so\.1(t64)?|curand\.so\.\d+)"
)
# What is asked for by its name while a program runs (dlopen), so that no file says so.
ASKED_FOR = ("libcuda.so.1", "libnvidia-ml.so.1", "libnccl.so.2", "libaio.so.1", "libstdc++.so.6", "libgcc_s.so.1")
_LIBS = ("lib", "lib64", "targets/*/lib")
_SYSTEM = (
    "/usr/lib", "/usr/lib64", "/lib", "/lib64", "/usr/local/lib", "/usr/local/lib64", "/usr/lib/*-linux-gnu",
    "/opt/rh/*/root/usr/lib64", "/usr/local/nvidia/lib64", "/usr/lib/wsl/lib", "/usr/lib/*-linux-gnu/nvidia/current",
)  # fmt: skip
_CUDA = ("lib64", "lib", "targets/*/lib", "compat")
_CONDA = ("/opt/conda", "/opt/miniconda3", "/opt/anaconda3", "/opt/miniforge3", "/opt/mambaforge",
          "~/miniconda3", "~/anaconda3", "~/miniforge3", "~/mambaforge", "~/micromamba", "~/.conda")  # fmt: skip


def near(interpreter, environment):
    """Folders of this environment, of the system and of CUDA: a process may well take its libraries from there."""
    prefixes = [interpreter.get("prefix"), interpreter.get("base"), environment.get("CONDA_PREFIX")]
    patterns = [os.path.join(glob.escape(prefix), lib) for prefix in prefixes if prefix for lib in _LIBS]
    for site in interpreter.get("path") or ():
        if site.endswith("-packages"):
            patterns += [os.path.join(glob.escape(site), "nvidia/*/lib"), os.path.join(glob.escape(site), "torch/lib")]
    homes = [environment.get(name) for name in ("CUDA_HOME", "CUDA_PATH")]
    for home in [glob.escape(home) for home in homes if home] + ["/usr/local/cuda*"]:
        patterns += [os.path.join(home, lib) for lib in _CUDA]
    return _found(patterns + list(_SYSTEM))


def far(environment):
    """Folders of other environments of conda."""
    home = environment.get("HOME") or ""
    roots = [glob.escape(root.replace("~", home, 1)) for root in _CONDA if home or not root.startswith("~")]
    program = environment.get("CONDA_EXE") or environment.get("MAMBA_ROOT_PREFIX")
    if program:
        root = program if environment.get("CONDA_EXE") is None else os.path.dirname(os.path.dirname(program))
        roots.insert(0, glob.escape(root))
    return _found([os.path.join(root, lib) for root in roots for lib in ("lib", "envs/*/lib")])


def _found(patterns):
    found = []
    for pattern in patterns:
        if pattern.startswith("/") and "\0" not in pattern and len(found) < _MAX_FOLDERS:
            found += sorted(glob.glob(pattern))[: _MAX_FOLDERS - len(found)]
    return found


def copies(folders, links):
    """Real paths of copies in some folders, each once, with the name by which it was found first."""
    found = {}
    for folder in folders:
        real = links.folder(folder)
        names = (links.names(real) if real else None) or ()
        for name in sorted(filter(NAMES.fullmatch, names)):
            path = links.file(os.path.join(real, name))
            if path is not None and len(found) < _MAX_COPIES:
                found.setdefault(path, name)
    return found
