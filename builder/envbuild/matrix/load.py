"""matrix.yaml to frozen rows that know their place. All that is wrong with the file is told at once."""

from __future__ import annotations

import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from envbuild.errors import InputError
from envbuild.matrix import claims, explain, tree
from envbuild.matrix.merge import MAX_VALUES, Resolver, near
from envbuild.matrix.tree import Entry, KeyPath, Mapping, Node, Scalar, quoted
from envbuild.model import Environment, Finding, Severity

SCHEMA = "envbuild.matrix/1"
_TOP = ("schema", "defaults", "environments")
# What a row may come to with everything inherited; a large one has some 150 values.
_MAX_ROW = 10_000
# A reader stops long before; so does the work on a file that is hostile and not mistaken.
_MAX_FINDINGS = 500


class MatrixError(InputError):
    """A matrix that cannot be used (exit 2); ``findings`` has every reason, in the order of the file."""

    code = "matrix"

    def __init__(self, findings: tuple[Finding, ...], *, hint: str = "") -> None:
        lines = (f"{f.file}:{f.line}:{f.column}: {f.subject}: {f.message}" for f in findings)
        super().__init__("\n".join(lines), hint=hint)
        self.findings = findings


@dataclass(frozen=True, slots=True)
class Place:
    """A place in a file; line and column count from 1."""

    file: str
    line: int
    column: int


@dataclass(frozen=True, slots=True)
class Matrix:
    """All rows of one file."""

    file: str
    environments: dict[str, Environment]
    _rows: dict[str, Entry]

    def get(self, name: str) -> Environment:
        """One row.

        Raises:
            InputError: There is no row of that name.
        """
        if name in self.environments:
            return self.environments[name]
        names = ", ".join(self.environments)
        hint = near(name, self.environments).removeprefix("; ").capitalize()
        raise InputError(f"no environment {quoted(name)} in {self.file}", hint=f"{hint} Environments: {names}".strip())

    def place(self, env: Environment | str, key_path: KeyPath = ()) -> Place:
        """Where a row says something, wherever it inherits it from.

        The place of a list or a mapping is its key's, that of a text is its own; an absent key has the place of
        what would hold it.
        """
        name = env if isinstance(env, str) else env.name
        return Place(self.file, *_locate(self._rows[name], key_path)[:2])


def load(path: Path) -> Matrix:
    """Read and check a matrix.

    Raises:
        InputError: The file cannot be opened.
        MatrixError: It can, and is wrong; the error has all findings.
    """
    return parse(read_bytes(path), str(path))


def parse(raw: bytes, file: str) -> Matrix:
    """Check a matrix that has been read; ``file`` is what places call it.

    Raises:
        MatrixError: It is wrong; the error has all findings.
    """
    reader = _Reader(file)
    try:
        root, problems = tree.compose(tree.decode(raw))
    except tree.Unreadable as error:
        reader.take(error.problems)
        raise reader.error() from None
    reader.take(problems)
    matrix = reader.matrix(root)
    if reader.findings:
        raise reader.error()
    return matrix


def read_bytes(path: Path) -> bytes:
    """The bytes of a matrix file, no more of them than one may have.

    Raises:
        InputError: It cannot be opened.
    """
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise InputError(f"{path} is not a file")
        with path.open("rb") as file:
            return file.read(tree.MAX_BYTES + 1)
    except FileNotFoundError:
        raise InputError(f"{path} does not exist", hint="start one with: envbuild init") from None
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from None


