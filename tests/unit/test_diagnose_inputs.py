"""What diagnose reads: damaged archives, folders with more than logs in them, streams without an end."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zstandard

from envbuild import project
from envbuild.diagnose import diagnose, diagnose_text, inputs
from envbuild.errors import InputError
from envbuild.project import Project
from noise import noisy

REPOSITORY = Path(__file__).parents[2]
ERROR = b"ImportError: libdemo.so.1: cannot open shared object file: No such file or directory\n"
KIND = "shared-library-missing"
PACKINGS = [gzip.compress, bz2.compress, lzma.compress, zstandard.compress]


@pytest.fixture(scope="module")
def shipped() -> Project:
    return project.find(REPOSITORY, REPOSITORY)


def kinds_in(path: Path, project: Project) -> tuple[list[str], tuple[tuple[str, str], ...]]:
    found = diagnose([str(path)], project)
    return [cause.kind for cause in found.causes], found.unread


@pytest.mark.parametrize("pack", PACKINGS)
def test_nothing_before_the_damage_is_lost(pack: Any, shipped: Project, tmp_path: Path) -> None:
    path = tmp_path / "log"
    # The failure is the last that was written before the disk was full, or the archive was copied as it grew.
    path.write_bytes(pack(noisy("", 1, around=60)) + pack(ERROR) + b"no archive any more")
    found, unread = kinds_in(path, shipped)
    assert found == [KIND] and "something else follows" in unread[0][1]
    path.write_bytes(pack(noisy("", 1, around=60)) + pack(ERROR) + pack(os.urandom(9000))[:-4000])
    found, unread = kinds_in(path, shipped)
    assert found == [KIND] and "cut off: only the first" in unread[0][1]
    path.write_bytes(pack(ERROR) + bytes(512))
    assert kinds_in(path, shipped) == ([KIND], ()), "zeros fill up a block"
    path.write_bytes(pack(b""))
    assert kinds_in(path, shipped) == ([], ())


def test_an_archive_of_which_nothing_can_be_read_is_an_error(shipped: Project, tmp_path: Path) -> None:
    path = tmp_path / "log.gz"
    path.write_bytes(gzip.compress(ERROR)[:12])
    with pytest.raises(InputError, match=r"log.gz: gzip: cut off"):
        diagnose([str(path)], shipped)


def test_frames_to_skip_and_text_that_begins_like_an_archive(shipped: Project, tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"\x50\x2a\x4d\x18\4\0\0\0size" + zstandard.compress(ERROR))
    assert kinds_in(path, shipped) == ([KIND], ())
    for start in (b"BZh! said the machine\n", b"\x1f\x8b\n"):
        path.write_bytes(start + ERROR)
        assert kinds_in(path, shipped) == ([KIND], ())
    path.write_bytes(ERROR.decode().encode("utf-32"))
    assert kinds_in(path, shipped) == ([KIND], ())


def test_a_folder_holds_more_than_logs(shipped: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    os.mkfifo(folder / "pipe.log")
    monkeypatch.chdir(folder)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("socket.log")
    (folder / "nowhere.log").symlink_to("none")
    (folder / "round").symlink_to(folder)
    (folder / "closed").mkdir(mode=0)
    for rank in range(4):
        (folder / f"rank_{rank}.log").write_bytes(ERROR if rank == 3 else b"fine\n")
    found = diagnose([str(folder)], shipped)
    assert [(each.kind, each.evidence[0].file) for each in found.causes] == [(KIND, str(folder / "rank_3.log"))]
    # root reads everything
    assert [name for name, _ in found.unread] == ([] if os.geteuid() == 0 else [str(folder / "closed")])
    monkeypatch.setattr(inputs, "MOST_FILES", 2)
    ((name, reason),) = [each for each in diagnose([str(folder)], shipped).unread if "closed" not in each[0]]
    assert (name, reason) == (str(folder), "holds more than 2 logs: only the first 2 were read")


def test_what_was_read_before_an_interrupt_is_diagnosed(
    shipped: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def endless() -> Iterator[bytes]:
        yield b"fine\n" * 10
        yield ERROR
        raise KeyboardInterrupt

    assert [each.kind for each in diagnose_text(endless(), shipped).causes] == [KIND]
    pieces = endless()

    def read_into(stream: inputs.Stream, buffer: bytearray, at: int) -> int:
        piece = next(pieces)
        buffer[at : at + len(piece)] = piece
        return len(piece)

    monkeypatch.setattr(inputs.Stream, "read_into", read_into)
    for name in ("one", "two"):
        (tmp_path / name).write_bytes(b"")
    one, two = str(tmp_path / "one"), str(tmp_path / "two")
    found = diagnose([one, two], shipped)
    assert [each.kind for each in found.causes] == [KIND]
    assert dict(found.unread) == {one: "interrupted: only the first 135 bytes were read", two: "not read"}


def test_an_interrupt_before_anything_was_read_is_one(shipped: Project) -> None:
    def nothing() -> Iterator[bytes]:
        raise KeyboardInterrupt
        yield b""

    with pytest.raises(KeyboardInterrupt):
        diagnose_text(nothing(), shipped)


def test_the_last_lines_are_shown_as_people_can_read_them(shipped: Project) -> None:
    found = diagnose_text(b"\x1b[0m\x1b[1A\x1b[2K\n" * 5000 + b"\x07\x01 \n" + b"the last words\r\n\x1b[2K\n", shipped)
    assert [(each.line, each.text) for each in found.telling] == [(5002, "the last words")]
