"""The RPM database read as bytes: real files, made-up hostile ones, and damage anywhere."""

from __future__ import annotations

import contextlib
import io
import sqlite3
import struct
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from envbuild import rpmdb
from envbuild.rpmdb import Database, RpmdbError, bdb
from envbuild.rpmdb import database as room
from rpm_made import TABLE, header, package, sqlite_file

DATA = Path(__file__).parent / "data/rpmdb"
BDB = {order: (DATA / f"Packages-{order}").read_bytes() for order in ("little", "big")}
BLOB = next(bdb.values(io.BytesIO(BDB["little"]), len(BDB["little"]), 1 << 20))


def read(data: bytes, scratch: Path, log: bytes | None = None) -> Database:
    return rpmdb.read(io.BytesIO(data), None if log is None else io.BytesIO(log), scratch)


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("scratch")


@pytest.fixture(scope="module")
def sqlite(scratch: Path) -> bytes:
    """A database with the real header in it, as rpm makes its table."""
    return sqlite_file(scratch, [BLOB])


def test_a_real_header_reads_the_same_from_every_kind_of_database(scratch: Path, sqlite: bytes) -> None:
    one, two, three = (read(data, scratch) for data in (BDB["little"], BDB["big"], sqlite))
    assert one == two == three and one.problems == ()
    (found,) = one.packages
    assert (found.label, found.epoch, found.size, found.algorithm) == ("small-2.0-7.el8.x86_64", 1, 29, "sha256")
    files = {file.path: file for file in found.files}
    assert list(files) == [
        "/etc/small.conf",
        "/usr/lib64/libsmall.so",
        "/usr/lib64/libsmall.so.2",
        "/var/log/small.log",
    ]
    assert files["/etc/small.conf"].config and files["/var/log/small.log"].ghost
    assert files["/usr/lib64/libsmall.so"].link == "libsmall.so.2"
    assert files["/usr/lib64/libsmall.so.2"].digest.hex().startswith("b5e0dfe3")


