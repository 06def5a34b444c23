"""What a program that is overheard must not notice."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from envbuild import process


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGUSR2, signal.SIGQUIT])
def test_a_signal_to_the_group_is_the_commands_own(number: signal.Signals) -> None:
    held = signal.signal(number, lambda *_: None)  # or a red test would end pytest
    mine = signal.getsignal(number)
    try:
        with process.Tapped(["true"], on_output=lambda number, data: None) as child:
            assert signal.getsignal(number) is not mine
            os.kill(os.getpid(), number)
            assert child.wait(20) == 0
            child.drain()
    finally:
        signal.signal(number, held)


def test_a_stdout_that_does_not_block_gets_everything(tmp_path: Path) -> None:
    source, target = os.pipe()
    os.set_blocking(target, False)
    found = bytearray()

    def read() -> None:
        while len(found) < 300_000 and (data := os.read(source, 1 << 16)):
            found.extend(data)

    line = ["sh", "-c", "head -c 300000 /dev/zero"]
    with process.Tapped(line, on_output=lambda number, data: None, stdout=target) as child:
        # The pipe is full, and only then does somebody read.
        assert child.wait(0.5) is None
        reader = Thread(target=read, daemon=True)
        reader.start()
        assert child.wait(20) == 0
    child.drain()
    reader.join(20)
    assert len(found) == 300_000


def test_last_words_are_waited_for_as_long_as_their_reader_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = os.pipe()
    os.write(target, b"x" * fcntl.fcntl(target, fcntl.F_GETPIPE_SZ))
    monkeypatch.setattr("envbuild.process.tapped._LAST_SECONDS", 0.2)
    with process.Tapped(["echo", "last"], on_output=lambda number, data: None, stdout=target) as child:
        assert child.wait(20) == 0
    waiting = Thread(target=child.drain, daemon=True)
    waiting.start()
    waiting.join(1)
    assert waiting.is_alive()
    said = b""
    while not said.endswith(b"last\n"):
        said += os.read(source, 1 << 16)
    waiting.join(20)
    assert not waiting.is_alive()


def test_a_signal_while_the_command_is_being_started_is_the_commands_own(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[int] = []
    held = signal.signal(signal.SIGTERM, lambda *_: heard.append(1))
    start = subprocess.Popen

    def told(*arguments: Any, **named: Any) -> Any:
        child = start(*arguments, **named)
        os.kill(os.getpid(), signal.SIGTERM)
        return child

    monkeypatch.setattr(subprocess, "Popen", told)
    try:
        with process.Tapped(["sleep", "60"], on_output=lambda number, data: None) as child:
            assert child.wait(20) == 128 + signal.SIGTERM and heard == []
    finally:
        signal.signal(signal.SIGTERM, held)


def test_a_signal_that_is_ignored_is_ignored_by_the_command_too() -> None:
    said = bytearray()
    held = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        text = "import signal; print(signal.getsignal(signal.SIGHUP) == signal.SIG_IGN)"
        with process.Tapped([sys.executable, "-c", text], on_output=lambda number, data: said.extend(data)) as child:
            assert child.wait(20) == 0
        child.drain()
    finally:
        signal.signal(signal.SIGHUP, held)
    assert said == b"True\n"
