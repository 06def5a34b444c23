"""The end of a user's own command whose time is up: it and all that it has started are asked, and then ended.

Launchers start ranks in sessions of their own, which no signal to the command's group would reach; and that group is
the terminal's, with this program in it. So its processes are found by their parents.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable

from envbuild.watching import proc

# A rank that has been told writes its last lines; what goes on is ended.
GRACE_SECONDS = 10.0
_LOOK_SECONDS = 0.05


def end(root: int, grace: float = GRACE_SECONDS) -> None:
    """Tell a process and its descendants to end, and end those that have not within the grace."""
    known = {each.pid: each for each in proc.tree(root)}
    _tell(known.values(), signal.SIGTERM)
    until = time.monotonic() + grace
    while (left := [each for each in known.values() if _alive(each)]) and time.monotonic() < until:
        # Who is told to end may start others first, and leaves them without a parent.
        known |= {each.pid: each for member in left for each in proc.tree(member.pid) if each.pid not in known}
        time.sleep(_LOOK_SECONDS)
    _tell(reversed(left), signal.SIGKILL)


def _alive(member: proc.Stat) -> bool:
    now = proc.stat(member.pid)
    return now is not None and now.started == member.started and now.state not in ("Z", "X")


def _tell(members: Iterable[proc.Stat], number: int) -> None:
    for member in members:
        if _alive(member):
            with contextlib.suppress(OSError):
                os.kill(member.pid, number)
