"""What lint writes back, and what it leaves alone."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from envbuild.cli.linted import Run
from envbuild.dsconfig import document, fixing
from envbuild.errors import InputError
from envbuild.pipeline import linting

TEXT = '{"train_batch_size": 8, "zero_optimization": {"stage": "2"}}'


def run(path: Path) -> Run:
    wish = linting.Wish(deepspeed="0.19.8")
    done = Run(wish, linting.context(wish, None), linting.chosen((), ()), fix=True, dry_run=False)
    done.take(str(path), quiet=True)
    return done


def test_a_file_that_changes_meanwhile_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "ds.json"
    path.write_text(TEXT)
    mend = fixing.fix

    def slow(*args: Any, **words: Any) -> fixing.Fixed:
        path.write_text(TEXT.replace("8", "16"))
        return mend(*args, **words)

    monkeypatch.setattr(fixing, "fix", slow)
    (said,) = run(path).unread
    assert "changed while it was looked at" in said[1].message
    assert path.read_text() == TEXT.replace("8", "16")


def test_a_file_that_may_not_be_written_is_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "ds.json"
    path.write_text(TEXT)
    # Whoever runs the tests may be root, who may write everything.
    monkeypatch.setattr(os, "access", lambda *args: False)
    (said,) = run(path).unread
    assert "may not be written" in said[1].message
    assert path.read_text() == TEXT
    monkeypatch.undo()
    assert run(path).unread == []
    assert path.read_text() == TEXT.replace('"2"', "2")


def test_a_standard_input_that_is_closed_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(InputError, match="<stdin>: closed"):
        document.read("-")


def test_the_mark_stands_under_the_word_behind_wide_letters(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "ds.json"
    path.write_text('{"_": "日本", "zz": 1, "train_batch_size": 8}', encoding="utf-8")
    run(path).tell(json=False, sarif=None, quiet=True)
    lines = capsys.readouterr().out.splitlines()
    shown = next(line for line in lines if '"zz"' in line)
    mark = lines[lines.index(shown) + 1]
    assert mark.index("^") == shown.index('"zz"') + 2


def test_what_is_no_file_is_not_mended(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.write(writing, TEXT.encode())
    os.close(writing)
    (said,) = run(Path(f"/dev/fd/{reading}")).unread
    os.close(reading)
    assert "no file that could be mended" in said[1].message
