"""Everything that the loader's answer needs, for any order of loading and for other variables than today's.

Not what the loader would do, but more: every folder that any object's RPATH or RUNPATH, LD_LIBRARY_PATH, ld.so.cache or
the loader itself names is looked into for every name that anybody asks for; what is there is read and followed.
``doctor.loading`` applies the loader's rules to it.
"""

import base64
import collections
import os
import re
import time
import zlib

from . import places
from .elf import Damaged, NotElf, read
from .elf.linker import LEGACY, LEVELS, MAX_LINKER, expand, preloads, search_of
from .links import Links

_CACHE, _PRELOAD = "/etc/ld.so.cache", "/etc/ld.so.preload"
_MAX_CACHE = 32 << 20
_MAX_PRELOAD = 64 << 10
# A large CUDA environment has some 300 libraries, 60 folders and 200 names.
_MAX_FILES = 4000
_MAX_FOLDERS = 2000
_MAX_NAMES = 5000
_MAX_KEPT = 64 << 20  # characters of what the files say; a file may say 4 MB
_MAX_SECONDS = 30.0
_MAX_PATH = 4096


def libraries(interpreter, seeds, environment, level=None):
    """What ``doctor.collection.Libraries`` describes, as a dict. Never raises for what it finds on the machine.

    Args:
        interpreter: ``executable``, and where known ``prefix``, ``base`` and ``path``, as in ``Interpreter``.
        seeds: Paths of what would be loaded, in order; the interpreter is not among them.
        environment: The variables it would run under.
        level: Of the CPU, such as x86-64-v3; folders for better ones are left out.
    """
    closure = _Closure(environment, level)
    executable = _absolute(interpreter.get("executable") or "", closure.folder)
    closure.start(executable)
    for seed in seeds:
        closure.take(_absolute(seed, closure.folder))
    closure.follow()
    elsewhere = {}
    try:
        near, far = places.near(interpreter, environment), places.far(environment)
        for folder in near:
            closure.look_into(folder)
        closure.follow()
        for path, name in places.copies(near + sorted(closure.folders) + far, closure.links).items():
            file = closure.read(path)
            soname = (file or {}).get("soname") or name
            elsewhere.setdefault(soname, []).append(path)
    except (OSError, ValueError, re.error) as error:
        closure.errors.append("usual places: {}".format(error))
    return closure.answer([executable, *seeds], elsewhere)


def _absolute(path, folder):
    return path if path.startswith("/") else folder.rstrip("/") + "/" + path


