"""One connection to an engine: light where a question is small, docker-py for everything else."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from envbuild import net
from envbuild.engines.endpoint import Endpoint
from envbuild.engines.faults import explanation, root_cause
from envbuild.engines.tunnel import Tunnel
from envbuild.errors import EngineError

if TYPE_CHECKING:
    from docker import APIClient
    from docker.tls import TLSConfig

# Seconds. An engine on this host answers within milliseconds; one behind a network within a second or two.
_CONNECT_TIMEOUT = 5.0
# Each connection is a login of its own.
_TUNNEL_TIMEOUT = 30.0
CALL_TIMEOUT = 60.0


class Connection:
    """An engine that has answered.

    A local one is asked without docker-py until there is more to do than look at images: its import takes
    80 ms (measured), more than all the rest of an up-to-date build's dealings with the engine.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        """Ask the engine for its version.

        Raises:
            EngineError: Nothing answers there; the message is the bare reason.
        """
        self.endpoint = endpoint
        self._socket = endpoint.url.removeprefix("unix://") if endpoint.url.startswith("unix://") else None
        self._tunnel = Tunnel(endpoint.url) if endpoint.url.startswith("ssh://") else None
        self._patience = _CONNECT_TIMEOUT
        if self._tunnel is not None:
            self._socket, self._patience = self._tunnel.socket, _TUNNEL_TIMEOUT
        self._version = "auto"
        # Podman answers Docker's API, and says so here (pkg/api/handlers/compat/ping.go).
        self.podman = False
        if self._socket is None:
            with contextlib.closing(self._open(_CONNECT_TIMEOUT)) as api:
                self._version = str(api.api_version)
                self.podman = _is_podman(api)
            return
        try:
            # Not /version: for that one the engine starts runc and docker-init, and takes 10 ms in place of 1.
            _, headers, _ = net.unix_get(self._socket, "/_ping", timeout=self._patience)
        except OSError as error:
            raise EngineError(self._complaint() or root_cause(error)) from error
        if not headers.get("api-version"):
            raise EngineError("what answers there is not a Docker Engine")
        self._version = headers["api-version"]
        self.podman = "libpod-api-version" in headers

    @cached_property
    def api(self) -> APIClient:
        """docker-py, for calls that are answered soon."""
        return self._open(CALL_TIMEOUT)

    @contextlib.contextmanager
    def session(self, timeout: float) -> Iterator[APIClient]:
        """docker-py for calls that last: a connection with a time-out of its own (seconds), closed at the end."""
        api = self._open(timeout)
        try:
            yield api
        finally:
            api.close()

    def inspect_image(self, ref: str) -> dict[str, Any] | None:
        """What the engine says about an image; None when it has none of that name.

        Raises:
            OSError: The engine does not answer.
            docker.errors.DockerException: It answers with an error.
        """
        if self._socket is not None:
            return self._get(f"/v{self._version}/images/{quote(ref, safe='/:@')}/json")
        from docker.errors import NotFound

        try:
            found: dict[str, Any] = self.api.inspect_image(ref)  # type: ignore[no-untyped-call]
        except NotFound:
            return None
        return found

    def _get(self, target: str) -> dict[str, Any] | None:
        assert self._socket is not None
        status, _, body = net.unix_get(self._socket, target, timeout=self._patience)
        if status == 404:
            return None
        try:
            said = json.loads(body)
        except ValueError:
            said = None
        if status != 200 or not isinstance(said, dict):
            message = said.get("message") if isinstance(said, dict) else None
            raise EngineError(f"the engine answered with status {status}: {message or 'nothing that can be read'}")
        return said

    def _open(self, timeout: float) -> APIClient:
        import requests.exceptions
        from docker import APIClient
        from docker.errors import DockerException

        try:
            return APIClient(
                base_url=f"unix://{self._socket}" if self._socket else self.endpoint.url,
                version=self._version,
                timeout=int(timeout),
                tls=self._tls() or False,
            )
        except (DockerException, requests.exceptions.RequestException, OSError, ValueError) as error:
            raise EngineError(root_cause(error)) from error

    def _complaint(self) -> str:
        return self._tunnel.complaint() if self._tunnel is not None else ""

    def _tls(self) -> TLSConfig | None:
        folder = self.endpoint.tls
        if folder is None:
            return None
        from docker.errors import DockerException
        from docker.tls import TLSConfig

        pair = (str(folder / "cert.pem"), str(folder / "key.pem"))
        try:
            return TLSConfig(client_cert=pair, ca_cert=str(folder / "ca.pem"), verify=self.endpoint.verify)
        except DockerException as error:
            raise EngineError(f"its certificates in {folder} cannot be used: {explanation(error)}") from error


def _is_podman(api: APIClient) -> bool:
    from docker.errors import DockerException
    from requests.exceptions import RequestException

    try:
        components = api.version().get("Components") or ()
    except (DockerException, RequestException):
        return False
    return any("podman" in str(part.get("Name", "")).lower() for part in components)
