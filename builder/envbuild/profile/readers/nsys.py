"""SQLite exports of Nsight Systems (``nsys export --type sqlite``), one file for each process or node.

The schema changes by version and tables are made only where there is something to put in, so every table and column is
looked up first. Names of ranges are in ``text``, in newer exports in ``StringIds`` by ``textId``. A report may hold all
processes of a node: what a kernel and a range are of is in ``globalPid`` and ``globalTid``.
Source: https://docs.nvidia.com/nsight-systems/UserGuide/index.html (SQLite schema reference, and its examples)
"""

from __future__ import annotations

import itertools
import re
import sqlite3
import stat
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from envbuild.errors import InputError
from envbuild.profile.document import Communication, Key, Launch, Measurement, Origins, Unavailable
from envbuild.profile.figures import Direction, Rank
from envbuild.profile.readers.device import Device
from envbuild.profile.readers.intervals import Stretches
from envbuild.profile.readers.log import printable
from envbuild.profile.readers.rows import MOST_STEPS

KERNELS, COPIES, RANGES = "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_MEMCPY", "NVTX_EVENTS"
_OURS = {
    KERNELS,
    COPIES,
    RANGES,
    "CUPTI_ACTIVITY_KIND_RUNTIME",
    "META_DATA_EXPORT",
    "EXPORT_META_DATA",
    "TARGET_INFO_GPU",
}
# CUpti_ActivityMemcpyKind: 1 host to device, 2 device to host.
_KINDS: dict[int, Direction] = {1: "h2d", 2: "d2h"}
_LONGEST_NAME = 1000
# A range for each step: DeepSpeed's own of the optimizer's step ends one; programs name theirs so.
_STEP = re.compile(r"(?:^|[^a-z])(?:train_?)?(?:step|iteration|iter)[ _#:=\[-]*(\d+)", re.IGNORECASE)
_ENGINE_STEP = re.compile(r"(?:^|\.)DeepSpeedEngine\.step$|^step$|^engine\.step$")
_OPTIMIZER = re.compile(r"Optimizer.*\.step$")
_WAIT = re.compile(r"data.?loader|next.?batch|data_wait", re.IGNORECASE)
# A process, where it is told, and a GPU as that process counts.
Where = tuple[int | None, int]


