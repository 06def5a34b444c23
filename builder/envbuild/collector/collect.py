"""All parts together, in an order that costs no more time than the import of torch, where there is one."""

import concurrent.futures
import os
import sys
import time

from . import choose, gpu, libaio, machine, masking, nvme, ops, symbols, system, toolkits, tools
from .common import Host, Parts, end_all, real, temporary, unique
from .environment import environment
from .interpreter import Examined, described, imports

SCHEMA = "envbuild.collection/1"
VERSION = "1"
_THREADS = 8
_NCCL = "libnccl.so.2"


class Wanted:
    """What is to be collected.

    Attributes:
        python: The interpreter to examine; None is the one that runs this.
        guess: With no ``python``: the one that the shell would start, and that has torch.
        nvme: Folders that offload would swap to.
        bench: Measure bandwidth.
        imports: Import torch and DeepSpeed.
        timeout: Limit of the imports, in seconds.
    """

    def __init__(self, python=None, guess=False, nvme=(), bench=False, imports=True, timeout=120.0):
        self.python = python
        self.guess = guess
        self.nvme = nvme
        self.bench = bench
        self.imports = imports
        self.timeout = timeout


def collect(wanted, environ, say=lambda text: None):
    """Everything about this machine as one document, masked.

    Args:
        wanted: What is to be collected.
        environ: The environment variables that are examined, and that the examined interpreter gets.
        say: Told what takes time.
    """
    began = time.time()
    parts = Parts()
    host = Host(environ)
    with temporary(environ) as folder, concurrent.futures.ThreadPoolExecutor(_THREADS) as pool:
        if folder is None:
            parts.fail("temporary", "no temporary folder can be written to (TMPDIR, /tmp, /var/tmp, /dev/shm)")
        try:
            document = _collected(host, wanted, folder, parts, _Pool(pool), say)
        finally:
            end_all()
    document["errors"] = parts.errors
    parts.seconds["all"] = round(time.time() - began, 3)
    document["seconds"] = parts.seconds
    names = (masking.users(environ), masking.hosts(environ))
    return masking.Mask(document, *names).apply(document)


class _Pool:
    """Work in threads; ``map`` hands out its answers in order, like the built-in one."""

    def __init__(self, executor):
        self._executor = executor

    def map(self, function, items):
        # Not the same threads as those that wait for it: parts that run in the pool may use it too.
        items = list(items)
        with concurrent.futures.ThreadPoolExecutor(max(1, min(_THREADS, len(items)))) as executor:
            return list(executor.map(function, items))

    def start(self, function):
        return self._executor.submit(function)


def _collected(host, wanted, folder, parts, pool, say):
    environ = host.environ
    python = wanted.python or (choose.guess(host) if wanted.guess else None) or sys.executable
    # A name is looked for on PATH; a path is made one that holds in other folders too.
    python = os.path.abspath(python) if "/" in python else host.which(python) or python
    say("examining {}{}".format(python, ": importing torch and DeepSpeed" if wanted.imports else ""))
    child = parts.run("interpreter.start", lambda: Examined(python, environ, folder, wanted.imports, wanted.timeout))
    early = {
        "machine": lambda: machine.machine(host, parts),
        "system": lambda: system.system(host, environ),
        "alternatives": lambda: tools.alternatives(host),
        "libaio": lambda: libaio.libaio(host),
        "environment": lambda: environment(environ),
    }
    started = {name: pool.start(_part(parts, name, work)) for name, work in early.items()}
    interpreter = parts.run("interpreter", lambda: _interpreter(child, python, folder, environ, parts))
    interpreter = interpreter or {"executable": python, "real": real(python)}
    nvcc = host.which("nvcc")
    home = toolkits.taken_by_torch(host, interpreter, nvcc)
    wishes = tools.wanted(host, interpreter.get("build") or {}, home)
    prefixes = unique([interpreter.get("prefix"), interpreter.get("base"), environ.get("CONDA_PREFIX")])
    late = {
        "toolkits": lambda: toolkits.toolkits(host, interpreter, nvcc, pool),
        "gpu": lambda: gpu.gpu(host, sys.executable, prefixes, parts, pool),
        "tools": lambda: tools.tools(host, wishes, pool),
        "ops": lambda: _ops(host, interpreter),
    }
    started.update((name, pool.start(_part(parts, name, work))) for name, work in late.items())
    compilers = tools.compilers(started["tools"].result() or [])
    started["compiles"] = pool.start(_part(parts, "compiles", lambda: tools.compiles(compilers, host, folder, pool)))
    found = {name: future.result() for name, future in started.items() if name != "compiles"}
    found["libraries"] = parts.run("libraries", lambda: _libraries(interpreter, found, environ))
    for error in (found["libraries"] or {}).get("errors", ()):
        parts.fail("libraries", error)
    found["compiles"] = started["compiles"].result()
    torch = deepspeed = None
    if child is not None:
        pieces = parts.run("imports", child.finish, {})
        torch, deepspeed = imports(child, pieces) if wanted.imports else (None, None)
    say("measuring" if wanted.bench else "")
    # Last, and one after the other: nothing else runs while something is measured.
    found["nvme"] = [
        parts.run("nvme", lambda path=path: nvme.folder(host, path, wanted.bench), {"path": path})
        for path in wanted.nvme
    ]
    bandwidth = parts.run("bench", nvme.memory_bandwidth) if wanted.bench else None
    found.update(
        schema=SCHEMA, collector=VERSION, taken=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        interpreter=interpreter, torch=torch, deepspeed=deepspeed,
        bench={"memory_bandwidth": bandwidth} if wanted.bench else None,
    )  # fmt: skip
    return {name: value for name, value in found.items() if value is not None}


