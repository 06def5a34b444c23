"""The only room that opens a socket (the engine's client library apart)."""

from envbuild.net.ask import answers, unix_get
from envbuild.net.http import Client
from envbuild.net.relay import Relay
from envbuild.net.types import Answer, Missing, NetworkError, NoRanges, TooLong, Untrusted
from envbuild.net.wire import TRICKLE, Broken, Route, Wire

__all__ = [
    "TRICKLE",
    "Answer",
    "Broken",
    "Client",
    "Missing",
    "NetworkError",
    "NoRanges",
    "Relay",
    "Route",
    "TooLong",
    "Untrusted",
    "Wire",
    "answers",
    "unix_get",
]
