"""What is known not to work on the command line that starts a training (R24)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import PurePosixPath

_LAUNCHERS = frozenset({"deepspeed", "deepspeed.pt", "ds", "deepspeed.launcher.runner"})
# What stands before the name of a program: a shell's separators, programs that start others, and variables.
_BEFORE = re.compile(r"(.*(;|&&|\|\|?|&)|exec|env|nohup|time|then|do|-m|[A-Za-z_][A-Za-z0-9_]*=.*)")


def zero_offload(words: Iterable[str]) -> str:
    """The word that is ``--zero-offload``, with or without a value; empty when there is none."""
    return next((word for word in words if re.fullmatch(r"--zero[-_]offload(=.*)?", word)), "")


def refused(command: Sequence[str]) -> str:
    """``--zero-offload`` where ``deepspeed`` is started with it, by the command itself or in a shell's ``-c``.

    The launcher has no such option: ZeRO-Offload is a matter of the ds_config. Only what follows the launcher's name
    counts, so a script with an option of that name that is started by something else is left alone.
    """
    for start, words in _programs(command):
        if PurePosixPath(words[start]).name in _LAUNCHERS:
            return zero_offload(words[start + 1 :])
    return ""


def _programs(command: Sequence[str]) -> Iterator[tuple[int, list[str]]]:
    """Where programs are named: the position, and the words around it."""
    whole = list(command)
    for text in command:
        words = text.split()
        if len(words) > 1:  # one argument with blanks in it: what a shell is to run
            yield from ((at, words) for at in _positions(words))
    yield from ((at, whole) for at in _positions(whole))


def _positions(words: list[str]) -> list[int]:
    return [at for at in range(len(words)) if at == 0 or _BEFORE.fullmatch(words[at - 1])]
