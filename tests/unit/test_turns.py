"""Taking turns on one machine: how many build and train at a time."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from envbuild.pipeline import turns
from envbuild.pipeline.smoking import CPU, Device

GPUS = Device(accelerator="cuda", ranks=0, gpus=("GPU-1",))


def bench(cpus: int, notes: list[str], endpoint: str = "unix:///run/docker.sock") -> Any:
    engine = SimpleNamespace(
        endpoint=endpoint, local=endpoint.startswith("unix:"), info=lambda: SimpleNamespace(cpus=cpus)
    )
    return SimpleNamespace(engine=engine, sink=lambda event: notes.append(event.message))


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENVBUILD_HOME", str(tmp_path))
    monkeypatch.setattr(turns, "_LOOK_AGAIN", 0.01)


@pytest.mark.parametrize(
    ("turn", "cpus", "places"),
    [
        (turns.building, 0, 1), (turns.building, 2, 1), (turns.building, 3, 1), (turns.building, 9, 4),
        (lambda there: turns.training(there, CPU), 0, 1), (lambda there: turns.training(there, CPU), 7, 1),
        (lambda there: turns.training(there, CPU), 8, 2), (lambda there: turns.training(there, GPUS), 64, 1),
    ],
)  # fmt: skip
def test_as_many_at_a_time_as_there_are_places_and_the_others_follow(turn: Any, cpus: int, places: int) -> None:
    inside, most, notes, lock = 0, 0, [], threading.Lock()
    full = threading.Barrier(places)

    def work() -> None:
        nonlocal inside, most
        with turn(bench(cpus, notes)):
            with lock:
                inside += 1
                most = max(most, inside)
            # Everybody waits until every place is taken: with one place too few this never ends.
            full.wait(timeout=20)
            with lock:
                inside -= 1

    threads = [threading.Thread(target=work) for _ in range(2 * places)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(timeout=30)
    assert not any(each.is_alive() for each in threads) and not full.broken
    assert most == places and inside == 0


def test_who_waits_says_so_once_and_another_engine_is_another_machine() -> None:
    notes: list[str] = []
    first = turns.training(bench(2, notes), CPU)
    first.__enter__()
    with turns.training(bench(2, notes, "ssh://elsewhere"), CPU), turns.building(bench(2, notes)):
        assert notes == [], "neither another engine nor another kind of work is waited for"
    second = threading.Thread(target=lambda: turns.training(bench(2, notes), CPU).__enter__())
    second.start()
    second.join(timeout=0.2)
    assert second.is_alive() and len(notes) == 1 and "CPUs" in notes[0]
    first.__exit__(None, None, None)
    second.join(timeout=20)
    assert not second.is_alive()


@pytest.mark.parametrize(("endpoint", "waits"), [("unix:///run/docker.sock", False), ("ssh://farm", True)])
def test_hosts_with_one_store_wait_for_an_engine_that_they_share(
    monkeypatch: pytest.MonkeyPatch, endpoint: str, waits: bool
) -> None:
    notes: list[str] = []
    with turns.building(bench(2, notes, endpoint)):
        monkeypatch.setattr(turns.platform, "node", lambda: "another-host")
        second = threading.Thread(target=lambda: turns.building(bench(2, notes, endpoint)).__enter__())
        second.start()
        second.join(timeout=0.2 if waits else 20)
        assert second.is_alive() == waits
    second.join(timeout=20)
    assert not second.is_alive() and bool(notes) == waits


def test_a_turn_that_fails_is_given_back() -> None:
    for _ in range(2):
        with pytest.raises(KeyError), turns.building(bench(2, [])):
            raise KeyError("x")
