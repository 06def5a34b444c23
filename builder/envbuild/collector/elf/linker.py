"""What the bytes of glibc's loader say of its search, and how it reads the entries of a search path."""

import re
from typing import NamedTuple

MAX_LINKER = 4 << 20  # ld-linux-x86-64.so.2 of glibc 2.36 has 210 KB
# SYSTEM_DIRS of glibc's elf/dl-load.c: folders with a slash at the end, one after the other.
_SYSTEM_FOLDERS = re.compile(rb"(?:(?:/[\w.+-]+){1,6}/\0){2,16}")
LEVELS = ("x86-64-v2", "x86-64-v3", "x86-64-v4")
# Before glibc 2.37, in the order that LD_DEBUG=libs shows for 2.36 on x86-64. Whether haswell and avx512_1 are searched
# too depends on the maker of the CPU; those of aarch64 are by analogy (unverified).
LEGACY = ("tls/{0}/{0}", "tls/{0}", "tls", "{0}/{0}", "{0}")
_TOKEN = re.compile(r"\$(?:\{(ORIGIN|PLATFORM|LIB)\}|(ORIGIN|PLATFORM|LIB)(?![A-Za-z0-9_]))")
_PRELOAD_ENDS, _PRELOAD_FILE_ENDS = re.compile("[ :]"), re.compile(r"[ :\t\n]")


class Search(NamedTuple):
    """The default search of a loader: folders; and whether it knows glibc-hwcaps and the older hardware folders."""

    folders: "tuple[str, ...]"
    hwcaps: "bool"
    legacy: "bool"


def search_of(data: bytes, machine: str) -> "Search | None":
    """The search of a loader with these bytes; None where it is not glibc's for x86-64 or aarch64.

    A glibc loader that names no folders has none here.
    """
    if b"GLIBC_PRIVATE" not in data or machine not in ("x86_64", "aarch64"):
        return None
    found = next((run.group() for run in _SYSTEM_FOLDERS.finditer(data) if b"lib" in run.group()), b"")
    return Search(
        tuple(part.decode("ascii").rstrip("/") for part in found.split(b"\0") if part),
        # Both are in its --help since 2.33, and the second only as long as it is true.
        hwcaps=b"glibc-hwcaps" in data,
        legacy=b"glibc-hwcaps" not in data or b"Legacy HWCAP" in data,
    )


def expand(entry: str, origin: str, lib: str, machine: str) -> str:
    """``$ORIGIN``, ``$LIB`` and ``$PLATFORM`` replaced as in an object's own entries.

    ``$PLATFORM`` is the machine; on some Intel CPUs the loader says ``haswell`` or ``xeon_phi`` instead.
    """
    if "$" not in entry:
        return entry
    values = {"ORIGIN": origin, "LIB": lib, "PLATFORM": machine}
    return _TOKEN.sub(lambda token: values[token.group(1) or token.group(2)], entry)


def preloads(variable: str, file: str) -> "list[str]":
    """The names that LD_PRELOAD and the text of /etc/ld.so.preload ask for."""
    names = _PRELOAD_ENDS.split(variable) + _PRELOAD_FILE_ENDS.split(re.sub(r"#[^\n]*", "", file))
    return [name for name in names if name]
