"""Launches in turns: their order, what a killed session keeps, and when a question is a new one."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from envbuild.cli import measures
from envbuild.errors import GateError
from envbuild.pipeline import sessions
from envbuild.pipeline.profile_wish import Wish
from envbuild.pipeline.training_config import training_config
from envbuild.profile import comparing
from envbuild.profile.document import Measurement
from measured import launch, measurement


def side(image: str, **wish: Any) -> sessions.Side:
    subject = SimpleNamespace(
        info=SimpleNamespace(id=image), config=training_config(None, accelerator="cpu"),
        decision=SimpleNamespace(gpus=()),
    )  # fmt: skip
    return sessions.Side(subject=subject, wish=Wish(**wish))  # type: ignore[arg-type]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ENVBUILD_HOME", str(tmp_path))
    return tmp_path


class Measuring:
    """Launches that cost nothing; one of them may be the last."""

    def __init__(self, until: int | None = None) -> None:
        self.made: list[tuple[str, tuple[str, ...]]] = []
        self.until = until

    def __call__(self, bench: Any, subject: Any, wish: Wish) -> Measurement:
        if self.until is not None and len(self.made) == self.until:
            raise KeyboardInterrupt
        self.made.append((subject.info.id, wish.passes))
        which = "base" if subject.info.id == "a" else "candidate"
        return measurement(*(launch([1.0] * 8, **{"pass": name}) for name in wish.passes), side=which)


def bench() -> Any:
    told: list[Any] = []
    return SimpleNamespace(sink=told.append, told=told)


def test_both_sides_take_turns_and_a_killed_session_goes_on(home: Path) -> None:
    first = Measuring(until=3)
    session = sessions.session_of(side("a"), side("b"), 3)
    with pytest.raises(KeyboardInterrupt):
        sessions.launch(bench(), session, first)
    assert [image for image, _ in first.made] == ["a", "b", "b"]
    assert [passes for _, passes in first.made] == [("timing", "parity")] * 2 + [("timing",)]
    again = Measuring()
    place = bench()
    same = sessions.session_of(side("a"), side("b"), 3)
    assert same.name == session.name and same.left() == [2, 3, 4, 5], (
        "a round is launched whole, or the time between would be one side's"
    )
    base, candidate = sessions.launch(place, same, again)
    assert [image for image, _ in again.made] == ["b", "a", "a", "b"]
    assert "2 of 6 launches" in place.told[0].message
    paired = comparing.rounds(base, candidate)
    assert [(one.turn and one.turn.position, two.turn and two.turn.position) for one, two in paired] == [
        (0, 1), (3, 2), (4, 5),
    ]  # fmt: skip
    assert {each.turn.session for pair in paired for each in pair if each.turn} == {session.name}


def test_a_session_does_not_go_on_behind_a_change_of_the_machine(home: Path) -> None:
    session = sessions.session_of(side("a"), side("b"), 3)
    with pytest.raises(KeyboardInterrupt):
        sessions.launch(bench(), session, Measuring(until=2))

    def updated(place: Any, subject: Any, wish: Wish) -> Measurement:
        made = Measuring()(place, subject, wish)
        return made.model_copy(update={"key": made.key.model_copy(update={"torch": "2.14.0"})})

    with pytest.raises(GateError, match=r"the candidate was launched on something else: torch: 2.13.0 -> 2.14.0"):
        sessions.launch(bench(), session, updated)
    assert sessions.session_of(side("a"), side("b"), 3).left() == [*range(6)], "a new session"


def test_the_half_of_a_round_is_not_kept_beside_a_later_one(home: Path) -> None:
    session = sessions.session_of(side("a"), side("b"), 2)
    sessions.launch(bench(), session, Measuring())
    session.place(0).unlink()
    with pytest.raises(KeyboardInterrupt):
        sessions.launch(bench(), session, Measuring(until=1))
    assert session.left() == [0, 1]


def test_two_nodes_that_share_a_store_do_not_share_a_session(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A launch here against a launch there compares the machines."""
    names = []
    for node in ("n1", "n2", "n1"):
        monkeypatch.setenv("SLURMD_NODENAME", node)
        names.append(sessions.session_of(side("a"), side("b"), 3).name)
    assert names[0] == names[2] != names[1]


def test_what_was_launched_is_kept_until_it_was_told(home: Path) -> None:
    session = sessions.session_of(side("a"), side("b"), 2)
    first = sessions.launch(bench(), session, Measuring())
    # Killed here, before anybody has written down what it came to.
    again = sessions.session_of(side("a"), side("b"), 2)
    assert again.name == session.name and again.left() == []
    place = bench()
    assert sessions.launch(place, again, Measuring(until=0)) == first
    assert "has all its 4 launches already" in place.told[0].message
    sessions.finish(session.name)
    assert sessions.session_of(side("a"), side("b"), 2).left() == [0, 1, 2, 3]


def killed(*_: Any, **__: Any) -> None:
    raise KeyboardInterrupt


def test_compare_is_finished_when_it_has_told_its_answer(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    question = side("a"), side("b")
    app = typer.Typer()
    measures.register(app)
    monkeypatch.setattr(measures.cluster, "on_cluster", lambda *_, **__: False)

    def launched(*_: Any, **__: Any) -> Any:
        return sessions.launch(bench(), sessions.session_of(*question, 1), Measuring())

    monkeypatch.setattr(measures.launching, "launched", launched)
    with monkeypatch.context() as patch:
        patch.setattr(measures.output, "document", killed)
        assert CliRunner().invoke(app, ["compare", "a:1", "b:1", "--json"]).exit_code == 130
    assert sessions.session_of(*question, 1).left() == []
    done = CliRunner().invoke(app, ["compare", "a:1", "b:1", "--json"])
    assert done.exit_code == 5 and '"inconclusive"' in done.output
    assert sessions.session_of(*question, 1).left() == [0, 1]


def test_a_finished_session_is_left_alone(home: Path) -> None:
    session = sessions.session_of(side("a"), side("b"), 1)
    sessions.launch(bench(), session, Measuring())
    sessions.finish(session.name)
    new = sessions.session_of(side("a"), side("b"), 1)
    assert new.name != session.name and new.left() == [0, 1]
    with pytest.raises(KeyboardInterrupt):
        sessions.launch(bench(), new, Measuring(until=1))
    assert sessions.session_of(side("a"), side("b"), 1).name == new.name
    assert sessions.session_of(side("a"), side("b"), 1, fresh=True).name not in {session.name, new.name}


def test_another_question_is_another_session(home: Path) -> None:
    names = {
        sessions.session_of(*sides, rounds).name
        for sides, rounds in [
            ((side("a"), side("b")), 1), ((side("b"), side("a")), 1), ((side("a"), side("b")), 2),
            ((side("a"), side("b", steps=3)), 1), ((side("a"), side("b", model="small")), 1),
        ]
    }  # fmt: skip
    assert len(names) == 5
    patient = dataclasses.replace(side("b").wish, timeout=5.0)
    waiting = sessions.Side(subject=side("b").subject, wish=patient)
    assert sessions.session_of(side("a"), waiting, 1).name in names, "how long it may take is no part of the question"
