"""What watches a rank while it works: where it stands, what its memory does, and which programs it starts.

Standard library only, Python 3.7 and later. Loaded by its path, like ``common.py``.
"""

import contextlib
import os
import resource
import subprocess
import sys
import time

_KEPT_PROGRAMS = 200
_KEPT_WORDS = 60
_WORD_CHARS = 200
_PAGE = os.sysconf("SC_PAGE_SIZE")
# Python's own names for starting a program (audit events table of the language's documentation), with the places of
# the program and of its arguments among what the event carries.
_STARTS = {
    "subprocess.Popen": (0, 1),
    "os.exec": (0, 1),
    "os.posix_spawn": (0, 1),
    "os.spawn": (1, 2),
    "os.system": (None, 0),
    "pty.spawn": (None, 0),
}


def resident_bytes():
    """Memory of this process that is in RAM now; None where the kernel does not say."""
    try:
        with open("/proc/self/statm") as stream:
            return int(stream.read().split()[1]) * _PAGE
    except (OSError, ValueError, IndexError):
        return None


def peak_resident_bytes():
    """The most that it ever was."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def locked_bytes():
    """Memory that this process has locked (mlock); None where the kernel does not say."""
    try:
        with open("/proc/self/status") as stream:
            for line in stream:
                if line.startswith("VmLck:"):
                    return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return None


def shared_bytes():
    """What lies in /dev/shm, by whomever; None where there is none."""
    try:
        figures = os.statvfs("/dev/shm")
    except OSError:
        return None
    return (figures.f_blocks - figures.f_bfree) * figures.f_frsize


class Phases:
    """Where this rank is, in a file that outlives it, and for each phase its seconds and the memory at its end.

    Attributes:
        figures: By name of the phase: seconds, rss_bytes, shm_bytes, and on a GPU the peaks since its begin.
        gpu: A function that gives the GPU's figures, once there is something to ask.
    """

    def __init__(self, path):
        self._path = path
        self._began = time.monotonic()
        self._number = 0
        self.name = None
        self.figures = {}
        self.gpu = dict

    def enter(self, name, detail=""):
        now = time.monotonic()
        if name != self.name:
            if self.name is not None:
                self._end(now)
            self.name, self._began = name, now
        self._number += 1
        with open(self._path, "w") as stream:
            # The number tells the launcher which rank has come how far.
            stream.write("{} {}".format(self._number, "{} {}".format(name, detail).strip()))

    def _end(self, now):
        kept = self.figures.setdefault(self.name, {"seconds": 0.0})
        kept["seconds"] += now - self._began
        kept["rss_bytes"] = resident_bytes()
        kept["shm_bytes"] = shared_bytes()
        kept.update(self.gpu())


class Programs:
    """Every program that Python code of this process starts, from now on.

    A hook of the interpreter (PEP 578) cannot be taken out again. Python 3.7 has none: there the usual ways are
    wrapped. A program that native code starts by itself is not seen; a compiler is started by Python (ninja, hipify,
    distutils, triton), and a native library that compiles leaves its file, which is looked for too.
    """

    def __init__(self, phases):
        self._phases = phases
        self.count = 0
        self.kept = []
        self.hooked = hasattr(sys, "addaudithook")
        if self.hooked:
            sys.addaudithook(self._heard)
        else:
            self._wrap()

    def figures(self):
        return {"hooked": self.hooked, "count": self.count, "started": self.kept}

    def _heard(self, event, arguments):
        places = _STARTS.get(event)
        if places is not None:
            # What a hook raises would stop the program that is being started.
            with contextlib.suppress(Exception):
                self._note(event, None if places[0] is None else arguments[places[0]], arguments[places[1]])

    def _note(self, event, program, words):
        self.count += 1
        if len(self.kept) < _KEPT_PROGRAMS:
            words = [words] if isinstance(words, (str, bytes)) or hasattr(words, "__fspath__") else list(words or ())
            self.kept.append(
                {
                    "how": event,
                    "phase": self._phases.name,
                    "program": None if program is None else _text(program),
                    "argv": [_text(word) for word in words[:_KEPT_WORDS]],
                }
            )

    def _wrap(self):
        start, shell = subprocess.Popen.__init__, os.system

        def popen(process, args, *more, **named):
            self._note("subprocess.Popen", named.get("executable"), args)
            return start(process, args, *more, **named)

        def system(command):
            self._note("os.system", None, command)
            return shell(command)

        subprocess.Popen.__init__ = popen
        os.system = system


def _text(word):
    return os.fsdecode(word)[:_WORD_CHARS] if isinstance(word, (str, bytes)) else str(word)[:_WORD_CHARS]