class Export:
    """One export, open to be read."""

    def __init__(self, path: Path) -> None:
        """Open it.

        Raises:
            InputError: It is no database, or not of nsys.
        """
        self.path = path
        try:
            if not stat.S_ISREG(path.stat().st_mode):
                raise InputError(f"{path}: is no file")
            # Immutable: no journal is looked for and none is made beside somebody's file.
            self._database = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro&immutable=1", uri=True)
            self._database.text_factory = lambda raw: raw.decode("utf-8", "replace")
            # Tables only: a view is a program, and may have no end.
            rows = self._database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
            self.tables = {str(name) for (name,) in rows}
        except OSError as error:
            raise InputError(f"{path}: {error.strerror or error}") from error
        except (sqlite3.Error, UnicodeError) as error:
            raise self._wrong(error) from error
        if not self.tables & _OURS:
            raise InputError(
                f"{path}: a database, but no export of nsys",
                hint="Make one with: nsys export --type sqlite --output out.sqlite report.nsys-rep",
            )

    def close(self) -> None:
        """Let go of the file."""
        self._database.close()

    def columns(self, table: str) -> set[str]:
        """The columns of one of the tables that are known by name; none where there is no such table."""
        if table not in self.tables:
            return set()
        return {str(row[1]) for row in self.rows(f"PRAGMA table_info({table})")}

    def rows(self, query: str) -> Iterator[tuple[Any, ...]]:
        """What a query gives, row by row.

        Raises:
            InputError: The database is broken.
        """
        try:
            yield from self._database.execute(query)
        except (sqlite3.Error, OverflowError, UnicodeError) as error:
            raise self._wrong(error) from error

    def _wrong(self, error: Exception) -> InputError:
        return InputError(
            f"{self.path}: cannot be read as an export of nsys: {error}",
            hint="Export the report again: nsys export --type sqlite --output out.sqlite report.nsys-rep",
        )

    def version(self) -> str | None:
        """The schema's version, where the export tells it."""
        for table in ("META_DATA_EXPORT", "EXPORT_META_DATA"):
            if {"name", "value"} <= self.columns(table):
                for (value,) in self.rows(f"SELECT value FROM {table} WHERE name = 'EXPORT_SCHEMA_VERSION'"):
                    return printable(str(value))
        return None

    def gpus(self) -> tuple[str, ...]:
        """The models of the GPUs."""
        if "name" not in self.columns("TARGET_INFO_GPU"):
            return ()
        return tuple(printable(str(name)) for (name,) in self.rows("SELECT name FROM TARGET_INFO_GPU LIMIT 64"))

    def _process(self, table: str, column: str, alias: str = "") -> str:
        return f"{alias}{column} / 0x1000000 % 0x1000000" if column in self.columns(table) else "NULL"

    def kernels(self) -> Iterator[tuple[str, float, float, Where]]:
        """Name, begin and end of each kernel, and where it ran."""
        columns = self.columns(KERNELS)
        if not {"start", "end"} <= columns:
            return
        name = next((each for each in ("shortName", "demangledName", "name") if each in columns), None)
        text, join = "''", ""
        if name is not None and "StringIds" in self.tables:
            text, join = f"substr(s.value, 1, {_LONGEST_NAME})", f" LEFT JOIN StringIds s ON s.id = k.{name}"
        device = "k.deviceId" if "deviceId" in columns else "0"
        process = self._process(KERNELS, "globalPid", "k.")
        query = f'SELECT {text}, k.start, k."end", {process}, {device} FROM {KERNELS} k{join}'
        for value, begin, end, pid, where in self.rows(query):
            if span := _span(begin, end):
                yield str(value or ""), *span, _where(pid, where)

    def copies(self) -> Iterator[tuple[Direction, float, float, int | None, Where]]:
        """Direction, begin, end and bytes of each copy between host and device, and where it was made."""
        columns = self.columns(COPIES)
        if not {"start", "end", "copyKind"} <= columns:
            return
        size = "bytes" if "bytes" in columns else "NULL"
        device = "deviceId" if "deviceId" in columns else "0"
        process = self._process(COPIES, "globalPid")
        query = f'SELECT copyKind, start, "end", {size}, {process}, {device} FROM {COPIES} WHERE copyKind IN (1, 2)'
        for kind, begin, end, count, pid, where in self.rows(query):
            if span := _span(begin, end):
                whole = count if isinstance(count, int) and count >= 0 else None
                yield _KINDS[kind], *span, whole, _where(pid, where)

    def ranges(self) -> Iterator[tuple[str, float, float, int | None]]:
        """Name, begin, end and process of each range, by begin."""
        columns = self.columns(RANGES)
        if not {"start", "end"} <= columns:
            return
        text = "n.text" if "text" in columns else "NULL"
        join = ""
        if "textId" in columns and "StringIds" in self.tables:
            text, join = f"COALESCE({text}, s.value)", " LEFT JOIN StringIds s ON s.id = n.textId"
        process = self._process(RANGES, "globalTid", "n.")
        query = f'SELECT substr({text}, 1, {_LONGEST_NAME}), n.start, n."end", {process} FROM {RANGES} n{join}'
        query += ' WHERE n."end" IS NOT NULL ORDER BY n.start'
        for value, begin, end, pid in self.rows(query):
            if isinstance(value, str) and (span := _span(begin, end)):
                yield value, *span, pid if isinstance(pid, int) else None


def read(paths: list[Path]) -> Measurement:
    """One measurement of the exports of one training; a rank for each GPU of each process of each file.

    Raises:
        InputError: One is no such export.
    """
    ranks: list[Rank] = []
    gpus: set[str] = set()
    versions: set[str] = set()
    missing: dict[str, Unavailable] = {}
    for path in paths:
        export = Export(path)
        try:
            gpus.update(export.gpus())
            versions.update(filter(None, [export.version()]))
            for rank in _ranks(export, missing):
                ranks.append(rank.model_copy(update={"rank": len(ranks)}))
        finally:
            export.close()
    launch = Launch(
        pass_="trace", ranks=tuple(ranks), unavailable=tuple(missing.values()),  # type: ignore[call-arg]
        communication=Communication(backend="nccl" if any(rank.collectives for rank in ranks) else None),
    )  # fmt: skip
    notes = [f"export schema {', '.join(sorted(versions))}"] if versions else []
    return Measurement(
        key=Key(hardware={"gpus": tuple(sorted(gpus))}),  # type: ignore[arg-type]
        origin=Origins(kind="nsys", files=tuple(printable(path.name) for path in paths)),
        launches=(launch,),
        notes=(*notes, "ranks are numbered by file, process and GPU: nsys does not know them"),
    )


