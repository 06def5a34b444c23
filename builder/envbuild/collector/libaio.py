"""libaio, as an extension's compiler, its linker and its loader would find it."""

import glob
import os
import shlex

from . import elf
from .common import opened, unique

# Debian from 13 on renamed it for its 64-bit time_t.
_NAMES = ("libaio.so.1", "libaio.so.1t64")
_LIBRARIES = ("/usr/local/lib", "/usr/lib64", "/lib64", "/usr/lib", "/lib", "/usr/local/lib64")
_HEADERS = ("/usr/local/include", "/usr/include")


def libaio(host):
    """Its header, its link name, and the library itself with its symbol versions; what is not there is None."""
    headers = _named(host, "CFLAGS", "-I", ("CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH"))
    links = _named(host, "LDFLAGS", "-L", ("LIBRARY_PATH",))
    loaded = _paths(host.environ.get("LD_LIBRARY_PATH", ""))
    system = [folder for base in ("/usr/lib", "/lib") for folder in _triplets(host, base)] + list(_LIBRARIES)
    link = _first(host, links + system, ("libaio.so", "libaio.a"))
    path = _first(host, loaded + links + system, _NAMES)
    return {
        "header": _first(host, headers + list(_HEADERS), ("libaio.h",)) is not None,
        "link": link,
        "path": path,
        "provides": _provides(host, path) if path else [],
    }


def _named(host, flags, option, variables):
    """Folders that the user's flags and variables name, before the system's own."""
    try:
        words = shlex.split(host.environ.get(flags, ""))
    except ValueError:
        words = []
    found = [word[2:] for word in words if word.startswith(option)]
    for name in variables:
        found += _paths(host.environ.get(name, ""))
    return unique(found)


def _paths(text):
    return [folder for folder in text.split(":") if folder.startswith("/")]


def _triplets(host, base):
    return [
        "{}/{}".format(base, os.path.basename(folder))
        for folder in sorted(glob.glob(host.path(base) + "/*-linux-gnu*"))
    ]


def _first(host, folders, names):
    for folder in folders:
        for name in names:
            path = os.path.join(folder, name)
            if host.exists(path):
                return path
    return None


def _provides(host, path):
    try:
        with opened(host.path(path)) as stream:
            return [version for version in elf.read(stream).provides if version.startswith("LIBAIO")]
    except (elf.Damaged, OSError):
        return []
