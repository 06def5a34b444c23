"""The suite's hash follows its sources, and its probes are real files."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import envbuild
from envbuild.errors import EngineError
from envbuild.judge import suite


def test_the_probes_are_a_folder_that_can_be_mounted() -> None:
    folder = suite.probes_folder()
    assert folder.is_dir()
    assert {"zero3.py", "zero3_rank.py", "content.py", "content_modules.py", "common.py"} <= {
        path.name for path in folder.iterdir()
    }


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of what is hashed, in place of the package."""
    source = Path(envbuild.__file__).parent
    for room in ("collector/elf", "elf", "judge", "probes", "rpmdb"):
        shutil.copytree(source / room, tmp_path / room, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(suite, "_PACKAGE", tmp_path)
    return tmp_path


@pytest.mark.parametrize("room", ["collector/elf", "elf", "judge", "probes", "rpmdb"])
def test_the_hash_changes_with_any_source_and_with_nothing_else(package: Path, room: str) -> None:
    hashes = suite.suite_hash.__wrapped__
    same = hashes()
    assert same == suite.suite_hash()
    (package / room / "__pycache__").mkdir()
    (package / room / "__pycache__" / "common.pyc").write_bytes(b"x")
    (package / room / "notes.txt").write_text("x")
    assert hashes() == same
    source = package / room / "__init__.py"
    source.write_bytes(source.read_bytes() + b"\n")
    changed = hashes()
    assert changed != same
    source.rename(package / room / "other.py")
    assert hashes() not in (same, changed)


def test_a_package_that_is_no_folder_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suite, "_PACKAGE", tmp_path / "envbuild.zip")
    with pytest.raises(EngineError, match="not where they belong"):
        suite.probes_folder()
