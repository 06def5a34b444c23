"""What an answer means that is none: to whom it refuses what, and whether it may be another one later."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from envbuild.net import Missing, NetworkError
from envbuild.registry.credentials import Account
from envbuild.registry.types import AGAIN_HINT, Access, Again, NoAccess

AGAIN = frozenset({408, 429, 500, 502, 503, 504})


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """An answer of a registry that is no answer to what was asked.

    Attributes:
        address: The registry's.
        place: What was asked, without secrets.
        said: Its own words.
        asked: How long it asks to be left alone (seconds).
    """

    address: str
    place: str
    status: int
    said: str
    asked: float

    def error(self, access: Access, login: Callable[[Access], Account | None]) -> NetworkError:
        """The error that says so."""
        failure = self._error(access, login)
        failure.status = self.status
        failure.wait = self.asked if self.status in AGAIN else 0.0
        return failure

    def _error(self, access: Access, login: Callable[[Access], Account | None]) -> NetworkError:
        tail = f": {self.said}" if self.said else ""
        if self.status == 404:
            return Missing(f"{self.place}: not there (404){tail}")
        if self.status in (401, 403):
            account = login(access)
            who = f"the login from {account.origin}" if account else "somebody without a login"
            do = "push to" if access.push else "pull from"
            command = f"docker login {self.address}"
            return NoAccess(
                f"{self.address}: {who} may not {do} {access.repository} ({self.status}){tail}",
                hint=f"{command} as somebody who may" if account else f"Log in, and this uses it too: {command}",
            )
        patience = f", and asks to wait {self.asked:.0f} seconds" if self.asked else ""
        message = f"{self.place}: the registry answers {self.status}{patience}{tail}"
        return Again(message, hint=AGAIN_HINT) if self.status in AGAIN else NetworkError(message)
