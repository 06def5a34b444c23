"""The suite's hash follows its sources, and its probes are real files."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import ModuleType

import pytest

from envbuild import elf, probes, rpmdb
from envbuild.errors import EngineError
from envbuild.judge import suite


def test_the_probes_are_a_folder_that_can_be_mounted() -> None:
    folder = suite.probes_folder()
    assert folder.is_dir()
    assert {"zero3.py", "zero3_rank.py", "content.py", "content_modules.py", "common.py"} <= {
        path.name for path in folder.iterdir()
    }


def test_the_hash_changes_with_any_source_and_with_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = tmp_path / "probes"
    shutil.copytree(suite.probes_folder(), copy, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(probes, "__file__", str(copy / "__init__.py"))
    hashes = suite.suite_hash.__wrapped__
    same = hashes()
    assert same == suite.suite_hash()
    (copy / "__pycache__").mkdir()
    (copy / "__pycache__" / "common.pyc").write_bytes(b"x")
    (copy / "notes.txt").write_text("x")
    assert hashes() == same
    (copy / "common.py").write_bytes((copy / "common.py").read_bytes() + b"\n")
    changed = hashes()
    assert changed != same
    (copy / "common.py").rename(copy / "common2.py")
    assert hashes() not in (same, changed)


@pytest.mark.parametrize("room", [elf, rpmdb])
def test_what_reads_the_images_files_belongs_to_the_suite(
    room: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "__file__", str(tmp_path / "__init__.py"))
    assert suite.suite_hash.__wrapped__() != suite.suite_hash()


def test_a_package_that_is_no_folder_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "__file__", str(tmp_path / "envbuild.zip" / "probes" / "__init__.py"))
    with pytest.raises(EngineError, match="not where they belong"):
        suite.probes_folder()
