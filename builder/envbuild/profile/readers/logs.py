"""The logs of one training, such as one for each rank, joined to one measurement."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from envbuild.errors import InputError
from envbuild.profile.document import Key, Measurement, Origins
from envbuild.profile.readers.log import Log, printable, rank_of
from envbuild.profile.readers.opened import head, lines, rank_in
from envbuild.profile.readers.run import Run

# In so much of a file each rank that writes into it has named itself.
_BEGINNING = 1024 * 1024
# What a run tells of itself, and how a note calls that.
_TOLD = {"version": "versions of DeepSpeed", "world": "numbers of ranks", "nccl": "versions of NCCL",
         "accelerator": "accelerators", "config": "ds_configs"}  # fmt: skip


def read(paths: list[Path], *, deepspeed: str | None = None) -> Measurement:
    """One measurement of the logs of one training: each run of it is a launch, with the ranks of all files.

    Raises:
        InputError: One cannot be read, or none holds a step or a collective.
    """
    numbers, notes = _numbers(paths)
    told = []
    alike = len({path.name for path in paths}) < len(paths)
    for path, number in zip(paths, numbers, strict=True):
        log = Log(deepspeed, number)
        for line in lines(path):
            log.take(line)
        name = f"{path.parent.name}/{path.name}" if alike else path.name
        told.append((printable(name)[:80], log.told()))
    runs, why = _joined(told)
    if not runs:
        raise InputError(
            f"{', '.join(map(str, paths))}: no timers, losses or collectives of DeepSpeed",
            hint='Set "wall_clock_breakdown": true in the ds_config, or enable its comms_logger, and train again.',
        )
    launches = tuple(run.launch() for run in runs)
    timed = any(rank.steps.number for launch in launches for rank in launch.ranks)
    known = {name: _common(runs, name) for name in _TOLD}
    version, accelerator = known["version"], known["accelerator"]
    key = Key(
        deepspeed=".".join(map(str, version)) if version else None, nccl=known["nccl"], world_size=known["world"],
        accelerator=accelerator if accelerator in ("cpu", "cuda") else None,
    )  # fmt: skip
    return Measurement(
        key=key,
        origin=Origins(kind="log" if timed else "comms-log", files=tuple(printable(path.name) for path in paths)),
        config=known["config"], launches=launches, notes=(*notes, *why, *_notes(runs)),
    )  # fmt: skip


def _numbers(paths: Sequence[Path]) -> tuple[list[int], list[str]]:
    """The rank of each file's lines that name none: by the file's name, by its other lines, else by its place.

    torchrun's ``--log-dir`` has a folder for each rank, named by its number.
    """
    named = [rank_in(path.name) for path in paths]
    if len(paths) > 1 and named == [None] * len(paths):
        folders = [path.absolute().parent.name for path in paths]
        named = [int(each[:5]) if each.isdecimal() and each.isascii() else None for each in folders]
    known = [number for number in named if number is not None]
    if len(set(known)) == len(paths):
        return known, []
    lowest = [_lowest(head(path, _BEGINNING).decode("utf-8", "replace")) for path in paths]
    notes = []
    if len(paths) > 1 and None in lowest:
        notes.append("neither names nor lines of all files tell a rank: such files are numbered by their order")
    return [place if number is None else number for place, number in enumerate(lowest)], notes


def _lowest(text: str) -> int | None:
    return min((rank for line in text.splitlines() if (rank := rank_of(line, -1)) >= 0), default=None)


def _joined(files: Sequence[tuple[str, Sequence[Run]]]) -> tuple[list[Run], list[str]]:
    """The runs of all files, first ones with first ones and so on; and what of them does not fit together."""
    notes = [f"{name} tells of no step and no collective" for name, runs in files if not runs and len(files) > 1]
    found: list[Run] = []
    alone: list[Run] = []
    for name, runs in files:
        for place, run in enumerate(runs):
            if place == len(found):
                found.append(run)
            elif why := _misfit(found[place], run):
                alone.append(run)
                notes.append(f"run {place + 1} of {name} is a launch of its own: {why}")
            else:
                found[place].join(run)
    counts = [len(runs) for _, runs in files if runs]
    if len(set(counts)) > 1:
        notes.append(f"the files hold {', '.join(map(str, counts[:20]))} runs: they are joined from the first on")
    return found + alone, notes


def _misfit(run: Run, other: Run) -> str | None:
    """Why two runs are not the same one, told by different ranks; None where they may be."""
    if both := run.ranks & other.ranks:
        return f"there is a rank {min(both)} already"
    for name in ("version", "world"):
        values = getattr(run, name), getattr(other, name)
        if None not in values and values[0] != values[1]:
            return f"it has other {_TOLD[name]}"
    return None


def _common(runs: Sequence[Run], name: str) -> Any:
    """What all runs that tell it tell alike; None where they differ, because one figure is no other run's."""
    values = _values(runs, name)
    return values[0] if len(values) == 1 else None


def _values(runs: Sequence[Run], name: str) -> list[Any]:
    found: list[Any] = []
    for run in runs:
        value = getattr(run, name)
        if value is not None and value not in found:
            found.append(value)
    return found


def _notes(runs: Sequence[Run]) -> Iterator[str]:
    processes = [process for run in runs for process in run.processes.values()]
    comms = [each for run in runs for each in run.comms.values() if each]
    for name, what in _TOLD.items():
        if len(_values(runs, name)) > 1:
            yield f"the runs have several {what}: none is told of all"
    if any(run.stamped for run in runs):
        yield "a step's seconds are the distance of two lines' times of day: right to a millisecond or two"
    if any(run.timed for run in runs):
        yield "reduction is what backward waits for it, not the time of communication, where the two overlap"
    if any(process.ahead for process in processes):
        yield "a loss is that of the timers behind it: the log has one in front of the first timers"
    if any(count > 1 for process in processes for row in process.rows for count in row.told.values()):
        yield "where the loss of one step is printed several times, it is the mean of them"
    if any(process.again for process in processes):
        yield "the printed numbers of steps begin again, as in each epoch: steps are counted on"
    if any(process.cut for process in processes):
        yield "the log has more steps than are read"
    if comms:
        yield "the bus bandwidth of reduce-scatter is not DeepSpeed's, which is too high by the number of ranks"
    if any(not each.exact for each in comms):
        yield "DeepSpeed prints sizes of messages with four digits, so bytes are right to half a percent"
