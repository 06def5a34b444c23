"""All parts together, in an order that costs no more time than the import of torch, where there is one."""

import concurrent.futures
import os
import sys
import time

from . import choose, gpu, installed, libaio, machine, masking, nvme, ops, symbols, system, toolkits, tools
from .common import Host, Parts, end_all, temporary, unique
from .environment import environment
from .interpreter import Examined, described, imports

SCHEMA = "envbuild.collection/1"
VERSION = "1"
_THREADS = 8
# How long all parts are waited for, in seconds: all but one that waits for a file system that does not answer are done
# long before. Those that begin late, the libraries and each folder of --nvme, have at least some time of their own.
_PART_SECONDS = 180.0
_LATE_SECONDS = 45.0
_END_STEPS = 40
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
    with temporary(environ) as folder:
        if folder is None:
            parts.fail("temporary", "no temporary folder can be written to (TMPDIR, /tmp, /var/tmp, /dev/shm)")
        work = Work(parts)
        try:
            document = _collected(host, wanted, folder, parts, work, say)
        finally:
            work.end()
    document["errors"] = list(parts.errors)
    parts.seconds["all"] = round(time.time() - began, 3)
    document["seconds"] = dict(parts.seconds)
    names = (masking.users(environ), masking.hosts(environ))
    return masking.Mask(document, *names).apply(document)


class Work:
    """Parts that run at the same time, each in a thread; one that does not end is left behind.

    A file system of the network whose server is gone keeps whoever asks it for ever.
    """

    def __init__(self, parts, seconds=_PART_SECONDS):
        """Begin; ``seconds`` is how long all parts together are waited for."""
        self._parts = parts
        self._seconds = seconds
        self._until = time.monotonic() + seconds
        self._executor = concurrent.futures.ThreadPoolExecutor(2 * _THREADS)
        self._futures = {}

    def start(self, name, work):
        """Begin a part."""
        self._futures[name] = self._executor.submit(self._parts.run, name, work)

    def wait(self, name, default=None, seconds=0.0):
        """The answer of a part; ``default`` and a note when it failed, or when its time is up."""
        left = max(self._until - time.monotonic(), self._seconds / 10, seconds)
        try:
            answer = self._futures[name].result(timeout=left)
            return default if answer is None else answer
        except concurrent.futures.TimeoutError:
            self._parts.fail(name, "not done after {:.3g} s: a file system may not answer".format(left))
            return default

    def now(self, name, work, default=None, seconds=0.0):
        """The answer of a part that the next ones need."""
        self.start(name, work)
        return self.wait(name, default, seconds)

    def map(self, function, items):
        """The answers for some items, in their order; a part may ask for this, too."""
        # Not the same threads as those that wait for it.
        items = list(items)
        with concurrent.futures.ThreadPoolExecutor(max(1, min(_THREADS, len(items)))) as executor:
            return list(executor.map(function, items))

    def end(self):
        """End every child, and every thread that can be ended."""
        for _ in range(_END_STEPS):
            end_all()
            if all(future.done() for future in self._futures.values()):
                break
            time.sleep(0.05)
        self._executor.shutdown(wait=False)


def _collected(host, wanted, folder, parts, work, say):
    environ = host.environ
    python = wanted.python or (work.now("guess", lambda: choose.guess(host)) if wanted.guess else None)
    python = _path(host, python or sys.executable)
    say("examining {}{}".format(python, ": importing torch and DeepSpeed" if wanted.imports else ""))
    child = parts.run("interpreter.start", lambda: Examined(python, environ, folder, wanted.imports, wanted.timeout))
    work.start("machine", lambda: machine.machine(host, parts))
    work.start("system", lambda: system.system(host, environ))
    work.start("alternatives", lambda: tools.alternatives(host))
    work.start("libaio", lambda: libaio.libaio(host))
    interpreter = work.now("interpreter", lambda: _interpreter(child, python, folder, environ, parts))
    interpreter = interpreter or {"executable": python, "real": python}
    nvcc, wishes = work.now("programs", lambda: _programs(host, interpreter), (None, []))
    prefixes = unique([interpreter.get("prefix"), interpreter.get("base"), environ.get("CONDA_PREFIX")])
    work.start("toolkits", lambda: toolkits.toolkits(host, interpreter, nvcc, work))
    work.start("gpu", lambda: gpu.gpu(host, sys.executable, prefixes, parts, work))
    work.start("tools", lambda: tools.tools(host, wishes, work))
    work.start("ops", lambda: _ops(host, interpreter))
    work.start("damaged", lambda: installed.damaged(interpreter.get("packages") or ()))
    found = {"environment": environment(environ), "tools": work.wait("tools")}
    work.start("compiles", lambda: tools.compiles(tools.compilers(found["tools"] or []), host, folder, work))
    for name in ("machine", "system", "alternatives", "libaio", "toolkits", "gpu", "ops", "damaged"):
        found[name] = work.wait(name)
    found["libraries"] = work.now("libraries", lambda: _libraries(interpreter, found, environ), None, _LATE_SECONDS)
    for error in (found["libraries"] or {}).get("errors", ()):
        parts.fail("libraries", error)
    found["compiles"] = work.wait("compiles")
    torch = deepspeed = None
    if child is not None:
        pieces = parts.run("imports", child.finish, {})
        torch, deepspeed = imports(child, pieces) if wanted.imports else (None, None)
    say("measuring" if wanted.bench else "")
    # Last, and one after the other: nothing else runs while something is measured.
    found["nvme"] = [
        work.now("nvme", lambda path=path: nvme.folder(host, path, wanted.bench), _silent(path), _LATE_SECONDS)
        for path in wanted.nvme
    ]
    bandwidth = parts.run("bench", nvme.memory_bandwidth) if wanted.bench else None
    found.update(
        schema=SCHEMA, collector=VERSION, taken=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        interpreter=interpreter, torch=torch, deepspeed=deepspeed,
        bench={"memory_bandwidth": bandwidth} if wanted.bench else None,
    )  # fmt: skip
    return {name: value for name, value in found.items() if value is not None}


def _silent(path):
    return {"path": path, "error": "it does not answer"}


def _path(host, python):
    """An interpreter's path: a name is looked for on PATH; a path is made one that holds in other folders too."""
    return os.path.abspath(python) if "/" in python else host.which(python) or python


def _programs(host, interpreter):
    """nvcc by PATH, and all programs to look for."""
    nvcc = host.which("nvcc")
    return nvcc, tools.wanted(host, interpreter.get("build") or {}, toolkits.taken_by_torch(host, nvcc))


def _interpreter(child, python, folder, environ, parts):
    """What the interpreter is. One that does not start in the user's environment is asked again without it."""
    said = child.first() if child is not None else None
    if said is None and child is not None:
        said = child.finish().get("interpreter")
        if said is None:
            parts.fail("interpreter", "; ".join(filter(None, (child.ended(), " | ".join(child.printed()[-5:])))))
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
    answer["lacks"] = symbols.unversioned_lack(answer["files"])
    lib = torch_lib(interpreter)
    if lib:
        copies = [path for path, file in answer["files"].items() if file.get("soname") == _NCCL]
        copies += answer["elsewhere"].get(_NCCL, ())
        askers = [os.path.join(lib, name) for name in sorted(os.listdir(lib)) if name.startswith("libtorch_cuda")]
        answer["lacks"].update(symbols.nccl_lacks(askers, unique(copies)))
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
