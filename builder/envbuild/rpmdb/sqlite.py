"""rpm's database as SQLite (rpm 4.16 and later): the table ``Packages``, a header in each row.

SQLite itself reads the file, a private copy of it: nothing of its schema is run (no view, no trigger, no function
beyond two), the work is counted, and what has been written to the log beside it and not yet to the file counts too.
"""

from __future__ import annotations

import contextlib
import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from envbuild.rpmdb.faults import RpmdbError

MAGIC = b"SQLite format 3\0"
# rpm's own table needs 5 steps for a row; counted in thousands.
_STEPS = 1000
_MAX_THOUSANDS = 2000
# The length of a text would be counted in its characters, all of them loaded.
_QUERY = "SELECT CASE typeof(blob) WHEN 'blob' THEN length(blob) END, hnum FROM Packages NOT INDEXED"
_ONE = "SELECT blob FROM Packages WHERE hnum = ?"
_FUNCTIONS = {"typeof", "length"}
# Of its definition (rpm 4.16 to 4.18): with these words alone nothing in it can be computed.
_WORDS = frozenset(re.findall(r"\w+", "create table packages hnum integer primary key autoincrement blob not null"))


def values(file: Path, size: int, largest: int, most: int) -> Iterator[bytes]:
    """Every header in the database.

    Args:
        file: A copy that nobody else uses, with its ``-wal`` beside it; its folder can be written to.
        size: Bytes of both; the headers together cannot have more.
        largest: Bytes of a header beyond which the file is refused.
        most: Rows beyond which it is.

    Raises:
        RpmdbError: It is no such database, or damaged.
    """
    try:
        with contextlib.closing(
            sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True, timeout=0)
        ) as database:
            _restrict(database)
            tables = database.execute("SELECT type, sql FROM sqlite_master WHERE name = 'Packages'").fetchmany(2)
            if len(tables) != 1 or tables[0][0] != "table" or not _is_plain(tables[0][1]):
                raise RpmdbError("it has no table Packages as rpm makes it")
            rows = database.execute(_QUERY).fetchmany(most + 1)
            if len(rows) > most:
                raise RpmdbError(f"it has more than {most} packages")
            left = size
            for length, number in rows:
                if length is None or not isinstance(number, int) or length > largest:
                    raise RpmdbError(f"the row {number!r:.40} holds no header")
                left -= length
                if left < 0:
                    raise RpmdbError("its headers have more bytes than the file itself")
                found = database.execute(_ONE, (number,)).fetchmany(1)
                if not found or not isinstance(found[0][0], bytes):
                    raise RpmdbError(f"the row {number} cannot be found again")
                yield found[0][0]
    except (sqlite3.Error, sqlite3.Warning, OverflowError, UnicodeError) as error:
        raise RpmdbError(f"SQLite cannot read it: {error}") from error


def _is_plain(definition: object) -> bool:
    return isinstance(definition, str) and set(re.findall(r"\w+", definition.lower())) <= _WORDS


def _restrict(database: sqlite3.Connection) -> None:
    thousands = 0

    def count() -> int:
        nonlocal thousands
        thousands += 1
        return thousands > _MAX_THOUSANDS  # a true value ends the query

    def allow(action: int, first: str | None, second: str | None, *_: str | None) -> int:
        if action == sqlite3.SQLITE_SELECT or action == sqlite3.SQLITE_READ:
            return sqlite3.SQLITE_OK
        if action == sqlite3.SQLITE_FUNCTION and second in _FUNCTIONS:
            return sqlite3.SQLITE_OK
        return sqlite3.SQLITE_DENY

    for pragma in ("trusted_schema = OFF", "cell_size_check = ON", "mmap_size = 0", "query_only = ON"):
        database.execute(f"PRAGMA {pragma}")
    database.set_progress_handler(count, _STEPS)
    database.set_authorizer(allow)
