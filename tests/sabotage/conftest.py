"""The sabotages of this run, judged two at a time while the tests wait for them in order; and the table at the end."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from envbuild.engines import DockerEngine
from proving import REGISTRY, Cli
from sabotage.court import Court, Verdict, judge
from sabotage.sabotage import Sabotage
from sabotage.table import Row, lines

# Reading an image keeps one core busy, and another one the engine that exports it.
_AT_ONCE = 2
_TABLE = pytest.StashKey[list[Row]]()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything in this folder carries the marker."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.integration)


class Verdicts:
    """What the court says, by the sabotage; noted for the table."""

    def __init__(self, pending: dict[str, Future[Verdict]], rows: list[Row]) -> None:
        self._pending, self._rows = pending, rows

    def of(self, sabotage: Sabotage) -> Verdict:
        """Wait for one."""
        try:
            verdict = self._pending[sabotage.id].result()
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
    pool = ThreadPoolExecutor(_AT_ONCE)
    try:
        pending = {each.id: pool.submit(judge, court, each) for each in wanted}
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
