"""Tells whoever watches a training where each rank is: its step, and the collective that it began last.

Loaded by ``shim/sitecustomize.py`` when DeepSpeed's engine is imported. A thread writes a few figures into the folder
that ENVBUILD_PROFILE names, once in ENVBUILD_WATCH_SECONDS, and what it is asked for: every thread's Python, and all of
torch's flight recorder. Standard library only, Python 3.7 and later.
"""

import collections
import contextlib
import json
import os
import sys
import threading
import time
import traceback

# Enough for the last collective of every process group; a look costs a millisecond of CPU (256 entries: ten).
_RECORDS = "64"
_DEEP = 200
_STDLIB = os.path.dirname(os.__file__) + os.sep


def _recorder(torch):
    """Have torch record collectives: it reads this when the first process group is made.

    Up to 2.8 it knows only the older name, and 2.13 still reads that, but warns.
    """
    if os.environ.get("TORCH_FR_BUFFER_SIZE") or os.environ.get("TORCH_NCCL_TRACE_BUFFER_SIZE"):
        return
    try:
        version = tuple(int(part) for part in str(torch.__version__).split(".")[:2])
    except ValueError:
        version = (0, 0)
    newer = version >= (2, 9)
    os.environ["TORCH_FR_BUFFER_SIZE" if newer else "TORCH_NCCL_TRACE_BUFFER_SIZE"] = _RECORDS


def _be_readable():
    """Let the watching program, and what it starts, read this process's stack where Yama would keep it from that.

    PR_SET_PTRACER of Documentation/admin-guide/LSM/Yama.rst; elsewhere it is an error that nobody minds.
    """
    with contextlib.suppress(Exception):
        import ctypes

        ctypes.CDLL(None).prctl(0x59616D61, int(os.environ["ENVBUILD_WATCH_PID"]), 0, 0, 0)


def flight(torch):
    """All that the flight recorder has, as torch gives it; None where this torch has none that can be read."""
    module = getattr(torch._C, "_distributed_c10d", None)
    for name in ("_dump_fr_trace_json", "_dump_nccl_trace_json"):
        read = getattr(module, name, None)
        if read is not None:
            text = read(includeCollectives=True, onlyActive=False)
            return text if isinstance(text, str) else text.decode("utf-8", "replace")
    return None


def last_calls(text):
    """Of each process group the collective that was begun last."""
    found = {}
    for entry in json.loads(text).get("entries", []):
        if entry.get("is_p2p"):
            continue
        group, number = entry.get("process_group"), int(entry.get("collective_seq_id", 0))
        name = " ".join(str(part) for part in group) if isinstance(group, list) else str(group)
        if number >= found.get(name, {"number": -1})["number"]:
            found[name] = {
                "number": number,
                "name": str(entry.get("profiling_name", "")),
                "sizes": json.dumps(entry.get("input_sizes", [])),
            }
    return found


class Moves:
    """Whether the main thread's Python moves on, from a look at it once in a while.

    A loop that sleeps and asks is found in one of two places: three in five looks are wanted.
    """

    def __init__(self):
        self._seen = collections.deque(maxlen=5)
        self.went = None
        self.place = ""

    def look(self, frame):
        here, self.place = [], ""
        while frame is not None and len(here) < _DEEP:
            here.append((id(frame.f_code), frame.f_lasti))
            if not self.place and not _is_library(frame.f_code.co_filename):
                name = os.path.basename(frame.f_code.co_filename)
                self.place = "{} ({}:{})".format(frame.f_code.co_name, name, frame.f_lineno)
            frame = frame.f_back
        here = tuple(here)
        moved = bool(self._seen) and here != self._seen[-1]
        self._seen.append(here)
        if moved and len(set(self._seen)) >= 3:
            self.went = time.time()


def _is_library(path):
    return path.startswith(("<", _STDLIB)) or "/site-packages/" in path or "/dist-packages/" in path


class Beacon(threading.Thread):
    """The thread of one process; it says nothing before torch's process group is there."""

    def __init__(self, folder, torch, seconds):
        super().__init__(name="envbuild-beacon", daemon=True)
        self._folder, self._torch, self._seconds = folder, torch, seconds
        self._engine = None
        self._answered = None
        self._moves = Moves()

    def noticed(self, engine):
        """The engine has made a step; the first one counts."""
        if self._engine is None:
            self._engine = engine

    def run(self):
        while True:
            # Whatever is wrong here, the training goes on.
            with contextlib.suppress(Exception):
                self._tell()
            time.sleep(self._seconds)

    def _tell(self):
        distributed = self._torch.distributed
        if not (distributed.is_available() and distributed.is_initialized()):
            return
        rank = distributed.get_rank()
        self._moves.look(sys._current_frames().get(threading.main_thread().ident))
        wanted = self._asked()
        # With NCCL a look into the recorder asks the driver for its events: only while somebody wants to know.
        text = flight(self._torch) if wanted or distributed.get_backend() == "gloo" else None
        told = {"rank": rank, "pid": os.getpid(), "at": time.time(), "step": None, "calls": None}
        told.update(went=self._moves.went, place=self._moves.place)
        if self._engine is not None:
            told["step"] = int(self._engine.global_steps)
        if text is not None:
            told["calls"] = last_calls(text)
        self._write("beacon-{}-{}.json".format(rank, os.getpid()), json.dumps(told))
        if wanted and wanted != self._answered:
            self._write("stack-{}.txt".format(rank), _stacks())
            if text is not None:
                self._write("flight-{}.json".format(rank), text)
            self._answered = wanted

    def _asked(self):
        """When somebody asked who still wants to know."""
        try:
            return os.stat(os.path.join(self._folder, "ask")).st_mtime_ns
        except OSError:
            return None

    def _write(self, name, text):
        path = os.path.join(self._folder, name)
        beside = "{}.{}.new".format(path, os.getpid())
        with open(beside, "w") as stream:
            stream.write(text)
        os.replace(beside, path)


def _stacks():
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    lines = []
    for ident, frame in sys._current_frames().items():
        name = names.get(ident, "?")
        if name == "envbuild-beacon":
            continue
        lines.append("Thread {}:\n".format(name))
        lines += reversed(traceback.format_stack(frame))
    return "".join(lines)


def begin(engine_class):
    """Start the thread, once in a process, and notice the engine at its steps."""
    import torch

    _recorder(torch)
    _be_readable()
    beacon = Beacon(os.environ["ENVBUILD_PROFILE"], torch, float(os.environ.get("ENVBUILD_WATCH_SECONDS", "1")))
    inner = engine_class.step

    def step(engine, *arguments, **named):
        beacon.noticed(engine)
        return inner(engine, *arguments, **named)

    step.__doc__, step.__name__ = inner.__doc__, inner.__name__
    engine_class.step = step
    beacon.start()
