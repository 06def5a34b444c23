"""Blobs on their way, as steps: one for each, with how far it has come. May be told from several threads."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field

from envbuild.events import Event, Note, Sink, StepDone, StepLine, StepStarted
from envbuild.pipeline.sizes import format_size
from envbuild.registry import Descriptor

# A blob's progress is told again when it has grown by this share of its size, or after so many seconds.
_REPORT_SHARE = 0.05
_REPORT_SECONDS = 5.0


class Stopped(Exception):
    """A transfer ends here, because the run does."""


@dataclass(slots=True)
class _Blob:
    name: str
    size: int
    began: float
    moved: int = 0
    told: int = 0
    told_at: float = 0.0


@dataclass(slots=True)
class Mover:
    """Tells of every blob of one transfer.

    Attributes:
        verb: What is done with them, such as ``sending``.
        moved: Bytes that went over the network, all in all.
    """

    sink: Sink
    verb: str
    moved: int = 0
    _lock: threading.RLock = field(default_factory=threading.RLock)
    _blobs: dict[str, _Blob] = field(default_factory=dict)
    _stopped: bool = False

    def event(self, event: Event) -> None:
        """Pass on an event from whatever thread."""
        with self._lock:
            self.sink(event)

    def stop(self) -> None:
        """End every transfer at its next piece: somebody is waiting for the run to end."""
        self._stopped = True

    def note(self, message: str, level: str = "info") -> None:
        """Say something."""
        self.event(Note(message=message, level=level))

    def start(self, blob: Descriptor, name: str) -> None:
        """A blob begins."""
        with self._lock:
            self._blobs[blob.digest] = _Blob(name=name, size=blob.size, began=time.monotonic())
            self.sink(StepStarted(key=blob.digest, name=f"{name} {blob.digest[7:19]} {format_size(blob.size)}"))

    def progress(self, blob: Descriptor, count: int) -> None:
        """So many bytes of it more (or fewer: they come again).

        Raises:
            Stopped: It is to go no further.
        """
        if self._stopped:
            raise Stopped
        with self._lock:
            seen = self._blobs[blob.digest]
            seen.moved += count
            now = time.monotonic()
            grown = seen.moved - seen.told >= _REPORT_SHARE * seen.size
            if seen.moved < seen.size and (grown or now - seen.told_at > _REPORT_SECONDS):
                seen.told, seen.told_at = seen.moved, now
                text = f"{self.verb} {format_size(seen.moved)} of {format_size(seen.size)}"
                self.sink(StepLine(key=blob.digest, text=text))

    def done(self, blob: Descriptor, *, cached: bool) -> None:
        """It is where it should be; ``cached`` where it was there before."""
        with self._lock:
            seen = self._blobs[blob.digest]
            if not cached:
                self.moved += blob.size
            seconds = time.monotonic() - seen.began
            status = "cached" if cached else "done"
            name = f"{seen.name} {blob.digest[7:19]} {format_size(blob.size)}"
            self.sink(StepDone(key=blob.digest, name=name, status=status, seconds=seconds))
