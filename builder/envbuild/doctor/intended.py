"""What a machine is meant to be, when versions are said in place of a row: ``--torch 2.1.0 --cuda 11.8``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from envbuild.errors import InputError
from envbuild.facts import Facts
from envbuild.matrix.asking import understand, unknown
from envbuild.matrix.nearest import filled
from envbuild.model import Environment

# What may be said, by option: --torch, --cuda, --deepspeed, --gpu, --gcc, --python, --nccl, --driver.
SAID = ("torch", "cuda", "deepspeed", "gpu", "gcc", "python", "nccl", "driver")


@dataclass(frozen=True, slots=True, kw_only=True)
class Intended:
    """What was asked for.

    Attributes:
        row: It, with everything else filled in.
        said: The fields that were asked for; all others are guesses that no machine is held to. None: all count.
    """

    row: Environment
    said: frozenset[str] | None = None


def intended(
    facts: Facts, rows: Iterable[Environment], said: Mapping[str, str], *, start: Environment | None = None
) -> Intended:
    """The row that is meant.

    Args:
        rows: The matrix: where something was not said, what rows have is taken.
        said: What was typed, by the names of ``SAID``; a version may be a series (2.1), a GPU is called as on the box.
        start: The row of ``--row``, in which what was said is changed.

    Raises:
        InputError: Nothing was said, or a value cannot be one, or the facts do not know it: the nearest are named.
    """
    if start is not None and not said:
        return Intended(row=start)
    if not said:
        raise InputError("which environment is meant?", hint="Say a row (--row ENV) or versions: --torch 2.1.0")
    strange = next((name for name in said if name not in SAID), None)
    if strange is not None:
        raise InputError(f"--{strange} says nothing about an environment", hint=f"Known: {', '.join(SAID)}.")
    space, wants = understand(facts, rows, said, start=start)
    for field, want in wants.items():
        if not want.values:
            raise InputError(unknown(facts, field, want), hint="See what is known: envbuild facts list")
    row = filled(space, wants)
    if start is not None:
        return Intended(row=row)
    if "gpu" not in wants:
        # Nobody named a GPU: the machine's own are looked at, and the floor of the driver is the toolkit's alone.
        floor = facts.driver_floor(row.cuda.version) if row.cuda else None
        driver = row.driver if "driver" in wants else floor.floor if floor else None
        row = row.model_copy(update={"gpus": (), "driver": driver})
    return Intended(row=row, said=frozenset(wants))
