"""A run on a cluster as it lies in the folder that all of its hosts see.

::

    FOLDER/runs/ID/run.json            what was asked for, and the jobs that do it
    FOLDER/runs/ID/job-0.sh            the script of the first array, job-0-*.log what its tasks said outside envbuild
    FOLDER/runs/ID/tasks/0/1/          the first attempt at the first task:
        node.json                      who does it, since when
        events.jsonl                   what it tells, line by line
        result.json, said.txt          its result, and what people read of it
        evidence/                      what it has seen
        exit.json                      how it ended; written last
    FOLDER/nodes/NODE/                 the store of a node
"""

from __future__ import annotations

import datetime
import os
import secrets
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

from pydantic import AwareDatetime, Field, ValidationError

from envbuild import store
from envbuild.errors import EnvbuildError, InputError
from envbuild.model import Frozen

_ID = "%Y%m%d-%H%M%S"
_FILE = "run.json"


class Task(Frozen):
    """One piece of a run: a command of envbuild's that one job of an array does.

    Attributes:
        name: What its audience knows it by: a row, or an image.
        argv: The arguments of envbuild, without the program.
    """

    name: str
    argv: tuple[str, ...]


class Submission(Frozen):
    """Tasks that ask for the same, as one array.

    Attributes:
        tasks: Their numbers in the run, which are their numbers in the array.
        script: Name of the script in the run's folder.
        argv: What it was submitted with.
        job: Number of the array; None until Slurm has said it.
        limit: The time limit that was asked for, for messages; empty where the partition's own counts.
    """

    tasks: tuple[int, ...]
    script: str
    argv: tuple[str, ...]
    job: str | None = None
    limit: str = ""


class Run(Frozen):
    """What was asked for, and which jobs do it.

    Attributes:
        command: ``build``, ``smoke`` and so on: it decides how the result is shown.
        home: The store on a node; None is one for each node beside the runs.
        out: Where its result goes, where that was said: whoever follows the run to its end writes it there.
    """

    schema_: Literal["envbuild.run/1"] = Field("envbuild.run/1", alias="schema")
    id: str
    command: str
    envbuild: str
    begun: AwareDatetime
    program: tuple[str, ...]
    home: Path | None = None
    out: Path | None = None
    tasks: tuple[Task, ...]
    submissions: tuple[Submission, ...]

    @property
    def name(self) -> str:
        """What its jobs are called."""
        return f"envbuild-{self.id}"

    @property
    def jobs(self) -> tuple[str, ...]:
        """The arrays that Slurm has taken."""
        return tuple(each.job for each in self.submissions if each.job)

    def submission_of(self, task: int) -> Submission:
        """The array that a task is in."""
        return next(each for each in self.submissions if task in each.tasks)


class Node(Frozen):
    """Who does an attempt."""

    node: str
    job: str
    began: AwareDatetime
    envbuild: str


class Seen(Frozen):
    """A record of evidence that an attempt has left.

    Attributes:
        file: Where it lies, from the attempt's folder; its envelope, if there is one, beside it.
        image: The node's engine's id of the image.
    """

    file: str
    image: str


class Ended(Frozen):
    """How an attempt ended.

    Attributes:
        how: By itself (``ended``), because somebody or the scheduler said so (``told``), because its time was nearly
            up (``late``), or before it began, after the nodes of earlier ones had failed (``refused``).
    """

    code: int
    how: Literal["ended", "told", "late", "refused"] = "ended"
    ended: AwareDatetime
    evidence: tuple[Seen, ...] = ()


