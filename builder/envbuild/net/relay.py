"""A Unix socket of this process's own, whose every connection somebody else serves."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from pathlib import Path


class Relay:
    """Takes connections until it is closed."""

    def __init__(self, path: Path, serve: Callable[[int], object]) -> None:
        """Listen.

        Args:
            path: Where; nothing may be there yet.
            serve: Gets the file descriptor of each connection, which is closed here when it returns.

        Raises:
            OSError: Nothing can listen there.
        """
        self._serve = serve
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._listener.bind(str(path))
            self._listener.listen()
        except OSError:
            self._listener.close()
            raise
        threading.Thread(target=self._accept, name="relay", daemon=True).start()

    def close(self) -> None:
        """Take no more."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:  # closed
                return
            with connection, contextlib.suppress(Exception):
                self._serve(connection.fileno())
