"""Refreshing the facts: read upstream, compare, show, and only then write."""

from __future__ import annotations

import datetime
import difflib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from envbuild import store
from envbuild.errors import InputError
from envbuild.events import PhaseDone, PhaseStarted, Sink, discard
from envbuild.facts import read as files
from envbuild.facts.refresh import deepspeed, nvidia, torch
from envbuild.facts.refresh.compare import compare
from envbuild.facts.refresh.document import Document
from envbuild.facts.refresh.reading import Change, Notebook, Remark, Unread
from envbuild.facts.upstream import Upstream

__all__ = ["TOPICS", "Change", "Outcome", "Remark", "Rewritten", "Unread", "refresh", "write"]

_READERS: Mapping[str, Callable[[Notebook, Sink], None]] = {
    "torch": torch.read,
    "deepspeed": deepspeed.read,
    "nccl": nvidia.read_nccl,
    "toolkits": nvidia.read_toolkits,
}
TOPICS = tuple(_READERS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewritten:
    """One facts file with the changes in it; ``path`` is the file that was read."""

    name: str
    path: Path
    old: str
    new: str

    @property
    def diff(self) -> str:
        """A unified diff, for review."""
        name = f"facts/{self.name}.yaml"
        lines = difflib.unified_diff(
            self.old.splitlines(keepends=True), self.new.splitlines(keepends=True), f"a/{name}", f"b/{name}"
        )
        return "".join(lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a refresh has found.

    Attributes:
        confirmed: How many facts upstream says again, word for word.
        files: The files that would change, with the changes.
    """

    changes: tuple[Change, ...]
    unread: tuple[Unread, ...]
    remarks: tuple[Remark, ...]
    confirmed: int
    files: tuple[Rewritten, ...]

    @property
    def failed(self) -> bool:
        """Whether something could not be read that should have been readable."""
        return any(each.failed for each in self.unread)


def refresh(
    upstream: Upstream,
    folders: Sequence[Path],
    topics: Sequence[str],
    today: datetime.date,
    *,
    deep: bool = False,
    sink: Sink = discard,
) -> Outcome:
    """Read upstream and compare it with the facts. Writes nothing.

    Args:
        folders: Where the facts lie, the first that has a file counts.
        topics: Some of ``TOPICS``.
        deep: Whether to read large libraries too.

    Raises:
        InputError: The facts cannot be read, or there is no such topic.
        NetworkError: A configured index does not answer; what was read is kept in the cache.
        Shape: A page of an index is none.
    """
    unknown = [topic for topic in topics if topic not in _READERS]
    if unknown:
        raise InputError(f"nothing to refresh is called {', '.join(unknown)}", hint=f"there is {', '.join(TOPICS)}")
    book = Notebook(upstream=upstream, facts=files.load(folders), deep=deep)
    for topic in dict.fromkeys(topics):
        began = time.monotonic()
        sink(PhaseStarted(phase=topic, detail="reading upstream"))
        before = len(book.readings)
        _READERS[topic](book, sink)
        seconds = time.monotonic() - began
        sink(PhaseDone(phase=topic, seconds=seconds, detail=f"{len(book.readings) - before} facts read"))
    paths = {path.stem: path for path in files.paths(folders)}
    old = {name: files.text(paths[name]) for name in sorted({reading.file for reading in book.readings})}
    documents = {name: Document(text, str(paths[name])) for name, text in old.items()}
    changes, confirmed = compare(book, documents, today)
    changed = {name: document.text for name, document in documents.items() if document.text != old[name]}
    # No file is written, or even shown, that `load` would refuse.
    files.check(folders, changed)
    return Outcome(
        changes=tuple(changes),
        unread=tuple(sorted(book.unread, key=lambda each: (each.failed, each.subject))),
        remarks=tuple(book.remarks),
        confirmed=confirmed,
        files=tuple(Rewritten(name=name, path=paths[name], old=old[name], new=text) for name, text in changed.items()),
    )


def write(outcome: Outcome, folder: Path) -> tuple[Path, ...]:
    """Write the changed files into a folder of facts, all or none; returns them.

    Raises:
        InputError: A file was changed by somebody else since it was read.
        EngineError: The folder cannot be written.
    """
    for file in outcome.files:
        if files.text(file.path) != file.old:
            raise InputError(f"{file.path} was changed while upstream was read", hint="run it again")
    paths = tuple(folder / f"{file.name}.yaml" for file in outcome.files)
    store.write_together([(path, file.new) for path, file in zip(paths, outcome.files, strict=True)])
    files.forget()
    return paths
