"""Where a rank's Python is, with py-spy, without it, and without the right to look."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from envbuild.pipeline import stacks
from envbuild.pipeline.stacks import Stack
from envbuild.process import Completed

WAITING = """Process 7: python train.py
Python v3.11.2 (/usr/bin/python3.11)

Thread 7 (idle): "MainThread"
    _engine_run_backward (torch/autograd/graph.py:824)
    backward (torch/autograd/__init__.py:347)
    <module> (train.py:17)
Thread 9 (active): "Thread-3"
    all_gather_into_tensor (torch/distributed/distributed_c10d.py:3798)
    reduce (deepspeed/runtime/zero/stage3.py:1300)
"""


def test_a_collective_in_a_thread_of_the_backward_pass_is_waiting_and_the_main_thread_is_shown() -> None:
    assert Stack(text=WAITING).where == "waiting" and Stack().where is None
    elsewhere = WAITING.replace("_engine_run_backward (torch/autograd/graph.py:824)", "load (data.py:12)")
    assert Stack(text=elsewhere).where == "own", "what another thread waits for is not what the rank does"
    away = WAITING.replace("torch/distributed/distributed_c10d.py", "x.py").replace("torch/autograd", "urllib3")
    assert Stack(text=away).where == "away"
    own = WAITING.replace("torch/distributed/distributed_c10d.py", "queue.py")
    assert Stack(text=own).where == "own"
    assert Stack(text=own).lines()[::2] == (
        "_engine_run_backward (torch/autograd/graph.py:824)",
        "<module> (train.py:17)",
    )


def test_without_the_right_to_look_the_rank_itself_is_heard_or_it_is_said_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = "Permission Denied: Try running again with elevated permissions by going 'sudo env ...'"

    def run(argv: Sequence[str], **rest: object) -> Completed:
        assert "--nonblocking" in argv, "the process must not be stopped"
        return Completed(argv=tuple(argv), returncode=1, stdout="", stderr=said)

    monkeypatch.setattr(stacks, "spy", lambda: "/usr/bin/py-spy")
    monkeypatch.setattr(stacks.process, "run", run)
    found = stacks.read(1, 0, tmp_path)
    assert not found.text and "CAP_SYS_PTRACE" in found.problem and "ptrace_scope" in found.problem
    (tmp_path / "stack-0.txt").write_text('Thread MainThread:\n  File "train.py", line 17, in <module>\n')
    found = stacks.read(1, 0, tmp_path)
    assert found.lines() == ('File "train.py", line 17, in <module>',) and found.source == "the rank itself"
    assert found.where == "own"


def test_without_py_spy_it_is_said_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stacks, "spy", lambda: None)
    assert "pipx inject envbuild py-spy" in stacks.read(1, 0, None).problem
