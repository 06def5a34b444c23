"""What is kept of a bare host carries nobody's name."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from envbuild.pipeline import bare


def test_names_are_masked_in_texts_and_nowhere_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "node", lambda: "torch")  # a host may be called like a key of the report
    monkeypatch.setattr(Path, "home", lambda: Path("/home/ann"))
    report = {"torch": {"file": "/home/ann/v/torch.py", "ok": True}, "log": ["/home/anna/x", "at torch: no", 3, None]}
    assert bare._masked(report) == {
        "torch": {"file": "~/v/host.py", "ok": True},
        "log": ["/home/anna/x", "at host: no", 3, None],
    }