def _ranks(export: Export, missing: dict[str, Unavailable]) -> Iterator[Rank]:
    devices: dict[Where, Device] = {}
    for name, begin, end, where in export.kernels():
        device = devices.setdefault(where, Device())
        op = device.kernel(name, begin, end)
        if op is not None:
            device.collective(op, end - begin, None, None)
    for direction, begin, end, size, where in export.copies():
        devices.setdefault(where, Device()).copy(direction, begin, end, size)
    told = _ranges(export)
    if not devices:
        why = "the export has no kernels: profile with --trace=cuda,nvtx"
        missing["compute"] = Unavailable(figure="compute", reason=why)
    if any(device.collectives for device in devices.values()):
        why = "nsys does not record the sizes of messages"
        missing["bytes"] = Unavailable(figure="collectives.bytes", reason=why)
    whole = {pid: each for pid, each in told.items() if each.steps()}
    if not whole:
        why = "no NVTX ranges of steps: wrap each in torch.cuda.nvtx.range('step N')"
        missing["steps"] = Unavailable(figure="steps", reason=why)
    processes = {pid for pid, _ in devices}
    for place, (pid, number) in enumerate(
        sorted(devices or {(None, 0): Device()}, key=lambda each: (each[0] or 0, each[1]))
    ):
        device = devices.get((pid, number), Device())
        own = whole.get(pid)
        if own is None and (None in whole or None in processes):
            # Not all of them say which process they are of: one process's are its own.
            own = next(iter(whole.values())) if len(whole) == 1 and len(processes) == 1 else None
        if own is None and whole:
            why = "the export does not tell which steps are of the process that used this GPU"
            missing["process"] = Unavailable(figure="steps", reason=why)
        yield Rank(
            rank=place, device=f"cuda:{number}",
            steps=device.steps(own.steps(), own.waits, own.optimizer) if own else {},  # type: ignore[arg-type]
            collectives=device.rows(),
        )  # fmt: skip


@dataclass(slots=True)
class _Process:
    """What the ranges of one process tell."""

    numbered: dict[int, tuple[int, float, float]] = field(default_factory=dict)
    ends: list[float] = field(default_factory=list)
    waits: Stretches = field(default_factory=Stretches)
    optimizer: Stretches = field(default_factory=Stretches)

    def steps(self) -> list[tuple[int, float, float]]:
        """Those with a number; else from one ``DeepSpeedEngine.step`` to the next."""
        if self.numbered:
            return sorted(self.numbered.values(), key=lambda each: each[1])
        return [(place, begin, end) for place, (begin, end) in enumerate(itertools.pairwise(self.ends), 1)]


def _ranges(export: Export) -> dict[int | None, _Process]:
    """The ranges of each process: those of two are no steps of one."""
    told: dict[int | None, _Process] = defaultdict(_Process)
    for name, begin, end, pid in export.ranges():
        process = told[pid]
        if found := _STEP.search(name):
            if len(process.numbered) < MOST_STEPS:
                process.numbered.setdefault(int(found[1][:9]), (int(found[1][:9]), begin, end))
        elif len(process.ends) < MOST_STEPS and _ENGINE_STEP.search(name):
            process.ends.append(end)
        if _WAIT.search(name):
            process.waits.add(begin, end)
        elif _OPTIMIZER.search(name):
            process.optimizer.add(begin, end)
    return told


def _where(pid: Any, device: Any) -> Where:
    return pid if isinstance(pid, int) else None, device if isinstance(device, int) else 0


def _span(begin: Any, end: Any) -> tuple[float, float] | None:
    """Nanoseconds to seconds; what is no stretch of time is none."""
    if not (isinstance(begin, int) and isinstance(end, int) and end >= begin):
        return None
    return begin / 1e9, end / 1e9
