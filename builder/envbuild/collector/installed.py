"""Packages that are not whole: files of their RECORD that are gone or cut short, and a RECORD that was never written.

PyPA, "Recording installed projects": pip writes RECORD last, with every file's size in bytes.
"""

import csv
import io
import os
import struct

# What training imports first; their files decide whether it starts.
_NAMES = ("torch", "deepspeed", "numpy", "pydantic", "pydantic-core", "triton", "transformers", "accelerate")
_RECORD_BYTES = 16 << 20
_TOLD = 20


def damaged(packages):
    """Each package of interest that is not whole; ``packages`` as ``interpreter.packages`` lists them."""
    found, seen = [], set()
    for package in packages:
        name = package["name"].lower().replace("_", "-").replace(".", "-")
        if (name in _NAMES or name.startswith("nvidia-")) and name not in seen:
            seen.add(name)
            answer = _damage(package)
            if answer:
                found.append(answer)
    return found


def _damage(package):
    info, location = package.get("info") or "", package.get("location") or "/"
    if not info.endswith(".dist-info"):
        return None
    named = {"name": package["name"], "version": package["version"]}
    try:
        with open(os.path.join(location, info, "RECORD"), "rb") as stream:
            text = stream.read(_RECORD_BYTES).decode("utf-8", "replace")
    except FileNotFoundError:
        # Packages of conda and of the system may do without; pip and uv always write one.
        return dict(named, record=False, missing=[], count=0) if _by_pip(location, info) else None
    except (OSError, ValueError):
        return None
    missing = [told for told in (_state(location, row) for row in _rows(text)) if told]
    return dict(named, record=True, missing=missing[:_TOLD], count=len(missing)) if missing else None


def _by_pip(location, info):
    try:
        with open(os.path.join(location, info, "INSTALLER"), "rb") as stream:
            return stream.read(100).strip() in (b"pip", b"uv")
    except (OSError, ValueError):
        return not os.path.exists(os.path.join(location, info, "INSTALLER"))


def _rows(text):
    try:
        return [row for row in csv.reader(io.StringIO(text)) if row]
    except csv.Error:
        return []


def _state(location, row):
    """What is wrong with a file, in words; None where nothing is, or where it stops no import."""
    path = os.path.normpath(os.path.join(location, row[0]))
    native = ".so" in os.path.basename(path)
    if not native and not path.endswith(".py"):
        return None
    try:
        size = os.stat(path).st_size
    except FileNotFoundError:
        return path
    except (OSError, ValueError):
        return None
    wanted = int(row[2]) if len(row) > 2 and row[2].isdigit() and len(row[2]) < 16 else 0
    if size < wanted and (size == 0 or (native and _is_cut(path, size))):
        return "{}: {} of {} bytes".format(path, size, wanted)
    return None


def _is_cut(path, size):
    """Whether an ELF file ends before its own table of sections does; a stripped one is smaller, and whole."""
    try:
        with open(path, "rb") as stream:
            head = stream.read(64)
    except OSError:
        return False
    if len(head) < 64 or head[:4] != b"\x7fELF" or head[4] != 2:
        return len(head) < 64
    order = "<" if head[5] == 1 else ">"
    (offset,) = struct.unpack(order + "Q", head[0x28:0x30])
    entry, count = struct.unpack(order + "HH", head[0x3A:0x3E])
    return offset + entry * count > size