def _part(parts, name, work):
    return lambda: parts.run(name, work)


def _interpreter(child, python, folder, environ, parts):
    """What the interpreter is. One that does not start in the user's environment is asked again without it."""
    said = child.first() if child is not None else None
    if said is None and child is not None:
        said = child.finish().get("interpreter")
        if said is None:
            parts.fail("interpreter", "{}; {}".format(child.ended(), " | ".join(child.printed()[-5:])))
    if said is None:
        bare = {name: value for name, value in environ.items() if name in ("PATH", "HOME", "LANG", "TMPDIR")}
        said = Examined(python, bare, folder, False, 20.0).finish().get("interpreter")
    if said is None:
        raise ValueError("{} says nothing of itself, in an empty environment either".format(python))
    return described(said)


def _ops(host, interpreter):
    folders = interpreter.get("path") or []
    found = ops.prebuilt(folders) + ops.cached(host) + ops.others(folders)
    lib = torch_lib(interpreter)
    return ops.absent(found, interpreter.get("version"), lib) if lib else found


def _libraries(interpreter, found, environ):
    """What the loader's answer needs, of the interpreter, torch, and the ops that this Python would load."""
    from .libraries import libraries

    level = ((found.get("machine") or {}).get("cpu") or {}).get("level")
    answer = libraries(interpreter, seeds(interpreter, found["ops"] or []), environ, level)
    lib = torch_lib(interpreter)
    if lib:
        copies = [path for path, file in answer["files"].items() if file.get("soname") == _NCCL]
        copies += answer["elsewhere"].get(_NCCL, ())
        askers = [os.path.join(lib, name) for name in sorted(os.listdir(lib)) if name.startswith("libtorch_cuda")]
        answer["lacks"] = symbols.nccl_lacks(askers, unique(copies))
    return answer


def torch_lib(interpreter):
    """The folder torch/lib that the interpreter would import from; None without torch."""
    for folder in interpreter.get("path") or ():
        if os.path.isfile(os.path.join(folder, "torch", "__init__.py")):
            lib = os.path.join(folder, "torch", "lib")
            return lib if os.path.isdir(lib) else None
    return None


def seeds(interpreter, compiled):
    """The native files that a training process loads, in about its order; the interpreter itself is not among them."""
    found = []
    lib = torch_lib(interpreter)
    if lib:
        names = [name for name in sorted(os.listdir(lib)) if ".so" in name]
        # torch/__init__.py opens libtorch_global_deps.so before everything else.
        names.sort(key=lambda name: name != "libtorch_global_deps.so")
        package = os.path.dirname(lib)
        found += [os.path.join(lib, name) for name in names]
        found[1:1] = [os.path.join(package, name) for name in sorted(os.listdir(package)) if _is_extension(name)]
    python = interpreter.get("version")
    found += [op["file"] for op in compiled if op.get("file") and not ops.foreign(op, python)]
    return unique(found)


def _is_extension(name):
    return name.startswith("_C") and name.endswith(".so")
