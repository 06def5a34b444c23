"""A headless Chromium for tests, spoken to through pipes: no port, no network, a profile that goes with it."""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PROGRAMS = ("chromium-headless-shell", "chromium", "google-chrome")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--remote-debugging-pipe",
)  # fmt: skip
PATIENCE = 120


def program() -> str | None:
    """The browser, where there is one."""
    return next((found for name in PROGRAMS if (found := shutil.which(name))), None)


class Page:
    """One page, and everything that it complained about."""

    def __init__(self, send: int, receive: int) -> None:
        self._send, self._receive, self._rest, self._number = send, receive, b"", 0
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self._loaded = False
        self._session: str | None = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command and its answer; events that come before it are kept."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        self._write(json.dumps(message).encode() + b"\0")
        while True:
            told = self._next()
            if told.get("id") == self._number:
                assert "error" not in told, told
                return dict(told["result"])

    def open(self, path: Path) -> None:
        """Load a file, to its end."""
        self._loaded = False
        self.call("Page.navigate", url=path.as_uri())
        while not self._loaded:
            self._next()

    def size(self, width: int, height: int = 900) -> None:
        """The window."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def dark(self, wanted: bool) -> None:
        """What the reader prefers."""
        value = "dark" if wanted else "light"
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": value}])

    def ask(self, expression: str) -> Any:
        """What an expression comes to; it is not held to the page's own policy."""
        return self.call("Runtime.evaluate", expression=expression, returnByValue=True)["result"].get("value")

    def picture(self) -> bytes:
        """The whole page."""
        made = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        return base64.b64decode(made["data"])

    def pdf(self) -> bytes:
        """The page as it is printed."""
        made = self.call("Page.printToPDF", preferCSSPageSize=True, paperWidth=8.27, paperHeight=11.69)
        return base64.b64decode(made["data"])

    def _write(self, data: bytes) -> None:
        while data:
            data = data[os.write(self._send, data) :]

    def _next(self) -> dict[str, Any]:
        end = time.monotonic() + PATIENCE
        while b"\0" not in self._rest:
            assert select.select([self._receive], [], [], max(0.0, end - time.monotonic()))[0], "the browser is silent"
            piece = os.read(self._receive, 1 << 20)
            assert piece, "the browser ended"
            self._rest += piece
        line, _, self._rest = self._rest.partition(b"\0")
        told: dict[str, Any] = json.loads(line)
        self._note(told.get("method", ""), told.get("params", {}))
        return told

    def _note(self, method: str, told: dict[str, Any]) -> None:
        if method == "Page.loadEventFired":
            self._loaded = True
        elif method == "Network.requestWillBeSent":
            self.requests.append(told["request"]["url"])
        elif method == "Log.entryAdded":
            self.complaints.append(f"{told['entry']['level']}: {told['entry']['text']}")
        elif method in ("Runtime.consoleAPICalled", "Runtime.exceptionThrown"):
            self.complaints.append(json.dumps(told))


@contextlib.contextmanager
def browser() -> Iterator[Page]:
    """A browser of its own, with an empty profile; it is ended with the block."""
    found = program()
    assert found is not None, "there is no Chromium: make browser"
    with tempfile.TemporaryDirectory(prefix="browser-", ignore_cleanup_errors=True) as profile:
        theirs_in, ours_out = os.pipe()
        ours_in, theirs_out = os.pipe()
        # It reads descriptor 3 and writes 4: ours are first moved out of the way.
        high = [fcntl.fcntl(each, fcntl.F_DUPFD, 20) for each in (theirs_in, theirs_out)]

        def settle() -> None:
            os.dup2(high[0], 3)
            os.dup2(high[1], 4)

        child = subprocess.Popen(
            [found, *FLAGS, f"--user-data-dir={profile}"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, pass_fds=(3, 4), preexec_fn=settle,
        )  # fmt: skip
        for each in (theirs_in, theirs_out, *high):
            os.close(each)
        try:
            yield Page(ours_out, ours_in)
        finally:
            os.close(ours_out)
            try:
                child.wait(10)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
            os.close(ours_in)
