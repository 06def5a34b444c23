"""Folders that offload would swap to, and how fast they are when asked past the page cache."""

import contextlib
import errno
import mmap
import os
import re
import tempfile
import time

from .common import describe, real
from .machine import mounts

_BLOCK = 4096
_CHUNK = 8 << 20
_MOST_BYTES = 1 << 30
_MOST_SECONDS = 4.0
_COPY_BYTES = 256 << 20
_COPY_SECONDS = 1.0
# Half of what is free stays free.
_SHARE = 2
# What a file system says that does not do O_DIRECT, when it is opened or written (open(2), write(2)).
_REFUSALS = (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS)
# Mount options that name hosts, users or secrets; and the layers of a container, which are of no use.
_PRIVATE = re.compile(
    r"(?:\w*addr|user(?:name)?|pass(?:word)?|cred(?:entials)?|secret(?:file)?|domain|name|mon\w*|lowerdir|upperdir|workdir)="
)


def folder(host, path, bench):
    """One folder as it is; with ``bench`` its bandwidth too, within some seconds and 1 GiB."""
    found = {"path": path, "exists": os.path.isdir(path), "writable": False}
    if not found["exists"]:
        found["error"] = "it is no folder" if os.path.exists(path) else "it does not exist"
        return found
    try:
        found.update(_mount(host, path))
        state = os.statvfs(path)
        found["free"] = state.f_bavail * state.f_frsize
        _write(found, path, bench)
    except (OSError, ValueError) as error:
        found["error"] = describe(error)
    return found


def _mount(host, path):
    """The mount that a folder is on, and the device behind it: the longest mount point, the last one of its kind."""
    place, best = real(path), None
    for number, point, kind, source, options in mounts(host):
        if (place == point or place.startswith(point.rstrip("/") + "/")) and (
            best is None or len(point) >= len(best[1])
        ):
            best = (number, point, kind, source, options)
    if best is None:
        return {}
    number, _, kind, source, options = best
    return {
        "kind": kind,
        "device": _device(source),
        "options": [option for option in options if not _PRIVATE.match(option)],
        "rotational": _rotational(host, number, source),
    }


def _device(source):
    """Of a share on a network, the server is nobody's business, nor who asked for it: host:/x, //host/x, me@host:x."""
    if source.startswith("//") or re.match(r"[^/]+:/", source):
        return re.sub(r"\A//[^/]+|\A[^/]+(?=:/)", "SERVER", source)
    return "SERVER" if re.match(r"[^/]*[:@]", source) else source


def _rotational(host, number, source):
    """The queue's own word; of a partition that of its disk. None where there is no block device, as on a network."""
    bases = ["/sys/dev/block/" + number]
    if source.startswith("/dev/"):
        with contextlib.suppress(OSError):
            device = os.stat(host.path(source)).st_rdev
            bases.append("/sys/dev/block/{}:{}".format(os.major(device), os.minor(device)))
    for base in bases:
        for place in (base, base + "/.."):
            word = host.text(place + "/queue/rotational")
            if word in ("0", "1"):
                return word == "1"
    return None


def _write(found, path, bench):
    """Try O_DIRECT with one block, and measure, in a file that has no name for longer than it must."""
    name = None
    try:
        descriptor, name = tempfile.mkstemp(prefix=".envbuild-doctor-", dir=path)
    except OSError as error:
        found["error"] = error.strerror  # without the name, which is another every time
        return
    found["writable"] = True
    buffer = mmap.mmap(-1, _CHUNK)  # aligned to a page, as O_DIRECT wants it
    try:
        os.close(descriptor)
        try:
            descriptor = os.open(name, os.O_RDWR | os.O_DIRECT)
        except OSError as error:
            _note(found, error)
            return
        finally:
            os.unlink(name)
            name = None
        try:
            view = memoryview(buffer)
            os.write(descriptor, view[:_BLOCK])
            found["direct"] = True
            if bench:
                _measure(found, descriptor, view)
        except OSError as error:
            _note(found, error)
        finally:
            view.release()
            os.close(descriptor)
    finally:
        if name:
            with contextlib.suppress(OSError):
                os.unlink(name)
        buffer.close()


def _note(found, error):
    """What came in between: no O_DIRECT, or a disk that is full or broken, which says nothing about O_DIRECT."""
    if error.errno in _REFUSALS and not found.get("direct"):
        found["direct"] = False
    found["error"] = error.strerror


def _measure(found, descriptor, view):
    size = min(_MOST_BYTES, found["free"] // _SHARE) // _CHUNK * _CHUNK
    if size < _CHUNK:
        found["error"] = "not measured: too little is free"
        return
    view[:_CHUNK] = os.urandom(1 << 16) * (_CHUNK >> 16)  # zeros would be compressed away by some file systems
    os.lseek(descriptor, 0, os.SEEK_SET)
    began, written = time.time(), 0
    while written < size and time.time() - began < _MOST_SECONDS:
        written += os.write(descriptor, view)
    os.fsync(descriptor)
    found["write_bandwidth"] = written / max(1e-9, time.time() - began)
    os.lseek(descriptor, 0, os.SEEK_SET)
    began, read = time.time(), 0
    while read < written and time.time() - began < _MOST_SECONDS:
        count = os.readv(descriptor, [view])
        if not count:
            break
        read += count
    found["read_bandwidth"] = read / max(1e-9, time.time() - began)


def memory_bandwidth():
    """Bytes a second of copies in host memory by one thread: each byte is read once and written once."""
    source, target = mmap.mmap(-1, _COPY_BYTES), mmap.mmap(-1, _COPY_BYTES)
    one, other = memoryview(source), memoryview(target)
    try:
        other[:] = one  # the first touch makes the pages
        one[:] = other
        began, copied = time.time(), 0
        while time.time() - began < _COPY_SECONDS:
            other[:] = one
            copied += _COPY_BYTES
        return copied / (time.time() - began)
    finally:
        one.release()
        other.release()
        source.close()
        target.close()
