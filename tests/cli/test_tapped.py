"""What a program that is overheard must not notice."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from threading import Thread

import pytest

from envbuild import process


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGUSR2, signal.SIGQUIT])
def test_a_signal_to_the_group_is_the_commands_own(number: signal.Signals) -> None:
    held = signal.signal(number, signal.SIG_IGN)  # or a red test would end pytest
    try:
        with process.Tapped(["true"], on_output=lambda number, data: None) as child:
            assert callable(signal.getsignal(number))
            os.kill(os.getpid(), number)
            assert child.wait(20) == 0
            child.drain()
    finally:
        signal.signal(number, held)


def test_a_stdout_that_does_not_block_gets_everything(tmp_path: Path) -> None:
    source, target = os.pipe()
    os.set_blocking(target, False)
    child = process.Tapped(
        ["sh", "-c", "head -c 300000 /dev/zero"], on_output=lambda number, data: None, stdout=target
    )  # fmt: skip
    # The pipe is full, and only then does somebody read.
    assert child.wait(0.5) is None
    found = bytearray()

    def read() -> None:
        while len(found) < 300_000 and (data := os.read(source, 1 << 16)):
            found.extend(data)

    reader = Thread(target=read, daemon=True)
    reader.start()
    assert child.wait(20) == 0
    child.drain()
    reader.join(20)
    assert len(found) == 300_000
