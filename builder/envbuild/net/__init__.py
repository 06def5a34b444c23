"""The only room that opens a socket (the engine's client library apart)."""

from envbuild.net.ask import Reply, answers, ask, unix_get
from envbuild.net.http import Client, Route
from envbuild.net.types import Answer, Missing, NetworkError, NoRanges

__all__ = ["Answer", "Client", "Missing", "NetworkError", "NoRanges", "Reply", "Route", "answers", "ask", "unix_get"]
