"""What is known not to work on the command line that starts a training (R24)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import PurePosixPath

_LAUNCHERS = frozenset({"deepspeed", "deepspeed.pt", "ds", "deepspeed.launcher.runner"})


def zero_offload(words: Iterable[str]) -> str:
    """The word that is ``--zero-offload`` with or without a value; empty when there is none."""
    return next((word for word in words if re.fullmatch(r"--zero[-_]offload(=.*)?", word)), "")


def refused(command: Sequence[str]) -> str:
    """``--zero-offload`` where ``deepspeed`` is started with it, in the command itself or in a shell's ``-c``.

    The launcher has no such option: ZeRO-Offload is a matter of the ds_config. Only what follows the launcher's name
    counts, so a script of that option's own that is started by something else is left alone.
    """
    words = [word for part in command for word in part.split()]
    starts = [index for index, word in enumerate(words) if PurePosixPath(word).name in _LAUNCHERS]
    return zero_offload(words[starts[0] + 1 :]) if starts else ""
