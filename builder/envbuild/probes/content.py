"""What an image contains, as its imported modules say it: raw findings, no judgement.

    python -I content.py --ops cpu_adam,deepspeed_shm_comm --accelerator cpu

Prints one JSON document. The compilers are asked for their versions first; then a second process
(``content_modules.py``) imports torch and DeepSpeed and loads every op where no compiler can be reached, so
that an op that loads was there before. This file imports nothing but the standard library, so it lives
whatever the modules do. Exit code: 0 when everything asked for was answered, 1 otherwise.
"""

import argparse
import contextlib
import importlib.util
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time

SCHEMA = "envbuild.probe.content/1"
_HERE = os.path.dirname(os.path.abspath(__file__))
_LOG_LINES = 40
_COMPILER_SECONDS = 30
_COMPILERS = ("CC", "CXX", "CUDAHOSTCXX")
# Compilers, assemblers, linkers and what drives them, with the prefixes and versions that distributions give them.
_BUILDS = re.compile(
    r"(.*-)?(cc|c89|c99|tcc|c\+\+|gcc|g\+\+|gfortran|cpp|clang|clang\+\+|clang-cpp|icc|icx|icpc|icpx|nvc|nvc\+\+|nvcc"
    r"|hipcc|cicc|ptxas|fatbinary|nvlink|cudafe\+\+|as|ld|lld|mold|collect2|cc1|cc1plus|gmake|make|cmake|ccmake|ninja"
    r"|ninja-build|meson|bazel|ccache|distcc|sccache)([-.][a-z0-9.]+)?$"
)
# What a build tool would find a compiler by; gone before any module is imported.
_HIDDEN = ("CC", "CXX", "CUDAHOSTCXX", "CUDA_HOME", "CUDA_PATH", "NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS", "CPATH",
           "COMPILER_PATH")  # fmt: skip
# Names only: the environment of a container may hold secrets, and reports are kept.
_REPORTED = (
    "PATH",
    "LD_LIBRARY_PATH",
    "LD_PRELOAD",
    "CC",
    "CXX",
    "COMPILER_PATH",
    "CUDAHOSTCXX",
    "CUDA_HOME",
    "DS_ACCELERATOR",
    "TORCH_CUDA_ARCH_LIST",
    "TORCH_EXTENSIONS_DIR",
    "PIP_CONSTRAINT",
    "UV_CONSTRAINT",
    "PYTHONNOUSERSITE",
    "PYTHONPATH",
    "VIRTUAL_ENV",
    "OMP_NUM_THREADS",
    "NVIDIA_VISIBLE_DEVICES",
    "NVIDIA_DRIVER_CAPABILITIES",
    "NCCL_ASYNC_ERROR_HANDLING",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING",
)


