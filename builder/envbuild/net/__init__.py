"""The only room that opens a socket (the engine's client library apart)."""

from envbuild.net.ask import Reply, answers, ask, unix_get
from envbuild.net.http import Client
from envbuild.net.types import Answer, Missing, NetworkError, NoRanges
from envbuild.net.wire import Broken, Route, Wire

__all__ = [
    "Answer",
    "Broken",
    "Client",
    "Missing",
    "NetworkError",
    "NoRanges",
    "Reply",
    "Route",
    "Wire",
    "answers",
    "ask",
    "unix_get",
]
