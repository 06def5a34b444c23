"""Reading what a collector wrote, or anything else; and the archive that carries the collector."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from envbuild.doctor.archive import archive, write_archive
from envbuild.doctor.collection import Collection
from envbuild.errors import EngineError, InputError
from envbuild.pipeline.examine import Extent, collection_text, read_collection

DOCUMENT = {"schema": "envbuild.collection/1", "taken": "2026-11-30T10:00:00Z", "a field of the future": [1]}


def test_what_was_written_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "facts.json"
    for content in (
        json.dumps(DOCUMENT).encode(), gzip.compress(json.dumps(DOCUMENT).encode(), mtime=0),
        b"\xef\xbb\xbf" + json.dumps(DOCUMENT).encode(), json.dumps(DOCUMENT).encode("utf-16"),
    ):  # fmt: skip
        path.write_bytes(content)
        found = read_collection(str(path))
        assert found.taken == "2026-11-30T10:00:00Z" and found.torch is None
        path.write_text(collection_text(found))
        assert read_collection(str(path)) == found
    assert isinstance(found, Collection)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty"),
        (b" \n", "is empty"),
        (b"Traceback (most recent call last):\n", "1:1: it is not JSON"),
        (b'{"schema":\n "envbuild.coll', "facts.json:2:2: it is not JSON"),
        (b"\x7fELF\x02\x01\xff\xfe\x00", "no text, at byte"),
        (b"\x1f\x8b\x08\x00broken", "cannot be read"),
        (gzip.compress(b"x" * 1000, mtime=0)[:-9], "cannot be read"),
        (b"[" * 100_000, "not JSON"),
        (b"1" * 5000, "not JSON"),
        (b"null", 'no "schema"'),
        (b'{"schema": 7}', "its \"schema\" is '7'"),
        (b'{"schema": "envbuild.doctor/1", "findings": []}', "envbuild.doctor/1"),
        (b'{"schema": "envbuild.collection/2", "taken": "x"}', "newer collector"),
        (b'{"schema": "envbuild.collection/0"}', "no collector writes"),
        ('{"schema": "envbuild.collection/²"}'.encode(), "no collector writes"),
        (b'{"schema": "envbuild.collection/' + b"9" * 5000 + b'"}', "no collector writes"),
        (b'{"schema": "envbuild.collection/1"}', "taken: Field required"),
        (b'{"schema": "envbuild.collection/1", "taken": "x", "machine": {"uid": "me"}}', "machine.uid"),
        (b'{"schema": "envbuild.collection/1", "taken": "x", "ops": {"a": 1}}', "ops"),
    ],
)
def test_anything_else_is_refused_with_its_place(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "facts.json"
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        read_collection(str(path))
    assert said in caught.value.message and "facts.json" in caught.value.message and len(caught.value.message) < 1000
    assert caught.value.hint


@pytest.mark.parametrize("name", ["none.json", ".", "a\0b"])
def test_a_file_that_is_not_there(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        read_collection(str(tmp_path / name))


def test_options_are_as_the_collector_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    from envbuild.collector import __main__ as collector

    extent = Extent(nvme=("/a b", "/c"), bench=True, imports=False, timeout=7.5)
    options = collector._options(["--guess", *extent.options])
    assert (options.nvme, options.bench, options.no_import, options.timeout) == (["/a b", "/c"], True, True, 7.5)


def test_the_archive_is_the_same_wherever_it_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = archive(tmp_path / "cache")
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1")
    write_archive(tmp_path / "doctor.pyz")
    assert first.read_bytes() == (tmp_path / "doctor.pyz").read_bytes()
    assert first.stat().st_mode & 0o777 == 0o644 and (tmp_path / "doctor.pyz").stat().st_mode & 0o777 == 0o755
    assert archive(tmp_path / "cache") == first
    with zipfile.ZipFile(first) as packed:
        names = packed.namelist()
        assert names == sorted(names) and packed.testzip() is None
        assert "envbuild_collector/__main__.py" in names and "elftools/elf/enums.py" in names
        # Of pyelftools only what is imported.
        assert not any("dwarf" in name or "test" in name for name in names)
        for name in names:
            compile(packed.read(name), name, "exec")
    assert first.stat().st_size < 150_000
    assert first.read_bytes().startswith(b"#!/usr/bin/env python3\n")


def test_an_archive_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(EngineError):
        write_archive(tmp_path / "file/doctor.pyz")


def test_nothing_of_this_starts_a_process() -> None:
    """The guard of the unit tests is what the collector would meet."""
    assert "envbuild.collector.child" not in sys.modules
    with pytest.raises(AssertionError, match="start a process"):
        subprocess.Popen(["true"])
