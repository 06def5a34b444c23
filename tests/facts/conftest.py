"""Upstream itself: the package indexes that pip uses here. Run on demand (`make facts`); `make test` needs none of it.

What was read stays in the user's cache, so that a second run asks for little. With FACTS_REPORT=FILE the run is written
down as a document.
"""

from __future__ import annotations

import datetime
import os
import platform
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from envbuild import __version__, facts, project, store
from envbuild.events import discard
from envbuild.facts import Facts
from envbuild.facts.refresh import deepspeed, nvidia, torch
from envbuild.facts.refresh.reading import Notebook
from envbuild.facts.upstream import Upstream
from envbuild.site import config
from envbuild.site.pip import pip_settings

FOLDER = project.own_root() / "facts"
_said: dict[str, list[tuple[str, str]]] = {}
_outcomes: dict[str, int] = {"passed": 0, "failed": 0, "skipped": 0}


@pytest.fixture(scope="session")
def upstream() -> Upstream:
    """The reader, with this host's own pip settings."""
    site = config.load(None, os.environ)
    return Upstream(pip_settings(site, os.environ), store.cache(site.paths.cache) / "upstream")


@pytest.fixture(scope="session")
def known() -> Facts:
    """The shipped facts."""
    return facts.load([FOLDER])


@pytest.fixture(scope="session")
def book(upstream: Upstream, known: Facts) -> Notebook:
    """Everything that upstream says today."""
    found = Notebook(upstream=upstream, facts=known, deep=bool(os.environ.get("FACTS_DEEP")))
    for read in (torch.read, deepspeed.read, nvidia.read_nccl, nvidia.read_toolkits):
        read(found, discard)
    return found


@pytest.fixture
def say(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Write a line of the report, under the name of the test's module."""

    def line(subject: str, text: str) -> None:
        _said.setdefault(request.module.__doc__.partition("\n")[0].rstrip("."), []).append((subject, text))

    yield line


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call" or (report.when == "setup" and report.outcome != "passed"):
        _outcomes[report.outcome] += 1


def pytest_sessionfinish(session: pytest.Session) -> None:
    path = os.environ.get("FACTS_REPORT")
    if not path:
        return
    verdict = "failed" if _outcomes["failed"] else "passed"
    today = datetime.date.today()
    lines = [
        f"# Facts, {today}: {verdict}",
        "",
        f"`make facts`: the pinned facts, read again from the wheels and source archives that prove them. "
        f"{_outcomes['passed']} proven, {_outcomes['failed']} contradicted, {_outcomes['skipped']} not provable here.",
    ]
    for title, rows in _said.items():
        lines += ["", f"## {title}", "", "| what | read |", "|---|---|", *(f"| {one} | {two} |" for one, two in rows)]
    lines += ["", f"envbuild {__version__}, Python {platform.python_version()}."]
    Path(path).write_text("\n".join(lines) + "\n")
