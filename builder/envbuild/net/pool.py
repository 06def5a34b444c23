"""Connections that wait for nobody longer than agreed, and take one answer at a time.

What requests and urllib3 leave open: a server that sends its headers byte by byte resets their time-out with every
byte, and the body of a redirect that is not followed is read nevertheless, whatever its length.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Any

import requests
import requests.adapters
import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection

# What is sent at once of a file (bytes).
_BLOCK = 1 << 18


class _Punctual:
    """A connection whose answer's headers are there in time, or not at all."""

    def getresponse(self) -> Any:
        connection: Any = self
        limit, sock = connection.timeout, connection.sock
        if limit is None or sock is None:
            return super().getresponse()  # type: ignore[misc]
        late = threading.Event()

        def hang_up() -> None:
            late.set()
            with contextlib.suppress(OSError):
                # Not ssl's own: that one is for the thread that reads.
                socket.socket.shutdown(sock, socket.SHUT_RDWR)

        # The first byte may take the whole limit; the rest comes with it.
        timer = threading.Timer(2 * limit, hang_up)
        timer.daemon = True
        timer.start()
        try:
            answer = super().getresponse()  # type: ignore[misc]
        finally:
            timer.cancel()
        if late.is_set():
            # Headers that are cut off read as if they had ended there.
            answer.close()
            raise TimeoutError("the headers came too slowly")
        return answer


class _PlainConnection(_Punctual, HTTPConnection):
    pass


class _TlsConnection(_Punctual, HTTPSConnection):
    pass


class _PlainPool(urllib3.HTTPConnectionPool):
    ConnectionCls = _PlainConnection


class _TlsPool(urllib3.HTTPSConnectionPool):
    ConnectionCls = _TlsConnection


_POOLS: dict[str, Any] = {"http": _PlainPool, "https": _TlsPool}


class _Adapter(requests.adapters.HTTPAdapter):
    def __init__(self, roots: str = "") -> None:
        self._roots = roots
        super().__init__()

    def build_connection_pool_key_attributes(self, *args: Any, **kwargs: Any) -> Any:
        host, pool = super().build_connection_pool_key_attributes(*args, **kwargs)
        if self._roots and host["scheme"] == "https":
            # Besides ca_certs, which requests has a place for; urllib3 takes both.
            return host, {**pool, "ca_cert_data": self._roots}
        return host, pool

    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        super().init_poolmanager(*args, blocksize=_BLOCK, **kwargs)
        self.poolmanager.pool_classes_by_scheme = _POOLS

    def proxy_manager_for(self, *args: Any, **kwargs: Any) -> Any:
        manager = super().proxy_manager_for(*args, blocksize=_BLOCK, **kwargs)
        if isinstance(manager, urllib3.ProxyManager):  # SOCKS has pools of its own
            manager.pool_classes_by_scheme = _POOLS
        return manager


class Plain(requests.Session):
    """A session that neither follows redirects nor reads them, and takes nothing from the environment."""

    def __init__(self, roots: str = "") -> None:
        """
        Args:
            roots: CAs that are trusted besides the others, as PEM.
        """
        super().__init__()
        self.trust_env = False
        for scheme in ("http://", "https://"):
            self.mount(scheme, _Adapter(roots))

    def get_redirect_target(self, resp: requests.Response) -> None:
        """Nowhere: requests would read the whole body first."""