class _Reader:
    """One file's findings, and the way from its tree to its rows."""

    def __init__(self, file: str) -> None:
        self.file = file
        # What is inherited, or stands behind an alias, is told once: by place and text. Several absent keys share
        # the place of what would hold them, so for those the path counts too.
        self.findings: dict[tuple[tuple[int, int], str, str], Finding] = {}
        # Values of the rows read so far, with what they inherit.
        self.values = 0
        self.told_too_many = False

    def take(self, problems: list[tree.Problem]) -> None:
        for problem in problems:
            subject = ".".join(_show(part) for part in problem.path) or "matrix"
            self.tell(subject, (problem.line, problem.column), problem.message)

    def tell(self, subject: str, place: tuple[int, int], message: str, *, absent: str = "") -> None:
        """Note a finding; ``absent`` is the path in its row of a key that is not there."""
        finding = Finding(
            rule="matrix",
            severity=Severity.ERROR,
            subject=subject,
            message=message,
            file=self.file,
            line=place[0],
            column=place[1],
        )
        self.findings.setdefault((place, absent, message), finding)

    def too_many(self, name: str, entry: Entry) -> None:
        """Note that what the rows inherit is too much, at the row where it became so."""
        message = f"the rows come to more than {MAX_VALUES:,} values here, with what they inherit"
        if not self.told_too_many:
            self.tell(f"environments.{_show(name)}", (entry.line, entry.column), message)
        self.told_too_many = True

    @property
    def full(self) -> bool:
        return len(self.findings) >= _MAX_FINDINGS

    def error(self) -> MatrixError:
        ordered = sorted(self.findings.values(), key=lambda f: (f.line or 0, f.column or 0))
        hint = f"more than {_MAX_FINDINGS} problems; the rest is not shown" if self.full else ""
        return MatrixError(tuple(ordered[:_MAX_FINDINGS]), hint=hint)

    def matrix(self, root: Node) -> Matrix:
        """The rows; only to be used when there are no findings."""
        if not isinstance(root, Mapping):
            self.tell("matrix", (root.line, root.column), f"must be a mapping with the keys {', '.join(_TOP)}")
            return Matrix(self.file, {}, {})
        self._top(root)
        rows, defaults = self._mapping(root, "environments"), self._mapping(root, "defaults")
        sources = {name: entry for name, entry in rows.entries.items() if self._is_row(name, entry)} if rows else {}
        self._no_name(defaults, "defaults")
        resolved = Resolver({n: e.node for n, e in sources.items() if isinstance(e.node, Mapping)}, defaults).resolve()
        for name, problem in resolved.problems:
            self.tell(f"environments.{_show(name)}.extends", (problem.line, problem.column), problem.message)
        if resolved.too_many is not None:
            self.too_many(resolved.too_many, sources[resolved.too_many])
        environments: dict[str, Environment] = {}
        places: dict[str, Entry] = {}
        for name, node in resolved.rows.items():
            if self.full or self.values > MAX_VALUES:
                break
            places[name] = entry = Entry(sources[name].line, sources[name].column, node)
            environment = self._environment(name, entry, node)
            if environment is not None:
                environments[name] = environment
        return Matrix(self.file, environments, places)

    def _top(self, root: Mapping) -> None:
        for key, entry in root.entries.items():
            if key not in _TOP and not self.full:
                known = near(key, _TOP) or f"; known are {', '.join(_TOP)}"
                self.tell(_show(key), (entry.line, entry.column), f"is not a known key{known}")
        for key in ("schema", "environments"):
            if key not in root.entries:
                self.tell(key, (root.line, root.column), "is required" + (f": {SCHEMA}" if key == "schema" else ""))
        schema = root.entries.get("schema")
        if schema and not (isinstance(schema.node, Scalar) and schema.node.text == SCHEMA):
            said = quoted(schema.node.text or "") if isinstance(schema.node, Scalar) else "this"
            self.tell("schema", (schema.node.line, schema.node.column), f"must be {SCHEMA}, not {said}")

    def _mapping(self, root: Mapping, key: str) -> Mapping | None:
        entry = root.entries.get(key)
        if entry is None:
            return None
        if isinstance(entry.node, Mapping) and (entry.node.entries or key == "defaults"):
            return entry.node
        if key == "environments":
            self.tell(key, (entry.line, entry.column), "must be a mapping of at least one row")
        elif not isinstance(entry.node, Scalar) or entry.node.text is not None:
            self.tell(key, (entry.line, entry.column), "must be a mapping, like a row")
        return None

    def _is_row(self, name: str, entry: Entry) -> bool:
        if isinstance(entry.node, Mapping):
            self._no_name(entry.node, f"environments.{_show(name)}")
            return True
        self.tell(f"environments.{_show(name)}", (entry.line, entry.column), "must be a mapping")
        return False

    def _no_name(self, node: Mapping | None, subject: str) -> None:
        entry = node.entries.pop("name", None) if node else None
        if entry is not None:
            message = "is not a key of a row: a row's name is the key it stands under"
            self.tell(f"{subject}.name", (entry.line, entry.column), message)
        extends = node.entries.pop("extends", None) if node and subject == "defaults" else None
        if extends is not None:
            self.tell("defaults.extends", (extends.line, extends.column), "belongs in a row; defaults lie beneath all")

    def _environment(self, name: str, entry: Entry, row: Mapping) -> Environment | None:
        left = [_MAX_ROW]
        try:
            data = {**tree.plain(row, left), "name": name}
        except OverflowError:
            self.tell(f"environments.{_show(name)}", (entry.line, entry.column), f"has more than {_MAX_ROW:,} values")
            return None
        self.values += _MAX_ROW - left[0]
        if self.values > MAX_VALUES:
            self.too_many(name, entry)
            return None
        environment, found = None, list(claims.complaints(row))
        try:
            environment = Environment.model_validate(data)
        except ValidationError as error:
            found = [*_limited(explain.explain(error, data)), *found]
        for path, about_key, message in found:
            own = path == ("name",)
            *place, exact = (entry.line, entry.column, True) if own else _locate(entry, path, about_key=about_key)
            shown = "".join(f".{_show(part)}" for part in (() if own else path))
            subject = f"environments.{_show(name)}{shown}"
            self.tell(subject, (place[0], place[1]), message, absent="" if exact else shown)
            if self.full:
                break
        return environment


def _limited(complaints: Iterator[claims.Complaint]) -> list[claims.Complaint]:
    return [complaint for complaint, _ in zip(complaints, range(_MAX_FINDINGS), strict=False)]


def _locate(entry: Entry, path: KeyPath, *, about_key: bool = False) -> tuple[int, int, bool]:
    """Line and column of the last part of a path that is there, and whether that is the whole path."""
    place, node = (entry.line, entry.column), entry.node
    for index, part in enumerate(path):
        if isinstance(node, Mapping) and part in node.entries:
            found = node.entries[str(part)]
            place, node = (found.line, found.column), found.node
            if isinstance(node, Scalar) and not (about_key and index == len(path) - 1):
                place = (node.line, node.column)
        elif isinstance(node, tree.Sequence) and isinstance(part, int) and part < len(node.items):
            node = node.items[part]
            place = (node.line, node.column)
        else:
            return *place, False
    return *place, True


def _show(part: str | int) -> str:
    """One part of a key path: as it is where that is readable."""
    text = str(part)
    return text if re.fullmatch(r"[A-Za-z0-9_.-]{1,80}", text) else quoted(text)
