"""Unit tests start no process, open no connection, and keep away from the user's own folders."""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path
from typing import Any, NoReturn

import pytest


@pytest.fixture(autouse=True)
def no_processes_no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """A unit test that starts a process or connects anywhere fails, whoever does it."""

    def refuse(*args: Any, **kwargs: Any) -> NoReturn:
        raise AssertionError(f"a unit test tried to start a process or open a connection: {args[:2]}")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    for name in ("system", "fork", "forkpty", "posix_spawn", "posix_spawnp", "execv", "execve", "execvp", "execvpe"):
        monkeypatch.setattr(os, name, refuse)
    for name in ("connect", "connect_ex", "sendto"):
        monkeypatch.setattr(socket.socket, name, refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


@pytest.fixture(autouse=True)
def own_store(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store of the test's own, so that nothing is read from or written to the user's."""
    folder = tmp_path_factory.mktemp("store")
    monkeypatch.setenv("ENVBUILD_HOME", str(folder))
    return folder