def test_what_sqlite_has_written_to_its_log_alone_counts(scratch: Path) -> None:
    file = scratch / "live.sqlite"
    with contextlib.closing(sqlite3.connect(file)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute(TABLE)
        connection.commit()
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        connection.execute("INSERT INTO Packages VALUES (1, ?)", (BLOB,))
        connection.commit()
        main, log = file.read_bytes(), file.with_name("live.sqlite-wal").read_bytes()
    assert len(read(main, scratch, log).packages) == 1
    assert read(main, scratch).packages == read(main, scratch, b"").packages == ()


def _sqlite(*statements: str) -> Callable[[Path], bytes]:
    def make(scratch: Path) -> bytes:
        return sqlite_file(scratch, [BLOB], *statements, table=None)

    return make


_VIEW = """CREATE VIEW Packages AS WITH RECURSIVE endless(hnum, blob) AS (
    SELECT 1, x'00' UNION ALL SELECT hnum + 1, blob FROM endless) SELECT * FROM endless"""


def _bdb(*changes: tuple[int, bytes]) -> Callable[[Path], bytes]:
    def make(_: Path) -> bytes:
        data = bytearray(BDB["little"])
        for offset, value in changes:
            data[offset : offset + len(value)] = value
        return bytes(data)

    return make


# Of the little file: where its overflow pages begin, and where a page refers to the first of them.
_LITTLE = BDB["little"]
_OVERFLOW = [at for at in range(0, len(_LITTLE), 512) if _LITTLE[at + 25] == 7]


def _reference() -> tuple[int, int]:
    for page in range(512, len(_LITTLE), 512):
        (count,) = struct.unpack_from("<H", _LITTLE, page + 20)
        for start in struct.unpack_from(f"<{count}H", _LITTLE, page + 26) if _LITTLE[page + 25] == 13 else ():
            if _LITTLE[page + start] == 3:
                return page, page + start
    raise AssertionError("there is no reference to an overflow page")


_FULL, _REFERENCE = _reference()
_NUMBER = struct.Struct("<I").pack


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda _: b"", "it is empty"),
        (lambda _: b"not a database", "neither an SQLite nor a Berkeley DB file"),
        (lambda _: b"RpmP" + bytes(100), r"ndb, as on SUSE\), which is not supported"),
        (lambda _: BDB["little"][:700], "ends before its last page"),
        (lambda _: BDB["little"][:40], "no Berkeley DB hash file"),
        (_bdb((20, _NUMBER(333))), "unknown kind"),
        (_bdb((16, _NUMBER(5))), "unknown kind"),
        (_bdb((24, b"\1")), "encryption"),
        (_bdb((32, _NUMBER(1 << 31))), "ends before its last page"),
        # A chain that bites its tail, leads nowhere, or is longer than the file; parts that are no parts.
        (_bdb((_OVERFLOW[0] + 16, _NUMBER(_OVERFLOW[0] // 512))), "none of its own"),
        (_bdb((_OVERFLOW[0] + 16, _NUMBER(0))), "none of its own"),
        (_bdb((_OVERFLOW[0] + 16, _NUMBER(1 << 30))), "none of its own"),
        (_bdb((_REFERENCE + 8, _NUMBER(1 << 30))), "a value of"),
        (_bdb((_OVERFLOW[1] + 22, b"\0\0")), "a part of a value"),
        (_bdb((_OVERFLOW[1] + 22, b"\xff\xff")), "a part of a value"),
        (_bdb((_REFERENCE, b"\2")), "unknown kind 2"),
        (_bdb((_FULL + 20, b"\xff\x0e")), "says that it has"),
        (_bdb((_FULL + 20, b"\3\0")), "says that it has 3"),
        (_bdb((_FULL + 28, b"\xff\xff")), "overlap"),
        (_sqlite(), "no table Packages"),
        (_sqlite(_VIEW), "no table Packages"),
        (_sqlite("CREATE TABLE Packages (hnum INTEGER, blob AS (zeroblob(1000000000)))"), "no table Packages"),
        (_sqlite(TABLE, "INSERT INTO Packages VALUES (1, 'text')"), "row 1 holds no header"),
        (_sqlite(TABLE.replace("blob BLOB", "other BLOB")), "no table Packages"),
        (lambda scratch: sqlite_file(scratch, [BLOB])[:5000], "SQLite cannot read it"),
        (lambda scratch: sqlite_file(scratch, [BLOB])[:4096] + bytes(1 << 15), "SQLite cannot read it"),
    ],
)  # fmt: skip
def test_a_file_that_is_no_database_says_why(make: Callable[[Path], bytes], why: str, scratch: Path) -> None:
    with pytest.raises(RpmdbError, match=why):
        read(make(scratch), scratch)
    assert not list(scratch.glob("rpmdb-*"))


def test_more_than_any_system_has_is_refused(scratch: Path, monkeypatch: pytest.MonkeyPatch, sqlite: bytes) -> None:
    two = sqlite_file(scratch, [BLOB, BLOB])
    for name, value, why in (
        ("_MAX_PACKAGES", 1, "more than 1 packages"), ("_MAX_FILES", 5, "8 files"), ("LARGEST", 9, "bytes"),
        ("_MAX_CHARACTERS", 100, "characters of paths"),
    ):  # fmt: skip
        with monkeypatch.context() as patch, pytest.raises(RpmdbError, match=why):
            patch.setattr(room, name, value)
            read(two, scratch)
    with monkeypatch.context() as patch, pytest.raises(RpmdbError, match="more than 0 packages"):
        patch.setattr(room, "_MAX_PACKAGES", 0)
        read(BDB["big"], scratch)
    with monkeypatch.context() as patch, pytest.raises(RpmdbError, match="SQLite cannot read it: interrupted"):
        patch.setattr("envbuild.rpmdb.sqlite._STEPS", 1)
        patch.setattr("envbuild.rpmdb.sqlite._MAX_THOUSANDS", 3)
        read(sqlite, scratch)


MANY = [f"name-{number}" for number in range(2000)]


@pytest.mark.parametrize(
    ("blob", "why"),
    [
        (b"", "0 bytes"),
        (BLOB[:-1], "says that it has"),
        (struct.pack(">II", 1 << 30, 1 << 30), "says that it has"),
        (header({1000: "x"}), "without a name or a version"),
        (header({1000: 5, 1001: "1"}), "tag 1000 should hold text"),
        (header({1000: "x", 1001: "1", 1003: "text"}), "tag 1003 should hold numbers"),
        (package("x", bad=(6, 1 << 20, 1)), "tag 9 begins outside"),
        (package("x", bad=(6, -1, 1)), "tag 9 begins outside"),
        (package("x", bad=(8, 0, 1 << 30)), "has 1073741824 values"),
        (package("x", files={"/a/b": b""}, change={1117: ["b", "c"]}), "do not fit"),
        (package("x", files={"/a/b": b""}, change={1116: [7]}), "do not fit"),
        (package("x", files={"/a/b": b""}, change={1118: ["a/"]}), "no absolute path"),
        (package("x", files={"/a/b": b""}, change={1030: [1, 2]}), "1 files and 2 values"),
        (package("x", files={"/a/b": b""}, change={1035: ["nothex"]}), "which is none"),
        (
            package("x", files={"/a/b": b""}, change={1117: MANY, 1118: ["/" + "a" * 90_000], 1116: [0] * 2000}),
            "longer",
        ),
    ],
)
def test_a_damaged_header_is_told_and_hides_no_other(blob: bytes, why: str, scratch: Path) -> None:
    found = read(sqlite_file(scratch, [blob, BLOB]), scratch)
    assert [each.name for each in found.packages] == ["small"]
    (problem,) = found.problems
    assert why in problem


def test_packages_whose_files_cannot_be_told_are_named(scratch: Path) -> None:
    old = header({1000: "old", 1001: "1", 1002: "2", 1027: ["/a"]})
    odd = package("odd", files={"/a": b""}, change={5011: [99]})
    found = read(sqlite_file(scratch, [old, odd]), scratch)
    assert [(each.algorithm, len(each.files)) for each in found.packages] == [("kind 99", 1), ("md5", 0)]
    (problem,) = found.problems
    assert problem.startswith("old-1-2: its files are listed as rpm did before version 4")


def test_of_a_tag_that_is_there_twice_the_later_counts() -> None:
    data = header({1000: "x", 1001: "1"}, more=((1001, "2"),))
    assert rpmdb.parse(data).text(1001) == "2"


_CHANGES = st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(0, 255)), min_size=1, max_size=8)
_FUZZ = settings(deadline=None, max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])


