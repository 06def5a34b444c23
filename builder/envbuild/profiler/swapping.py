"""What DeepSpeed's swapper asks of a disk, and how long the training stands still for it.

Every transfer of an offload to NVMe goes through a handle of async_io (csrc/aio/py_lib/py_ds_aio.cpp). Its methods have
had the same names from DeepSpeed 0.8.3 to 0.19.8: ``async_pread`` and ``async_pwrite`` begin a transfer, ``wait`` ends
all that were begun, the others do both. A compiled object takes no attributes, so the methods of its class are wrapped.
What is timed is the host's time in them: of a transfer that goes on behind the computation, only what is waited for.
Standard library only, Python 3.7 and later; loaded by its path.
"""

import functools
import time

_READ = ("read", "pread", "sync_pread", "async_pread")
_WRITE = ("write", "pwrite", "sync_pwrite", "async_pwrite")
_MARK = "envbuild_timed"
NOTHING = "the training offloads nothing to a disk"


class Swaps:
    """Attributes:
    reason: Why swapping is not measured; None where it is.
    """

    def __init__(self, clock):
        self._clock = clock
        self._depth = 0
        self._seconds, self._read, self._written = 0.0, 0, 0
        self._accounted = None
        self.reason = NOTHING

    def install(self, engine):
        """Wrap the handles that this engine's swappers have; another engine may have none."""
        owners = [getattr(getattr(engine, "optimizer", None), "optimizer_swapper", None)]
        parameters = getattr(getattr(engine, "module", None), "parameters", None)
        if parameters is not None:
            owners += {id(each): each for each in (getattr(one, "nvme_swapper", None) for one in parameters())}.values()
        owners = [owner for owner in owners if owner is not None]
        kinds = {type(value) for owner in owners for value in vars(owner).values() if _is_handle(type(value))}
        if owners:
            self.reason = None if kinds else "the swapper of this DeepSpeed has no handle that is known"
        try:
            for kind in kinds:
                self._wrap(kind)
        except (TypeError, AttributeError) as error:
            self.reason = "the handle's methods cannot be wrapped: {}".format(error)

    def _wrap(self, kind):
        if getattr(kind, _MARK, False):
            return
        setattr(kind, _MARK, True)
        for name in (*_READ, *_WRITE, "wait"):
            inner = getattr(kind, name, None)
            if callable(inner):
                setattr(kind, name, self._timed(inner, name))

    def _timed(self, inner, name):
        @functools.wraps(inner)
        def timed(handle, *args, **kwargs):
            # A checkpoint writer may have handles of its own, and a method may be made of others.
            if self._depth or self._clock.inside == "checkpoint":
                return inner(handle, *args, **kwargs)
            self._depth += 1
            began = time.perf_counter()
            try:
                return inner(handle, *args, **kwargs)
            finally:
                self._seconds += time.perf_counter() - began
                self._depth -= 1
                size = _bytes(kwargs.get("buffer", args[0] if args else None))
                self._read += size if name in _READ else 0
                self._written += size if name in _WRITE else 0

        return timed

    def take(self):
        """What there was since the last call: seconds (None where they are not measured), and bytes by their kind."""
        before, self._accounted = self._accounted, accounted()
        moved = {}
        if before is not None and self._accounted is not None:
            moved = {name: self._accounted[name] - before[name] for name in before}
        seconds = None
        if self.reason is None:
            seconds = self._seconds
            moved.update(swap_read=self._read, swap_write=self._written)
        self._seconds, self._read, self._written = 0.0, 0, 0
        return seconds, moved


def _is_handle(kind):
    return all(callable(getattr(kind, name, None)) for name in ("wait", "async_pread", "async_pwrite"))


def _bytes(buffer):
    count = getattr(buffer, "numel", None)
    return count() * buffer.element_size() if callable(count) else 0


def accounted():
    """Bytes that this process has had read from and written to disks, by the kernel's account; None without one."""
    found = {}
    try:
        with open("/proc/self/io") as stream:
            for line in stream:
                name, _, value = line.partition(": ")
                if name in ("read_bytes", "write_bytes"):
                    found["process_" + name[:-6]] = int(value)
    except (OSError, ValueError):
        return None
    return found if len(found) == 2 else None
