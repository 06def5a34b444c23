"""The only room that opens a socket (the engine's client library apart)."""

from envbuild.net.ask import Reply, answers, ask, unix_get
from envbuild.net.http import Client
from envbuild.net.types import Answer, Missing, NetworkError, NoRanges, TooLong
from envbuild.net.wire import TRICKLE, Broken, Route, Wire

__all__ = [
    "TRICKLE",
    "Answer",
    "Broken",
    "Client",
    "Missing",
    "NetworkError",
    "NoRanges",
    "Reply",
    "Route",
    "TooLong",
    "Wire",
    "answers",
    "ask",
    "unix_get",
]