def _damaged(data: bytes, changes: Sequence[tuple[int, int]], cut: int) -> bytes:
    spoiled = bytearray(data)
    for offset, value in changes:
        spoiled[offset % len(spoiled)] = value
    return bytes(spoiled[: len(spoiled) - cut % 64 * (cut % 3 == 0)])


class _Counting(io.BytesIO):
    count = 0

    def read(self, size: int | None = -1, /) -> bytes:
        data = super().read(size)
        self.count += len(data)
        return data


@_FUZZ
@given(order=st.sampled_from(["little", "big"]), changes=_CHANGES, cut=st.integers(0, 1000))
def test_damage_to_berkeley_db_ends_in_an_answer_or_in_the_one_error(
    order: str, changes: list[tuple[int, int]], cut: int, scratch: Path
) -> None:
    stream = _Counting(_damaged(BDB[order], changes, cut))
    with contextlib.suppress(RpmdbError):
        rpmdb.read(stream, None, scratch)
    assert stream.count <= 3 * len(BDB[order])


@_FUZZ
@given(changes=_CHANGES, cut=st.integers(0, 1000))
def test_damage_to_sqlite_does_too(changes: list[tuple[int, int]], cut: int, scratch: Path, sqlite: bytes) -> None:
    with contextlib.suppress(RpmdbError):
        read(_damaged(sqlite, changes, cut), scratch)


@_FUZZ
@given(changes=_CHANGES, cut=st.integers(0, 1000))
def test_damage_to_a_header_does_too(changes: list[tuple[int, int]], cut: int) -> None:
    with contextlib.suppress(RpmdbError):
        rpmdb.package(rpmdb.parse(_damaged(BLOB, changes, cut)))


@_FUZZ
@given(data=st.binary(max_size=4096), start=st.sampled_from([b"", BDB["little"][:512], b"SQLite format 3\0", b"RpmP"]))
def test_any_bytes_do_too(data: bytes, start: bytes, scratch: Path) -> None:
    with contextlib.suppress(RpmdbError):
        read(start + data, scratch)
    with contextlib.suppress(RpmdbError):
        rpmdb.package(rpmdb.parse(data))