def _load(name):
    spec = importlib.util.spec_from_file_location("envbuild_probe_" + name, os.path.join(_HERE, name + ".py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


common = _load("common")


def _compiler(variable):
    """Path and version of the compiler that a variable names."""
    named = os.environ.get(variable, "").split()
    if not named:
        return {"path": None, "version": None, "error": "{} is not set".format(variable)}
    path = shutil.which(named[0])
    if path is None:
        return {"path": named[0], "version": None, "error": "no such program"}
    figures = {"path": path, "real_path": os.path.realpath(path), "version": None, "error": None}
    try:
        answer = subprocess.run(
            [path, "-dumpfullversion"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_COMPILER_SECONDS,
        )
        text = answer.stdout.decode("utf-8", "replace").strip()
        if answer.returncode == 0:
            figures["version"] = text
        else:
            figures["error"] = "exit code {}: {}".format(answer.returncode, text[-300:])
    except (OSError, subprocess.TimeoutExpired) as error:
        figures["error"] = common.describe(error)
    return figures


def _constraints():
    """The file that keeps a later pip install from swapping torch, as pip would find it."""
    path = os.environ.get("PIP_CONSTRAINT")
    return {"path": path, "text": common.read_text(path) if path else None}


def _toolkit():
    homes = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
    found = [shutil.which("nvcc")] + [os.path.join(home, "bin", "nvcc") for home in homes if home]
    return {"nvcc": sorted({path for path in found if path and os.path.exists(path)})}


def _without_compilers(folder):
    """Fill a folder with everything on PATH but what builds. Modules may run other programs when they are imported:
    DeepSpeed 0.14 asks df for the file system of its caches."""
    for place in os.environ.get("PATH", "").split(os.pathsep):
        try:
            names = os.listdir(place)
        except OSError:
            continue
        for name in names:
            path = os.path.join(place, name)
            if not any(_BUILDS.match(os.path.basename(each)) for each in (name, os.path.realpath(path))):
                with contextlib.suppress(OSError):  # an earlier folder of PATH has it
                    os.symlink(path, os.path.join(folder, name))


def _modules(options, scratch):
    """Run the part that imports: in a process of its own, with no compiler in reach."""
    programs = os.path.join(scratch, "programs")
    extensions = os.path.join(scratch, "extensions")
    report, log = os.path.join(scratch, "modules.json"), os.path.join(scratch, "modules.log")
    os.mkdir(programs)
    _without_compilers(programs)
    os.mkdir(extensions)
    environment = {key: value for key, value in os.environ.items() if key not in _HIDDEN}
    environment.update(PATH=programs, TORCH_EXTENSIONS_DIR=extensions)
    if options.accelerator:
        environment["DS_ACCELERATOR"] = options.accelerator
    argv = [sys.executable, "-I", os.path.join(_HERE, "content_modules.py")]
    argv += ["--report", report, "--scratch", scratch, "--ops", options.ops]
    figures = {"error": None, "report": None, "log_tail": []}
    with open(log, "wb") as stream:
        child = subprocess.Popen(
            argv, env=environment, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream, start_new_session=True
        )
        try:
            code = child.wait(timeout=options.timeout)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            common.kill_group(child.pid)
            child.wait()
    if code is None:
        figures["error"] = "not done after {:.0f} s".format(options.timeout)
    elif code != 0:
        figures["error"] = "ended with {} {}".format("signal" if code < 0 else "exit code", abs(code))
    try:
        with open(report) as stream:
            figures["report"] = json.load(stream)
    except (OSError, ValueError) as error:
        figures["error"] = figures["error"] or common.describe(error)
    if figures["error"]:
        figures["log_tail"] = common.tail(log, _LOG_LINES)
    figures["extension_files"] = common.count_files(extensions)
    return figures


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ops", default="", help="names in DeepSpeed's op registry, separated by commas")
    parser.add_argument("--accelerator", choices=("cpu", "cuda"), help="what DeepSpeed is told it runs on")
    parser.add_argument("--timeout", type=float, default=240.0, help="seconds for imports and ops together")
    options = parser.parse_args()
    stdout = common.claim_stdout()
    began = time.monotonic()
    document = {
        "schema": SCHEMA,
        "arguments": dict(vars(options)),
        "python": {
            "version": "{}.{}.{}".format(*sys.version_info[:3]),
            "implementation": platform.python_implementation(),
            "executable": sys.executable,
            "prefix": sys.prefix,
            "path": list(sys.path),
        },
        "machine": platform.machine(),
        "environment": {name: os.environ[name] for name in _REPORTED if name in os.environ},
        "modules": None,
        "error": None,
    }
    scratch = None
    try:
        common.attempt(document, "glibc", lambda: os.confstr("CS_GNU_LIBC_VERSION"))
        document["compilers"] = {name: _compiler(name) for name in _COMPILERS}
        document["constraints"] = _constraints()
        document["toolkit"] = _toolkit()
        scratch = tempfile.mkdtemp(prefix="envbuild-content-")
        document["modules"] = _modules(options, scratch)
    except Exception as error:
        document["error"] = common.describe(error)
        document["traceback"] = common.traceback_tail()
    document["seconds"] = time.monotonic() - began
    common.remove(scratch)
    common.emit(stdout, document)
    modules = document["modules"] or {"error": "missing"}
    return 0 if document["error"] is None and modules["error"] is None else 1


if __name__ == "__main__":
    sys.exit(main())
