"""An engine behind ssh: the system's client carries every connection, as it does for docker's own client.

So keys, agents, known hosts and ``~/.ssh/config`` count, and nothing has to be forwarded by hand.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import weakref
from pathlib import Path
from typing import IO
from urllib.parse import urlsplit

from envbuild import process
from envbuild.errors import EngineError
from envbuild.net import Relay


def ssh_argv(url: str) -> tuple[str, ...]:
    """What reaches the engine at ``ssh://[user@]host[:port][/path/of/its/socket]``.

    Nobody is there to answer a question, such as one for a password.

    Raises:
        EngineError: It is no such address.
    """
    try:
        parts = urlsplit(url)
        host, user, port, path = parts.hostname, parts.username, parts.port, parts.path.rstrip("/")
    except ValueError as error:
        raise EngineError(f"{url} is no address: {error}") from error
    if not host or host.startswith("-") or (user or "").startswith("-") or parts.password or parts.query:
        raise EngineError(f"{parts.scheme}://{host or ''} is no address of an engine", hint="Say ssh://user@host.")
    argv = ["ssh", "-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=15"]
    argv += ["-l", user] if user else []
    argv += ["-p", str(port)] if port else []
    docker = ("docker", "--host", f"unix://{path}") if path else ("docker",)
    return (*argv, "--", host, *docker, "system", "dial-stdio")


class Tunnel:
    """A local socket that leads to the engine at an ssh address, as long as this object lives.

    Attributes:
        socket: Path of that socket.
    """

    def __init__(self, url: str) -> None:
        """Make it ready; nobody is asked yet.

        Raises:
            EngineError: It is no such address, there is no ssh client, or no room for the socket.
        """
        argv = ssh_argv(url)
        if process.which("ssh") is None:
            raise EngineError("there is no ssh client on PATH", hint="install one (openssh-client, openssh-clients)")
        folder = Path(tempfile.mkdtemp(prefix="envbuild-ssh-"))
        self.socket = str(folder / "engine.sock")
        self._said = (folder / "said").open("w+b", buffering=0)
        lines: list[process.Server] = []
        said = self._said

        def serve(connection: int) -> None:
            # One for each connection, of which a long run has many: those that have ended are let go.
            lines[:] = [line for line in lines if not line.gone]
            lines.append(process.Server(argv, connection, said))

        relay = Relay(Path(self.socket), serve)
        self.close = weakref.finalize(self, _close, relay, lines, self._said, folder)

    def complaint(self) -> str:
        """What ssh had to say so far, in one line."""
        self._said.seek(0)
        return process.last_words(self._said.read().decode(errors="replace"), 300)


def _close(relay: Relay, lines: list[process.Server], said: IO[bytes], folder: Path) -> None:
    relay.close()
    for line in lines:
        with contextlib.suppress(OSError):
            line.end()
    said.close()
    shutil.rmtree(folder, ignore_errors=True)