_Kind = TypeVar("_Kind", bound=Frozen)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One attempt at a task, counted from 1."""

    path: Path
    number: int

    @property
    def events(self) -> Path:
        """What it tells, line by line."""
        return self.path / "events.jsonl"

    @property
    def result(self) -> Path:
        """Its document."""
        return self.path / "result.json"

    @property
    def said(self) -> Path:
        """What people read of it."""
        return self.path / "said.txt"

    @property
    def before(self) -> Attempt:
        """The attempt before this one, whether or not there was one."""
        return Attempt(path=self.path.with_name(str(self.number - 1)), number=self.number - 1)

    @property
    def node(self) -> Node | None:
        """Who does it; None where nobody has begun."""
        return _read(self.path / "node.json", Node)

    @property
    def ended(self) -> Ended | None:
        """How it ended; None while it has not."""
        return _read(self.path / "exit.json", Ended)

    def begin(self, node: Node) -> None:
        """Say who does it."""
        store.write_json(self.path / "node.json", node.model_dump(mode="json"))

    def end(self, ended: Ended) -> None:
        """Say how it ended, when all else has been written."""
        store.write_json(self.path / "exit.json", ended.model_dump(mode="json"))


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFolder:
    """The folder of one run."""

    path: Path

    @classmethod
    def of(cls, shared: Path, run: str) -> RunFolder:
        """Where a run's folder is, or would be."""
        return cls(path=shared / "runs" / run)

    @property
    def shared(self) -> Path:
        """The folder that all hosts see."""
        return self.path.parent.parent

    def create(self, run: Run) -> None:
        """Make it, for its owner alone: what is found in it later is believed.

        Raises:
            EngineError: It cannot be written.
        """
        store.make_folder(self.path.parent)
        store.make_folder(self.path)
        self.path.chmod(0o700)
        self.save(run)

    def save(self, run: Run) -> None:
        """Write what is known of it."""
        store.write_json(self.path / _FILE, run.model_dump(mode="json", by_alias=True))

    def load(self) -> Run:
        """What is known of it.

        Raises:
            InputError: There is no such run, or its file is not one.
        """
        try:
            return Run.model_validate_json((self.path / _FILE).read_bytes())
        except OSError as error:
            raise InputError(f"{self.path / _FILE} cannot be read: {error.strerror}") from error
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(map(str, first["loc"]))
            raise InputError(f"{self.path / _FILE}: not the file of a run: {place}: {first['msg']}") from error

    def attempt(self, task: int, number: int) -> Attempt:
        """An attempt, whether or not it was begun."""
        return Attempt(path=self.path / "tasks" / str(task) / str(number), number=number)

    def last(self, task: int) -> Attempt | None:
        """The newest attempt at a task; None before the first."""
        try:
            numbers = [int(name) for name in os.listdir(self.path / "tasks" / str(task)) if name.isdecimal()]  # noqa: PTH208
        except OSError:
            return None
        return self.attempt(task, max(numbers)) if numbers else None

    def log(self, submission: int, task: int) -> Path:
        """What a task said outside envbuild, such as a shell that does not find it."""
        return self.path / f"job-{submission}-{task}.log"

    @property
    def own(self) -> bool:
        """Whether this user made it, and nobody else can write into it."""
        try:
            status = self.path.stat()
        except OSError:
            return False
        return status.st_uid == os.getuid() and not status.st_mode & 0o022

    def remove(self) -> None:
        """Take it away, with all that is in it."""
        shutil.rmtree(self.path, ignore_errors=True)


def new_id(now: datetime.datetime) -> str:
    """The name of a run: in the order of time, and never the same twice."""
    return f"{now.strftime(_ID)}-{secrets.token_hex(2)}"


def every(shared: Path) -> Iterator[tuple[RunFolder, Run]]:
    """The runs of a folder, newest first; what is none is passed over."""
    for path in sorted((shared / "runs").glob(f"*/{_FILE}"), reverse=True):
        folder = RunFolder(path=path.parent)
        try:
            yield folder, folder.load()
        except EnvbuildError:
            continue


def find(shared: Path, name: str) -> tuple[RunFolder, Run]:
    """The run that is meant: by its id, or by the end of it.

    Raises:
        InputError: There is none, or more than one.
    """
    found = [(folder, run) for folder, run in every(shared) if run.id == name or run.id.endswith(f"-{name}")]
    if len(found) == 1:
        return found[0]
    what = "several runs end with" if found else "there is no run"
    raise InputError(f"{what} {name} in {shared / 'runs'}", hint="envbuild jobs lists them.")


def _read(path: Path, kind: type[_Kind]) -> _Kind | None:
    """A file that appears whole; None where it is not there yet, or is none."""
    try:
        return kind.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None
