"""The sabotages of this run, judged two at a time while the tests wait for them in order; and the table at the end."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from envbuild.engines import DockerEngine
from proving import REGISTRY, Cli
from sabotage.court import Court, Verdict, judge, name_of
from sabotage.sabotage import Sabotage
from sabotage.table import Row, lines

# Reading an image keeps one core busy, and the engine that exports it another one.
_AT_ONCE = max(2, min(6, (os.cpu_count() or 2) // 2))
_TABLE = pytest.StashKey[list[Row]]()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything in this folder carries the marker."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.integration)


class Verdicts:
    """What the court says, by the sabotage; noted for the table."""

    def __init__(self, pending: dict[str, tuple[str, Future[Verdict]]], rows: list[Row]) -> None:
        self._pending, self._rows = pending, rows

    def name(self, sabotage: Sabotage) -> str:
        """The name of the image that it was done to."""
        return self._pending[sabotage.id][0]

    def of(self, sabotage: Sabotage) -> Verdict:
        """Wait for one."""
        try:
            verdict = self._pending[sabotage.id][1].result()
        except BaseException as error:
            self._rows.append(Row.of(sabotage, None, str(error)))
            raise
        self._rows.append(Row.of(sabotage, verdict))
        return verdict


@pytest.fixture(scope="session")
def verdicts(
    request: pytest.FixtureRequest, proven: dict[str, object], engine: DockerEngine, cli: Cli, store_home: Path
) -> Iterator[Verdicts]:
    """Begins with every sabotage that this run has selected."""
    folder = Path(tempfile.mkdtemp(prefix="envbuild-sabotage-"))
    court = Court(
        engine=engine,
        good=str(proven["tags"][0]),  # type: ignore[index]
        record=Path(str(proven["evidence"])),
        names=f"{REGISTRY}/sabotage",
        cli=cli,
        folder=folder,
    )
    calls = [getattr(item, "callspec", None) for item in request.session.items]
    wanted: list[Sabotage] = [call.params["sabotage"] for call in calls if call and "sabotage" in call.params]
    together = tuple(each for each in wanted if each.together and not os.environ.get("SABOTAGE_ALONE"))
    images = [*((together,) if together else ()), *((each,) for each in wanted if each not in together)]
    pool = ThreadPoolExecutor(_AT_ONCE)
    try:
        pending = {}
        for faults in images:
            future = pool.submit(judge, court, faults)
            pending |= {each.id: (name_of(court, faults), future) for each in faults}
        yield Verdicts(pending, request.config.stash.setdefault(_TABLE, []))
    finally:
        pool.shutdown(cancel_futures=True)
        shutil.rmtree(folder, ignore_errors=True)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """The table: fault, finding, caught."""
    rows = config.stash.get(_TABLE, [])
    if rows:
        terminalreporter.section("sabotages")
        for line in lines(rows):
            terminalreporter.write_line(line)