class _Closure:
    """The search: it ends when no file brings a name or a folder that was not there before."""

    def __init__(self, environment, level):
        self.links = Links()
        self.errors = []
        self.files = {}
        self.broken = {}
        self.folders = {}  # real path -> the names in it, None where each has to be tried
        self.folder = _current()
        self.loader = None
        self.cache, self.preload = b"", ""
        self._environment = environment
        self._levels = LEVELS if level not in LEVELS else LEVELS[: LEVELS.index(level) + 1]
        self._main = None
        self._names = set()
        self._taken = set()
        self._queue = collections.deque()
        self._kept = 0
        self._deep = set()
        self._since = time.time()

    def start(self, executable):
        """The interpreter, its loader, and what comes with every process."""
        real = self.links.file(executable)
        main = self.read(real) if real else None
        if main is None:
            why = self.broken.get(real, "it is not there")
            self.errors.append("{}: {}".format(executable or "no interpreter", why))
        else:
            self._main = main
            self._find_loader(executable, main)
        self.cache = self._content(_CACHE, _MAX_CACHE)
        self.preload = self._content(_PRELOAD, _MAX_PRELOAD).decode("utf-8", "backslashreplace")
        if real:
            self._queue.append((real, os.path.dirname(real)))
        for name in preloads(self._environment.get("LD_PRELOAD", ""), self.preload):
            self._ask(name, os.path.dirname(real or "/"))
        for name in places.ASKED_FOR:
            self._ask(name, "/")
        library_path = self._environment.get("LD_LIBRARY_PATH")
        for entry in re.split("[:;]", library_path) if library_path else ():
            self.look_into(self._expanded(entry, os.path.dirname(real or "/")))
        # Its paths end with a NUL; the first of them may follow right behind the table.
        paths = [text[text.find(b"/") :] for text in self.cache.split(b"\0") if b"/" in text and len(text) < _MAX_PATH]
        for folder in sorted({path.rpartition(b"/")[0] for path in paths} - {b""}):
            self.look_into(os.fsdecode(folder))
        for folder in (self.loader or {}).get("folders", ()):
            self.look_into(folder)

    def _find_loader(self, executable, main):
        path = main["interp"]
        if path is None:
            self.errors.append("{} asks for no loader: it is linked statically".format(executable))
            return
        real = self.links.file(path)
        if real is None:
            self.errors.append("{} asks for the loader {}, which is not there".format(executable, path))
            return
        self.read(real)
        search = search_of(self._content(real, MAX_LINKER), main["machine"])
        if search is None or not search.folders:
            self.errors.append("{}, the loader of {}, is not glibc's for x86-64 or aarch64".format(path, executable))
            return
        self.loader = {"path": path, "machine": main["machine"], "lib": search.folders[0].lstrip("/")}
        self.loader.update(folders=list(search.folders), hwcaps=search.hwcaps, legacy=search.legacy)

    def take(self, path):
        """A file by its path: it is read, and what it needs is looked for."""
        real = self.links.file(path)
        if real is not None:
            # $ORIGIN is the folder of the path by which it is loaded, which may be a link's.
            self._queue.append((real, self.links.folder(os.path.dirname(path) or "/") or "/"))
            return
        # Not opened: a pipe would wait for a writer. The loader does open it, and fails.
        real, kind = self.links.irregular(path)
        if real is not None:
            self.broken[real] = "not ELF: {}".format("a folder" if kind == "folder" else "no regular file")

    def follow(self):
        """Work until nothing new turns up."""
        while self._queue and not self._enough():
            real, origin = self._queue.popleft()
            if (real, origin) in self._taken:
                continue
            self._taken.add((real, origin))
            file = self.read(real)
            if file is None or (self._main and (file["machine"], file["bits"]) != self._kind()):
                continue
            for entry in (file["rpath"] or []) + (file["runpath"] or []):
                self.look_into(self._expanded(entry, origin))
            for name in file["needed"]:
                self._ask(self._expanded(name, origin), origin)

    def look_into(self, folder):
        """Look into a folder, and the hardware folders in it, for every name."""
        real = self._look(_absolute(folder, self.folder))
        if real is None or real in self._deep:
            return
        self._deep.add(real)
        names = self.folders.get(real)
        for sub in self._subfolders():
            if names is None or sub.partition("/")[0] in names:
                self._look(real.rstrip("/") + "/" + sub)

    def _look(self, folder):
        real = self.links.folder(folder)
        if real is None or real in self.folders:
            return real
        if len(self.folders) >= _MAX_FOLDERS:
            self._note("more than {} folders are searched".format(_MAX_FOLDERS))
            return None
        names = self.folders[real] = self.links.names(real)
        for name in sorted(self._names if names is None else self._names & names):
            self.take(real.rstrip("/") + "/" + name)
        return real

    def read(self, real):
        """The file at a real path, as ``Native`` has it; None for one that cannot be understood."""
        if real in self.files or real in self.broken:
            return self.files.get(real)
        self.links.paths[real] = real
        try:
            if self._enough():
                raise Damaged("not read: too much was read before it")
            with open(real, "rb", buffering=0) as stream:
                empty = os.fstat(stream.fileno()).st_size == 0
                file = read(stream)
            self.files[real] = _as_json(file)
            texts = file.needed + file.provides + file.comment + (file.rpath or ()) + (file.runpath or ())
            self._kept += sum(map(len, texts)) + sum([len(need.library + need.version) for need in file.requires])
        except NotElf:
            self.broken[real] = "not ELF: it is empty" if empty else "not ELF"
        except Damaged as error:
            self.broken[real] = str(error)
        except PermissionError:
            self.broken[real] = "no permission"  # to the loader it is not there
        except (OSError, ValueError) as error:
            self.broken[real] = "cannot be read: {}".format(getattr(error, "strerror", None) or error)
        return self.files.get(real)

    def answer(self, seeds, elsewhere):
        """All of it."""
        if self.links.full:
            self._note("so many paths were looked at that not all were followed")
        cache = base64.b64encode(zlib.compress(self.cache, 9)).decode("ascii") if self.cache else None
        return {
            "loader": self.loader, "files": self.files, "broken": self.broken, "paths": self.links.paths,
            "cache": cache, "preload": self.preload, "seeds": seeds, "folder": self.folder, "elsewhere": elsewhere,
            "errors": self.errors,
        }  # fmt: skip

    def _ask(self, name, origin):
        """Look for a name in every folder; one with a slash is a path."""
        if "/" in name:
            self.take(_absolute(self._expanded(name, origin), self.folder))
        elif name and name not in self._names:
            if len(self._names) >= _MAX_NAMES:
                self._note("more than {} libraries are asked for".format(_MAX_NAMES))
                return
            self._names.add(name)
            for folder, names in self.folders.items():
                if names is None or name in names:
                    self.take(folder.rstrip("/") + "/" + name)

    def _expanded(self, entry, origin):
        loader = self.loader or {}
        return expand(entry, origin, loader.get("lib", "lib64"), loader.get("machine", "x86_64"))

    def _subfolders(self):
        loader = self.loader
        if loader is None:
            return []
        named = ["glibc-hwcaps/" + level for level in self._levels] if loader["hwcaps"] else []
        return named + ([sub.format(loader["machine"]) for sub in LEGACY] if loader["legacy"] else [])

    def _kind(self):
        return self._main["machine"], self._main["bits"]

    def _content(self, path, limit):
        real = self.links.file(path)
        if real is None:  # not opened: what is no regular file may block
            return b""
        try:
            with open(real, "rb") as stream:
                return stream.read(limit)
        except (OSError, ValueError):
            return b""

    def _enough(self):
        if len(self.files) + len(self.broken) >= _MAX_FILES:
            self._note("more than {} files; what they need was not followed to the end".format(_MAX_FILES))
            return True
        if self._kept > _MAX_KEPT:
            self._note("the files say more than {} characters".format(_MAX_KEPT))
            return True
        if time.time() - self._since > _MAX_SECONDS:
            self._note("it took more than {:g} s, and was ended".format(_MAX_SECONDS))
            return True
        return False

    def _note(self, error):
        if error not in self.errors:
            self.errors.append(error)


def _current():
    try:
        return os.getcwd()
    except OSError:  # it was removed
        return "/"


def _as_json(file):
    """As ``Native`` has it."""
    return {name: list(value) if isinstance(value, tuple) else value for name, value in file._asdict().items()}
