"""One task of a run on a cluster, on the node that does it."""

from __future__ import annotations

import datetime
import json
import shutil
import socket
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from envbuild import EVENTS_VARIABLE, VALUES_VARIABLE, __version__, evidence, process, store
from envbuild.errors import ENGINE, INTERRUPTED, EngineError, InputError
from envbuild.executors import Attempt, Ended, Node, RunFolder, values
from envbuild.executors.runs import Seen
from envbuild.executors.slurm import ATTEMPTS

# Slurm kills what has not ended KillWait seconds (30) after it was told; a record is to be written before that.
_GRACE_SECONDS = 24.0


class TimeUp(KeyboardInterrupt):
    """The scheduler says that the job's time is nearly up."""


def carry_out(folder: RunFolder, environ: Mapping[str, str]) -> int:
    """Do the task that this job is for, and write down how it ended; returns its exit code.

    Raises:
        InputError: This is no job of an array, or the folder is no run's.
        KeyboardInterrupt: It was told to end; that is written down, too.
    """
    run = folder.load()
    number = _number(environ, "SLURM_ARRAY_TASK_ID")
    attempt = folder.attempt(number, _number(environ, "SLURM_RESTART_COUNT", "0") + 1)
    name = environ.get("SLURMD_NODENAME") or socket.gethostname()
    job = f"{environ.get('SLURM_ARRAY_JOB_ID', '?')}_{number}"
    # All of them, as Slurm shortens it: n[1-2].
    shown = environ.get("SLURM_JOB_NODELIST") if environ.get("SLURM_JOB_NUM_NODES", "1") != "1" else None
    store.make_folder(attempt.path)
    attempt.begin(Node(node=shown or name, job=job, began=_now(), envbuild=__version__))
    done = _done_before(attempt)
    if done is not None or attempt.number > ATTEMPTS:
        code = done.code if done is not None else ENGINE
        values.remove(folder.path, number)
        attempt.end(Ended(code=code, how="refused" if done is None else "ended", ended=_now()))
        return code
    home = run.home or folder.shared / "nodes" / name
    began = time.time()
    how, code = "ended", ENGINE
    try:
        code = _run((*run.program, *run.tasks[number].argv), attempt, home, values.read(folder.path, number))
    except (EngineError, InputError) as error:
        attempt.said.write_text(f"error: {error.message}\n", encoding="utf-8")
    except TimeUp:
        how, code = "late", ENGINE
        raise
    except KeyboardInterrupt:
        how, code = "told", INTERRUPTED
        raise
    finally:
        # After somebody has told it to end, Slurm may do it once more: whoever follows the run knows.
        if how != "told" or attempt.number >= ATTEMPTS:
            values.remove(folder.path, number)
        attempt.end(Ended.model_validate(
            {"code": code, "how": how, "ended": _now(), "evidence": tuple(_gather(attempt, home, began))}
        ))  # fmt: skip
    return code


def _run(argv: tuple[str, ...], attempt: Attempt, home: Path, own: str | None) -> int:
    env = {store.HOME_VARIABLE: str(home), EVENTS_VARIABLE: str(attempt.events), "NO_COLOR": "1"}
    env |= {VALUES_VARIABLE: own} if own is not None else {}
    code = process.record(argv, stdout=attempt.result, stderr=attempt.said, env=env, grace=_GRACE_SECONDS)
    if code < 0:
        with attempt.said.open("a", encoding="utf-8") as said:
            said.write(f"error: it was ended by signal {-code}\n")
        return ENGINE
    return code


def _done_before(attempt: Attempt) -> Ended | None:
    """The end of an earlier attempt that came to one although its node was given up for dead."""
    while attempt.number > 1:
        attempt = attempt.before
        ended = attempt.ended
        if ended is not None and ended.how == "ended":
            return ended
    return None


def _gather(attempt: Attempt, home: Path, began: float) -> Iterator[Seen]:
    """Copy what was seen into the run's folder: a node's store may be out of the login host's reach."""
    named = frozenset(_named(attempt.result))
    for engine_id, path in evidence.fresh(home, began, named):
        to = attempt.path / "evidence" / path.relative_to(home / "evidence")
        try:
            store.make_folder(to.parent)
            for source in (path, evidence.envelope_of(path)):
                if source.is_file():
                    shutil.copyfile(source, to.with_name(source.name))
        except OSError:
            continue
        yield Seen(file=str(to.relative_to(attempt.path)), image=engine_id)


def _named(result: Path) -> Iterator[Path]:
    """The records that a document speaks of: those that were there already are not written again."""
    try:
        document = json.loads(result.read_bytes())
    except (OSError, ValueError):
        return
    if not isinstance(document, dict):
        return
    images = document.get("images")
    bodies: list[Any] = [document, *(images if isinstance(images, list) else ())]
    for body in bodies:
        if isinstance(body, dict) and isinstance(body.get("evidence"), str):
            yield (record := Path(body["evidence"]))
            # What it has shown of its speed was not written again either.
            yield from evidence.compared_beside(record)


def _number(environ: Mapping[str, str], name: str, default: str = "") -> int:
    text = environ.get(name, default)
    if not text.isdecimal():
        raise InputError(f"{name} is {text!r}: this is no job of an array of envbuild's")
    return int(text)


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.timezone.utc)
