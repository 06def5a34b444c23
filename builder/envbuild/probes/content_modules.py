"""The part of the content probe that imports: torch, DeepSpeed and its ops. Started by content.py.

It finds no compiler: PATH has only what builds nothing, and the usual variables are gone. Every op is loaded in a
child of its own, forked after the imports, so that a crash in one hides no other and costs no second import.
"""

import argparse
import importlib
import importlib.util
import json
import os
import signal
import sys
import time

_HERE = os.path.dirname(os.path.abspath(__file__))
_OP_SECONDS = 60.0


def _load(name):
    spec = importlib.util.spec_from_file_location("envbuild_probe_" + name, os.path.join(_HERE, name + ".py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


common = _load("common")


def _imported(name):
    figures = {"version": None, "file": None, "error": None}
    began = time.monotonic()
    try:
        module = importlib.import_module(name)
        figures["version"] = str(module.__version__)
        figures["file"] = module.__file__
    except BaseException as error:  # a module may even raise SystemExit
        figures["error"] = common.describe(error)
    figures["seconds"] = time.monotonic() - began
    return figures


def _torch():
    import torch

    figures = {"cuda": torch.version.cuda, "hip": getattr(torch.version, "hip", None)}
    common.attempt(figures, "cxx11_abi", lambda: bool(torch._C._GLIBCXX_USE_CXX11_ABI))
    if torch.version.cuda is None:
        figures.update(arch_list=[], nccl=None)
        return figures
    # Neither asks a driver: the first is a string in the library, the second a call into NCCL.
    common.attempt(figures, "arch_list", lambda: torch._C._cuda_getArchFlags().split())
    common.attempt(figures, "nccl", lambda: ".".join(str(part) for part in torch.cuda.nccl.version()))
    return figures


def _deepspeed():
    import deepspeed
    from deepspeed import git_version_info
    from deepspeed.accelerator import get_accelerator

    return {
        "package": os.path.dirname(deepspeed.__file__),
        "accelerator": str(get_accelerator()._name),
        "built_for": str(getattr(git_version_info, "accelerator_name", "")) or None,
        "installed_ops": {str(name): bool(built) for name, built in git_version_info.installed_ops.items()},
    }


def _registry():
    try:
        from deepspeed.ops.op_builder.all_ops import ALL_OPS
    except ImportError:  # before 0.9
        from deepspeed.ops.op_builder import ALL_OPS
    return ALL_OPS


def _load_op(name, figures):
    builder = _registry().get(name)
    if builder is None:
        raise LookupError("DeepSpeed's registry for this accelerator has no op of this name")
    compile_now = builder.jit_load

    def noted(*arguments, **named):
        figures["jit"] = True
        return compile_now(*arguments, **named)

    builder.jit_load = noted
    module = builder.load(verbose=False)
    figures["file"] = getattr(module, "__file__", None)
    figures["module"] = getattr(module, "__name__", None)
    figures["exports"] = sorted(item for item in dir(module) if not item.startswith("_"))[:200]
    figures["loaded"] = True


def _op(name, scratch):
    """Load one op in a forked child; what it writes, or how it died."""
    extensions = os.environ["TORCH_EXTENSIONS_DIR"]
    report = os.path.join(scratch, "op-{}.json".format(name))
    before = common.count_files(extensions)
    began = time.monotonic()
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        figures = {"loaded": False, "jit": False, "file": None, "module": None, "exports": [], "error": None}
        try:
            _load_op(name, figures)
        except BaseException as error:
            figures["error"] = common.describe(error)
        common.write_json(report, figures)
        os._exit(0)
    died = _wait(child)
    try:
        with open(report) as stream:
            figures = json.load(stream)
    except (OSError, ValueError):
        figures = {"loaded": False, "jit": None, "file": None, "module": None, "exports": [], "error": died}
    figures["seconds"] = time.monotonic() - began
    figures["extension_files"] = common.count_files(extensions) - before
    return figures


def _wait(child):
    deadline = time.monotonic() + _OP_SECONDS
    while time.monotonic() < deadline:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            if os.WIFSIGNALED(status):
                return "ended by signal {}".format(os.WTERMSIG(status))
            return "exit code {}".format(os.WEXITSTATUS(status))
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "not loaded after {:.0f} s".format(_OP_SECONDS)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--report", required=True)
    parser.add_argument("--scratch", required=True)
    parser.add_argument("--ops", required=True)
    options = parser.parse_args()
    figures = {"imported": {}, "ops": {}}
    for name in ("numpy", "pydantic", "torch", "deepspeed"):
        figures["imported"][name] = _imported(name)
        common.write_json(options.report, figures)  # kept, should the next import crash
    common.attempt(figures, "torch", _torch)
    common.attempt(figures, "deepspeed", _deepspeed)
    common.write_json(options.report, figures)
    for name in filter(None, options.ops.split(",")):
        figures["ops"][name] = _op(name, options.scratch)
        common.write_json(options.report, figures)


if __name__ == "__main__":
    main()
