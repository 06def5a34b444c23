"""Programs that do not end as they should: ended all the same, with all that they started."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from envbuild import process
from envbuild.process import child

DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(120)"


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("envbuild.process.watching.GRACE_SECONDS", 0.5)
    monkeypatch.setattr(child, "GRACE_SECONDS", 0.5)


def test_one_that_does_not_hear_of_its_time_being_up_is_ended() -> None:
    heard: list[str] = []
    with pytest.raises(process.TimedOut, match="did not end within 1 s"):
        process.stream([sys.executable, "-c", DEAF], on_line=heard.append, timeout=1.0)
    assert heard == ["deaf"]


def test_one_that_closes_its_output_and_goes_on_is_waited_for() -> None:
    # Longer than the grace.
    program = "import os, time; os.close(1); os.close(2); time.sleep(1); os._exit(3)"
    assert process.stream([sys.executable, "-c", program], on_line=print, timeout=60.0) == 3


def test_descendants_that_outlive_the_child_are_ended_with_it(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    program = f"""
import os, signal, sys, time
if os.fork() == 0:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    open({str(note)!r}, 'w').write(str(os.getpid()))
    print('ready', flush=True)
    time.sleep(120)
time.sleep(120)
"""

    class Enough(Exception):
        pass

    def line(text: str) -> None:
        raise Enough

    with pytest.raises(Enough):
        process.stream([sys.executable, "-c", program], on_line=line, timeout=60.0)
    pid = int(note.read_text())
    for _ in range(200):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return
        if state == "Z":  # nobody is there to reap it
            return
        time.sleep(0.02)
    os.kill(pid, 9)
    pytest.fail("the descendant lives on")


def test_a_line_without_an_end_comes_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "_LONGEST_LINE", 1 << 16)
    heard: list[str] = []
    program = "print('a' * 300_000); print('é\\r'); print('end', end='')"
    assert process.stream([sys.executable, "-X", "utf8", "-c", program], on_line=heard.append, timeout=60.0) == 0
    assert "".join(heard[:-2]) == "a" * 300_000 and heard[-2:] == ["é", "end"]
    assert max(map(len, heard)) < 3 << 16
