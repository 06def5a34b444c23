"""Slurm's command lines, the script of a job, and what its programs print. Pure.

Written for Slurm 22.05 (options and formats: ``sbatch(1)``, ``squeue(1)``, ``sacct(1)`` and ``scancel(1)`` of that
release), where all of it was tried.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from envbuild.errors import InputError
from envbuild.executors.words import State
from envbuild.model import Environment
from envbuild.site.cluster import SlurmSection

# Seconds before its limit at which a job is told: a container has ten to end, evidence and records are written.
# Slurm may be a minute early (sbatch(1), --signal), so a job of few minutes gets less.
_NOTICE, _SHORT_NOTICE, _SHORT_MINUTES = 90, 30, 5
# After a node has failed a task is run once more; Slurm puts it back into the queue by itself, nobody has to watch.
ATTEMPTS = 2
_FORMAT = "%i|%T|%r|%N"


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """What a job asks for. Tasks that ask for the same go into one array."""

    partition: str | None = None
    gres: str | None = None
    constraint: str | None = None
    time: str | None = None
    options: tuple[str, ...] = ()


def resources(site: SlurmSection, env: Environment | None, row: str | None = None) -> Resources:
    """What a row's job asks for: the site's own, what it says of the row's GPU, and what it says of the row.

    Raises:
        InputError: The row needs a GPU, and the site does not say how to ask for one.
    """
    shares = []
    name = env.name if env is not None else row
    own = site.rows.get(name) if name else None
    if env is not None and env.accelerator == "cuda":
        gpu = next((site.gpus[each] for each in env.gpus if each in site.gpus), None)
        if gpu is not None:
            shares.append(gpu)
        elif own is None:
            known = ", ".join(site.gpus) or "none"
            raise InputError(
                f"the row {env.name} needs one of {', '.join(env.gpus)}, and [slurm.gpus] knows {known}",
                hint=f'Say how to ask for it: [slurm.gpus] {env.gpus[0]} = {{gres = "gpu:{env.gpus[0]}:8"}}, '
                f"or for the row alone: [slurm.rows] {env.name} = {{...}}",
            )
    if own is not None:
        shares.append(own)

    def last(key: str) -> str | None:
        found = [value for share in (site, *shares) if (value := getattr(share, key, None)) is not None]
        return str(found[-1]) if found else None

    return Resources(
        partition=last("partition"), gres=last("gres"), constraint=last("constraint"), time=last("time"),
        options=(*site.options, *(option for share in shares for option in share.options)),
    )  # fmt: skip


def sbatch(
    name: str, tasks: Iterable[int], wanted: Resources, *, site: SlurmSection, log: Path, script: Path, most: int | None
) -> tuple[str, ...]:
    """The line that submits an array.

    All of it is on the command line and nothing in the script: there it wins over ``SBATCH_*`` of the user's
    environment.

    Args:
        name: What the jobs are called; a run is found again by it.
        tasks: Their numbers.
        log: What a task says outside envbuild, with Slurm's ``%a``.
        most: How many may run at a time.
    """
    numbers = ",".join(map(str, tasks)) + (f"%{most}" if most else "")
    texts = {
        "--partition": wanted.partition, "--account": site.account, "--qos": site.qos, "--gres": wanted.gres,
        "--constraint": wanted.constraint, "--time": wanted.time,
    }  # fmt: skip
    return (
        "sbatch", "--parsable", f"--job-name={name}", f"--array={numbers}", f"--output={log}", "--open-mode=append",
        # A node that fails puts its tasks back into the queue, whoever is logged in; the task itself counts.
        "--requeue",
        f"--signal=B:USR1@{notice(wanted.time)}",
        *(f"{option}={value}" for option, value in texts.items() if value),
        *wanted.options,
        str(script),
    )  # fmt: skip


def script(folder: Path, program: tuple[str, ...], setup: tuple[str, ...]) -> str:
    """What a node runs for each task of an array: the site's own lines, then envbuild in the shell's place.

    ``exec``, so that Slurm's signals reach envbuild and not a shell.
    """
    lines = [
        "#!/bin/sh",
        "# One task of a run of envbuild's; $SLURM_ARRAY_TASK_ID is its number in run.json.",
        *setup,
        f"exec {shlex.join((*program, 'node', str(folder)))}",
    ]
    return "\n".join(lines) + "\n"


def squeue(jobs: Iterable[str]) -> tuple[str, ...]:
    """The line that asks for the state of every task; those that have ended are known for some minutes (MinJobAge)."""
    return ("squeue", "--noheader", "--array", "--states=all", f"--format={_FORMAT}", f"--jobs={','.join(jobs)}")


def squeue_by_name(name: str) -> tuple[str, ...]:
    """The line that asks for the arrays of a run whose numbers nobody has written down."""
    return ("squeue", "--noheader", "--states=all", "--format=%F", f"--name={name}")


def sacct(jobs: Iterable[str]) -> tuple[str, ...]:
    """The line that asks the accounting, which remembers and which not every cluster has."""
    fields = "--format=JobID,State,NodeList"
    return ("sacct", "--noheader", "--parsable2", "--allocations", fields, f"--jobs={','.join(jobs)}")


def scancel(jobs: Iterable[str]) -> tuple[str, ...]:
    """The line that ends arrays."""
    return ("scancel", *jobs)


def states(text: str) -> dict[str, State]:
    """What ``squeue`` printed, by job and task: ``{"12_0": ...}``."""
    found = {}
    for line in text.splitlines():
        job, _, rest = line.strip().partition("|")
        name, reason, node = (*rest.split("|"), "", "")[:3]
        if job and name:
            found[job] = State(name=name, reason="" if reason == "None" else reason, node=node)
    return found


def accounted(text: str) -> dict[str, State]:
    """What ``sacct`` printed; ``CANCELLED by 1000`` is CANCELLED."""
    found = {}
    for line in text.splitlines():
        job, state, node = (*line.strip().split("|"), "", "")[:3]
        if job and state:
            found[job] = State(name=state.split()[0].rstrip("+"), node="" if node == "None assigned" else node)
    return found


def job_of(text: str) -> str | None:
    """The number that ``sbatch --parsable`` printed, with or without the cluster's name behind it."""
    last = text.strip().splitlines()[-1:] or [""]
    found = re.fullmatch(r"(\d+)(?:;\S+)?", last[0])
    return found[1] if found else None


def seconds(time: str) -> int:
    """A time of Slurm's in seconds."""
    days, dash, rest = time.partition("-") if "-" in time else ("0", "", time)
    parts = [int(part) for part in rest.split(":")]
    if dash:  # hours, hours:minutes, hours:minutes:seconds
        hours, minutes, secs = (*parts, 0, 0)[:3]
    elif len(parts) == 3:
        hours, minutes, secs = parts
    else:  # minutes, minutes:seconds
        hours, (minutes, secs) = 0, (*parts, 0)[:2]
    return int(days) * 86400 + hours * 3600 + minutes * 60 + secs


def notice(time: str | None) -> int:
    """Seconds before its limit at which a job is told."""
    return _SHORT_NOTICE if time is not None and seconds(time) <= _SHORT_MINUTES * 60 else _NOTICE
