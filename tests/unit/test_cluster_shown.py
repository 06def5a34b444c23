"""How the results of a run on a cluster are shown: as those of the command that began it, with who did each."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import pytest

from envbuild.cli import shown as showing
from envbuild.cli.cluster import How
from envbuild.cli.comparison import EXIT_CODES, as_dict
from envbuild.executors import Attempt, Run, Submission, Task
from envbuild.executors.follow import Ending
from envbuild.pipeline import brought
from envbuild.pipeline.cluster import Result
from envbuild.pipeline.sessions import SIDES
from envbuild.profile import comparing, files
from envbuild.profile.document import Node
from measured import launch, measurement, turns

IMAGE = {"environment": "a", "status": "built", "level": "cpu", "tags": ["reg/a:1"], "id": "sha256:1"}
ERROR = {"schema": "envbuild.error/1", "code": "gate", "message": "too little", "hint": "prove it"}
NOW = datetime.datetime(2026, 11, 30, tzinfo=datetime.timezone.utc)
ATTEMPT = Attempt(path=Path("/nowhere/1"), number=1)


def done(name: str, **document: Any) -> Result:
    ending = Ending(code=0, job="7_0", node="n1", seconds=61.0, attempt=ATTEMPT)
    return Result(name=name, ending=ending, document={"schema": "envbuild.smoke/1", **document})


def failed(name: str) -> Result:
    ending = Ending(code=5, job="7_1", node="n2", seconds=2.0, attempt=ATTEMPT)
    return Result(name=name, ending=ending, document=ERROR, told=("error: too little",))


def cancelled(name: str) -> Result:
    return Result(name=name, ending=Ending(code=130, job="7_2", interrupted=True))


def shown(
    command: str, results: list[Result], capsys: pytest.CaptureFixture[str], *, as_json: bool = True, **more: Any
) -> Any:
    run = Run(
        schema="envbuild.run/1", id="r", command=command, envbuild="0", begun=NOW,
        program=("envbuild",), tasks=tuple(Task(name=each.name, argv=()) for each in results),
        submissions=(Submission(tasks=(0,), script="x", argv=()),), **more,
    )  # fmt: skip
    showing.show(run, results, How(json=as_json))
    said = capsys.readouterr()
    return json.loads(said.out) if as_json else (said.out, said.err)


def test_rows_are_a_table_with_their_nodes(capsys: pytest.CaptureFixture[str]) -> None:
    results = [done("a", images=[IMAGE]), failed("b"), cancelled("c")]
    out, err = shown("build", results, capsys, as_json=False)
    head, a, b, c = (line.split() for line in out.splitlines())
    assert head == ["ROW", "STATUS", "LEVEL", "NODE", "TIME", "TAG"]
    assert a == ["a", "built", "cpu", "n1", "1m", "01s", "reg/a:1"]
    assert b[:4] == ["b", "failed", "-", "n2"] and c[:3] == ["c", "not", "begun"]
    assert "b:\n  error: too little" in err


def test_rows_are_one_document(capsys: pytest.CaptureFixture[str]) -> None:
    document = shown("build", [done("a", images=[IMAGE]), failed("b"), cancelled("c")], capsys)
    a, b, c = document["images"]
    assert (document["schema"], document["run"]) == ("envbuild.build/1", "r")
    assert (a["node"], a["job"], a["tags"]) == ("n1", "7_0", ["reg/a:1"])
    assert b["error"] == {"code": "gate", "message": "too little", "hint": "prove it"} and b["exit_code"] == 5
    assert (c["status"], c["node"]) == ("not begun", None)


def test_a_smoke_is_its_own_document_with_its_node(capsys: pytest.CaptureFixture[str]) -> None:
    document = shown("smoke", [done("a", level="cpu", image="a:1")], capsys)
    assert document == {
        "schema": "envbuild.smoke/1", "level": "cpu", "image": "a:1", "node": "n1", "job": "7_0", "run": "r",
    }  # fmt: skip
    assert shown("smoke", [failed("a")], capsys) == {**ERROR, "node": "n2", "job": "7_1", "run": "r"}
    assert shown("smoke", [cancelled("a")], capsys)["code"] == "interrupted"
    out, _ = shown("smoke", [cancelled("a")], capsys, as_json=False)
    assert out == "a: was cancelled, and nothing was tagged\n"
    out, _ = shown("smoke", [done("a", level="cpu", image="a:1", reused=True)], capsys, as_json=False)
    assert out == "a:1 has passed at level cpu on n1 (job 7_0)\n"


def test_any_other_command_shows_what_its_tasks_say(capsys: pytest.CaptureFixture[str]) -> None:
    document = shown("lint", [done("a", findings=[{"x": 1}]), failed("b")], capsys)
    a, b = document["tasks"]
    assert document["schema"] == "envbuild.lint/1" and a["findings"] == [{"x": 1}] and a["node"] == "n1"
    assert (b["schema"], b["exit_code"], b["message"]) == ("envbuild.error/1", 5, "too little")


def test_a_measurement_lies_where_it_was_asked_for_and_names_its_node(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever attaches gets the file: the run knows where it goes; what is printed is the file that others read."""
    made = measurement(launch([0.1] * 3, nodes=[]), side="base")
    result = done("cpu", **{**files.document(made), "schema": "envbuild.profile/1"})
    path = tmp_path / "m.json"
    document = shown("profile", [result], capsys, out=path)
    assert files.read(path) == files.measurement(document, "what was printed")
    assert files.read(path).launches[0].nodes == (Node(name="n1"),) and files.read(path).key == made.key
    out, err = shown("profile", [result], capsys, as_json=False, out=path)
    assert out.endswith(f"measurement  {path}\n") and "measured on n1 (job 7_0)" in err
    # One that has named its nodes itself keeps their names.
    several = measurement(launch([0.1] * 3, nodes=[{"name": "n8"}, {"name": "n9"}]))
    shown("profile", [done("cpu", **files.document(several))], capsys, out=path)
    assert [each.name for each in files.read(path).launches[0].nodes] == ["n8", "n9"]
    assert shown("profile", [failed("cpu")], capsys, out=path)["code"] == "gate"
    out, _ = shown("profile", [cancelled("cpu")], capsys, as_json=False)
    assert out == "cpu: was cancelled\n", "a measurement tags nothing anyway"


