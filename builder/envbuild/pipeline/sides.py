"""One side of a comparison: a project as it lies in a folder, or as a git revision had it."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from envbuild import facts as facts_of
from envbuild import project
from envbuild.errors import EnvbuildError, InputError
from envbuild.facts import Facts
from envbuild.lock import read
from envbuild.matrix import MatrixError, tree
from envbuild.matrix.load import parse, read_bytes
from envbuild.matrix.merge import Resolver
from envbuild.model import Environment, Lock
from envbuild.pipeline.revisions import check_out
from envbuild.pipeline.workbench import Workbench

WORKING_TREE = "the working tree"
_MOST_VALUES = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """A matrix with all that decides what its rows come to.

    Attributes:
        label: What people call it.
        rows: The rows that can be read.
        raw: Rows that the schema of this envbuild refuses, as plain values.
        templates: Folder of templates.
        facts: What the rows are judged by.
        locks: Locks by row, or why one cannot be read.
        records: The committed evidence by row.
        files: SHA-256 of templates and facts by path, such as ``templates/apt.j2``.
        notes: What could not be read, and what was taken in its place.
    """

    label: str
    rows: Mapping[str, Environment]
    raw: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    templates: Path
    facts: Facts
    locks: Mapping[str, Lock | str]
    records: Mapping[str, Path]
    files: Mapping[str, str]
    notes: tuple[str, ...] = ()


@contextlib.contextmanager
def side(bench: Workbench, asked: str | None, *, strict: bool = False) -> Iterator[Side]:
    """One side, for as long as the block runs.

    Args:
        asked: A folder, a matrix file, or a git revision of the project; None is the project as it lies here.
        strict: Refuse a matrix that does not hold to the schema.

    Raises:
        InputError: It is none of these, or its matrix cannot be read at all.
    """
    here = bench.project
    if asked is None:
        yield _read(here, WORKING_TREE, strict, [])
        return
    path = _path(asked)
    if path is not None:
        found = project.find(path, Path.cwd()) if path.is_dir() or path.name == project.MATRIX else None
        found = found or dataclasses.replace(here, matrix=path.resolve(), root=path.resolve().parent)
        notes: list[str] = []
        yield _read(_completed(found, here, asked, ("images", "templates", "facts"), notes), asked, strict, notes)
        return
    with revision(bench, asked) as found_there:
        yield found_there


@contextlib.contextmanager
def revision(bench: Workbench, asked: str) -> Iterator[Side]:
    """The project as a git revision had it, for as long as the block runs.

    Raises:
        InputError: The project is in no git repository, or that has no such revision.
    """
    here = bench.project
    with tempfile.TemporaryDirectory(prefix="envbuild-") as folder:
        label, root = check_out(here.root, asked, Path(folder))
        notes: list[str] = []
        found = _completed(project.find(root, root), here, label, ("templates", "facts"), notes)
        yield _read(found, label, False, notes)


def _completed(
    found: project.Project, here: project.Project, label: str, parts: tuple[str, ...], notes: list[str]
) -> project.Project:
    """With what a side does not bring taken from the project here, so that it does not count as a difference."""
    lacking = [part for part in parts if not (found.root / part).is_dir() and (here.root / part).is_dir()]
    if lacking:
        notes.append(f"{label} has no {' and no '.join(lacking)} of its own: those of {here.root} are used for it")
    taken: dict[str, Any] = {part: getattr(here, part) for part in lacking}
    return dataclasses.replace(found, **taken)


def _path(asked: str) -> Path | None:
    """The folder or file that is meant; None for a revision."""
    path = Path(asked).expanduser()
    try:
        there = path.is_file() or (path / project.MATRIX).is_file()
    except (OSError, ValueError):
        there = False
    if there:
        return path
    if asked.startswith(("/", "./", "../", "~")) or asked in (".", "..") or asked.endswith((".yaml", ".yml", "/")):
        what = f"has no {project.MATRIX}" if path.is_dir() else "does not exist"
        raise InputError(f"{asked} {what}", hint="Name a matrix.yaml, a folder that holds one, or a git revision.")
    return None


def _read(found: project.Project, label: str, strict: bool, notes: list[str]) -> Side:
    rows, raw = _rows(found, label, strict=strict, notes=notes)
    names = [*rows, *raw]
    facts, files = _facts(found, label, notes)
    locks: dict[str, Lock | str] = {}
    for name in names:
        # A revision has the locks that were committed, and no other.
        own = found.images / name / project.LOCK_FILE
        path = project.existing_lock(found, name) if label == WORKING_TREE else own if own.is_file() else None
        if path is not None:
            try:
                locks[name] = read(path)
            except EnvbuildError as error:
                locks[name] = error.message.replace(str(found.root), label, 1)
    records = {name: found.images / name / "record.json" for name in names}
    return Side(
        label=label, rows=rows, raw=raw, templates=found.templates, facts=facts, locks=locks,
        records={name: path for name, path in records.items() if path.is_file()},
        files={**_hashes(found.templates, "templates"), **{f"facts/{path.name}": _hash(path) for path in files}},
        notes=tuple(notes),
    )  # fmt: skip


def _rows(
    found: project.Project, label: str, *, strict: bool, notes: list[str]
) -> tuple[dict[str, Environment], dict[str, dict[str, Any]]]:
    data, by_path = read_bytes(found.matrix), label == WORKING_TREE or Path(label).exists()
    shown = str(found.matrix) if by_path else f"{label}:{project.MATRIX}"
    try:
        return parse(data, shown).environments, {}
    except MatrixError as error:
        if strict:
            raise
        first = error.findings[0]
        notes.append(
            f"{shown} is not what this envbuild takes for a matrix ({len(error.findings)} problem(s), the first in "
            f"line {first.line}: {first.subject}: {first.message}); its rows are compared as far as they can be read"
        )
        return _lenient(data, error)


def _lenient(data: bytes, error: MatrixError) -> tuple[dict[str, Environment], dict[str, dict[str, Any]]]:
    """The rows one by one, those that are none as plain values."""
    try:
        root, _ = tree.compose(tree.decode(data))
    except tree.Unreadable:
        raise error from None
    entries = root.entries if isinstance(root, tree.Mapping) else {}
    parts = [entries[key].node if key in entries else None for key in ("environments", "defaults")]
    if not isinstance(parts[0], tree.Mapping):
        raise error
    defaults = parts[1] if isinstance(parts[1], tree.Mapping) else None
    sources = {name: entry.node for name, entry in parts[0].entries.items() if isinstance(entry.node, tree.Mapping)}
    rows, raw = dict[str, Environment](), dict[str, dict[str, Any]]()
    for name, node in Resolver(sources, defaults).resolve().rows.items():
        row, values = _row(name, node)
        if row is not None:
            rows[name] = row
        else:
            raw[name] = values
    return rows, raw


def _row(name: str, node: tree.Node) -> tuple[Environment | None, dict[str, Any]]:
    values: dict[str, Any] = {}
    try:
        values = tree.plain(node, [_MOST_VALUES])
        return Environment.model_validate({**values, "name": name}), values
    except (OverflowError, ValidationError):
        return None, values


def _facts(found: project.Project, label: str, notes: list[str]) -> tuple[Facts, tuple[Path, ...]]:
    try:
        return facts_of.load(found.facts), facts_of.paths(found.facts)
    except InputError as error:
        # Older facts may have another shape; today's judge its rows then.
        line = error.message.splitlines()[0]
        notes.append(f"the facts of {label} cannot be read by this envbuild ({line}); the ones it comes with are used")
        return facts_of.load(found.facts[1:]), facts_of.paths(found.facts[1:])


def _hashes(folder: Path, name: str) -> dict[str, str]:
    return {f"{name}/{path.relative_to(folder).as_posix()}": _hash(path) for path in project.files_below(folder)}


def _hash(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from error
