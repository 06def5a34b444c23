"""RPM headers and databases that tests make up, in the forms that rpm writes."""

from __future__ import annotations

import contextlib
import hashlib
import secrets
import sqlite3
import struct
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

# As rpm 4.18 has it in its own database.
TABLE = "CREATE TABLE 'Packages' (hnum INTEGER PRIMARY KEY AUTOINCREMENT,blob BLOB NOT NULL)"
Value = str | int | Sequence[str] | Sequence[int]


def header(
    tags: Mapping[int, Value], *, more: Iterable[tuple[int, Value]] = (), bad: tuple[int, int, int] | None = None
) -> bytes:
    """A header; ``bad`` is type, offset and count of an entry 9 that is added as it is."""
    index, data = b"", b""
    for tag, value in [*tags.items(), *more]:
        items = [value] if isinstance(value, (str, int)) else list(value)
        kind = 6 if isinstance(value, str) else 8 if items and isinstance(items[0], str) else 4
        if kind == 4:
            data += bytes(-len(data) % 4)
        index += struct.pack(">IIiI", tag, kind, len(data), len(items))
        data += b"".join(item.encode() + b"\0" if isinstance(item, str) else struct.pack(">I", item) for item in items)
    if bad is not None:
        index += struct.pack(">IIiI", 9, *bad)
    return struct.pack(">II", len(index) // 16, len(data)) + index + data


def package(
    name: str,
    version: str = "1",
    *,
    files: Mapping[str, bytes | str] | None = None,
    change: Mapping[int, Value] | None = None,
    bad: tuple[int, int, int] | None = None,
    arch: str = "x86_64",
) -> bytes:
    """The header of a package with SHA-256 digests; a file that is a text is a symbolic link to it."""
    tags: dict[int, Value] = {1000: name, 1001: version, 1002: "1.el8", 1022: arch}
    if files:
        paths = list(files)
        folders = sorted({path.rpartition("/")[0] + "/" for path in paths})
        tags |= {
            5011: [8],
            1117: [path.rpartition("/")[2] for path in paths],
            1118: folders,
            1116: [folders.index(path.rpartition("/")[0] + "/") for path in paths],
            1030: [0o100644 if isinstance(files[path], bytes) else 0o120777 for path in paths],
            1028: [len(files[path]) for path in paths],
            1035: [hashlib.sha256(data).hexdigest() if isinstance(data, bytes) else "" for data in files.values()],
            1036: [data if isinstance(data, str) else "" for data in files.values()],
        }
    return header({**tags, **(change or {})}, bad=bad)


def sqlite_file(folder: Path, headers: Sequence[bytes], *statements: str, table: str | None = TABLE) -> bytes:
    """The bytes of a database with these headers; with ``table`` None of what the statements make alone."""
    file = folder / secrets.token_hex(8)
    with contextlib.closing(sqlite3.connect(file)) as connection:
        for statement in (*([table] if table else []), *statements):
            connection.execute(statement)
        if table:
            connection.executemany("INSERT INTO Packages (blob) VALUES (?)", [(blob,) for blob in headers])
        connection.execute("CREATE TABLE IF NOT EXISTS 'Other' (a)")
        connection.commit()
    data = file.read_bytes()
    file.unlink()
    return data
