"""What a failing build or smoke says of its cause, beside its log: once, and never in place of the failure."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from envbuild.cli import failure
from envbuild.errors import BuildError
from envbuild.model import Finding, Severity
from envbuild.pipeline.causes import explained, of_training
from envbuild.pipeline.workbench import Workbench

MISSING = "E: Unable to locate package libaio-devel"


def _failed(log: Path | None, message: str) -> BuildError:
    with pytest.raises(BuildError) as raised, explained(Workbench(), log):
        raise BuildError(message)
    return raised.value


def _finding(rule: str, message: str) -> Finding:
    return Finding(rule=rule, severity=Severity.ERROR, subject="smoke", message=message)


def test_the_whole_log_is_read_and_not_the_message_alone(tmp_path: Path) -> None:
    log = tmp_path / "build.log"
    log.write_text(f"#5 0.071 {MISSING}\n#5 ERROR: executor failed running [/bin/sh -c x]: exit code: 100\n")
    (cause,) = _failed(log, "build step failed: x").causes
    assert cause.kind == "apt-package-missing" and cause.evidence[0].line == 1
    assert [cause.kind for cause in _failed(tmp_path / "none", f"step failed\n  {MISSING}").causes] == [cause.kind]


def test_nothing_known_changes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    error = _failed(None, "build step failed: x")
    assert error.causes == ()
    assert failure.report(error, as_json=False) == 4
    assert capsys.readouterr().err == "error: build step failed: x\n"


def test_it_is_told_once_and_the_exit_code_stays(capsys: pytest.CaptureFixture[str]) -> None:
    error = _failed(None, f"build step failed: x\n  {MISSING}")
    assert failure.report(error, as_json=False) == 4
    said = capsys.readouterr().err
    assert said.count(MISSING) == 1 and "cause: [apt-package-missing]" in said and "fix: " in said
    assert failure.report(error, as_json=True) == 4
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "envbuild.error/1" and document["causes"][0]["kind"] == "apt-package-missing"


def test_the_ranks_last_words_are_read() -> None:
    lines = [
        "Traceback (most recent call last):",
        "AssertionError: bfloat16 and fp16 modes cannot be simultaneously enabled",
    ]
    report = {"ranks": [{"rank": 0, "log_tail": lines}, {"rank": 1, "log_tail": None}, "no rank"]}
    crashed = _finding("smoke.crash", "rank 0 ended with exit code 1")
    assert [cause.kind for cause in of_training(Workbench(), report, [crashed])] == ["ds-config-precision-conflict"]
    without = _finding("smoke.crash", "no report\nlast lines of the container:\n  " + lines[1])
    assert [cause.kind for cause in of_training(Workbench(), None, [without])] == ["ds-config-precision-conflict"]


def test_what_the_judge_has_said_is_not_said_again() -> None:
    report = {"ranks": [{"rank": 0, "log_tail": ["Fatal Python error: Bus error"]}]}
    assert of_training(Workbench(), report, [_finding("smoke.crash", "rank 0 ended with SIGBUS")])
    assert of_training(Workbench(), report, [_finding("smoke.shm", "/dev/shm of 64 MiB is too small")]) == ()
