"""Podman's filter of system calls, without the one refusal that stops DeepSpeed.

The profile of containers-common with Podman 4.3 refuses ``io_pgetevents`` with EPERM, where Docker's allows it. libaio
waits with that call; DeepSpeed's async_io takes the refusal for "nothing yet" and asks again for ever, so that offload
to NVMe hangs at its first write (measured: DeepSpeed 0.19.8, ``_do_io_complete`` in csrc/aio/common).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from pathlib import Path
from typing import Any

from envbuild import store

_CALL = "io_pgetevents"


def profile(system: str) -> Path | None:
    """A copy of the system's profile that allows the call; None where that one does, or cannot be read.

    Args:
        system: Path of the profile that the engine uses.
    """
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        said = json.loads(Path(system).read_text(encoding="utf-8"))
        mended = _allowing(said)
        if mended is None:
            return None
        text = json.dumps(mended)
        path = store.cache() / "seccomp" / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"
        if not path.exists():
            store.write_atomic(path, text)
        return path
    return None


def _allowing(said: dict[str, Any]) -> dict[str, Any] | None:
    """The profile with the call allowed and refused nowhere; None where nothing refuses it."""
    rules = said["syscalls"]
    if not any(_CALL in rule["names"] and rule["action"] != "SCMP_ACT_ALLOW" for rule in rules):
        return None
    kept = [{**rule, "names": [name for name in rule["names"] if name != _CALL]} for rule in rules]
    own = {"names": [_CALL], "action": "SCMP_ACT_ALLOW", "args": [], "comment": "", "includes": {}, "excludes": {}}
    return {**said, "syscalls": [*(rule for rule in kept if rule["names"]), own]}