def compared(folder: Path, base: list[float], candidate: list[float]) -> tuple[Result, str]:
    """A comparison as a node leaves it: its exit code is the verdict's."""
    sides = [
        measurement(*turns(side, values), side=side) for side, values in zip(SIDES, (base, candidate), strict=True)
    ]
    brought.leave(folder, *sides)
    asked = comparing.Asked()
    found = comparing.compare(sides[0], sides[1], asked)
    document = {"schema": "envbuild.compare/1", "comparison": json.loads(json.dumps(as_dict(found, asked)))}
    attempt = Attempt(path=folder, number=1)
    attempt.result.write_text(json.dumps(document))
    ending = Ending(code=EXIT_CODES[found.verdict], job="7_0", node="n1", attempt=attempt)
    return Result(name="a b", ending=ending, document=document), found.verdict


def test_a_verdict_comes_back_with_both_sides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ENVBUILD_HOME", str(tmp_path / "home"))
    steady = [1.0, 1.001, 0.999, 1.0, 1.002, 0.998, 1.0, 1.001, 0.999, 1.0]
    result, verdict = compared(tmp_path, steady, [1.2 * each for each in steady])
    assert verdict == "regressed" and result.ending.code == 1 and result.error == {}
    out, err = shown("compare", [result], capsys, as_json=False)
    assert out.startswith("regressed: ") and "over 10 rounds" in out and "failed" not in out + err
    assert "launched in turns on n1 (job 7_0)" in err
    document = shown("compare", [result], capsys)
    assert document["comparison"]["verdict"] == "regressed" and (document["node"], document["run"]) == ("n1", "r")
    kept = [files.read(Path(path)) for path in document["measurements"]]
    assert [len(each.launches) for each in kept] == [10, 10] and kept[0].launches[0].nodes == (Node(name="n1"),)
    assert result.ending.attempt is not None and brought.verdict(result.ending.attempt) == "regressed"
    # One that came to no verdict is an error like any other.
    assert shown("compare", [failed("a b")], capsys)["message"] == "too little"
