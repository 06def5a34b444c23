"""Slurm, asked: the only module of this room that starts a program."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from envbuild import process
from envbuild.errors import EngineError
from envbuild.executors import slurm, words
from envbuild.executors.words import State

# A controller that is busy or restarts answers late; a login session waits as long as sbatch itself does.
_SUBMIT_SECONDS, _ASK_SECONDS = 300.0, 60.0


def need() -> None:
    """Find out, before anything is written, whether this host belongs to a cluster.

    Raises:
        EngineError: It has none of Slurm's programs.
    """
    for program in ("sbatch", "squeue", "scancel"):
        if process.which(program) is None:
            raise words.missing(program)


def submit(argv: Sequence[str], on_line: Callable[[str], None]) -> str:
    """Submit an array; returns its number.

    Where the queue is full sbatch waits and tries again, and says so: that is handed over as it comes.

    Raises:
        EngineError: Slurm does not take it; its words, and what to do.
    """
    said: list[str] = []

    def line(text: str) -> None:
        said.append(text)
        if "retrying" in text:
            on_line(text.removeprefix("sbatch: error:").removeprefix("sbatch:").strip())

    try:
        code = process.stream(argv, on_line=line, timeout=_SUBMIT_SECONDS)
    except process.TimedOut as error:
        raise EngineError(
            f"the queue is full: sbatch has tried for {_SUBMIT_SECONDS:.0f} s", hint="Try again later: squeue --me"
        ) from error
    job = slurm.job_of("\n".join(said))
    if code != 0 or job is None:
        raise words.refused("\n".join(said))
    return job


def states(jobs: Sequence[str]) -> dict[str, State] | None:
    """What Slurm says of every task of these arrays; None where it does not answer.

    What ``squeue`` has forgotten the accounting may remember, where the cluster has one.

    Raises:
        EngineError: This host has none of Slurm's programs.
    """
    if not jobs:
        return {}
    found: dict[str, State] = {}
    silent = False
    for job in jobs:  # one by one: a number that it has forgotten is an error for all of a list
        done = _ask(slurm.squeue([job]))
        if done is None:
            silent = True
        elif done.returncode == 0:
            found |= slurm.states(done.stdout)
        elif "invalid job id" in done.stderr.lower():
            remembered = _ask(slurm.sacct([job])) if process.which("sacct") else None
            if remembered is not None and remembered.returncode == 0:
                found |= slurm.accounted(remembered.stdout)
        else:
            silent = True
    return None if silent else found


def named(name: str) -> tuple[str, ...]:
    """The arrays of a run by its name: those of a session that was killed between a submission and its note."""
    done = _ask(slurm.squeue_by_name(name))
    return tuple(dict.fromkeys(done.stdout.split())) if done is not None and done.returncode == 0 else ()


def cancel(jobs: Sequence[str]) -> None:
    """End arrays; those that have ended are left alone.

    Raises:
        EngineError: Slurm does not do it.
    """
    if not jobs:
        return
    done = process.run(slurm.scancel(jobs), timeout=_ASK_SECONDS)
    if done.returncode != 0 and "invalid job id" not in done.stderr.lower():
        raise EngineError(f"scancel: {process.last_words(done.stderr)}", hint=f"By hand: scancel {' '.join(jobs)}")


def _ask(argv: Sequence[str]) -> process.Completed | None:
    if process.which(argv[0]) is None:
        raise words.missing(argv[0])
    try:
        return process.run(argv, timeout=_ASK_SECONDS)
    except process.TimedOut:
        return None
