"""How the results of a run on a cluster are shown: as those of the command that began it, with who did each."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import pytest

from envbuild.cli import cluster
from envbuild.cli.cluster import How
from envbuild.executors import Attempt, Run, Submission, Task
from envbuild.executors.follow import Ending
from envbuild.pipeline.cluster import Result

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


def shown(command: str, results: list[Result], capsys: pytest.CaptureFixture[str], *, as_json: bool = True) -> Any:
    run = Run(
        schema="envbuild.run/1", id="r", command=command, envbuild="0", begun=NOW,
        program=("envbuild",), tasks=tuple(Task(name=each.name, argv=()) for each in results),
        submissions=(Submission(tasks=(0,), script="x", argv=()),),
    )  # fmt: skip
    cluster._SHOWN.get(command, cluster._show)(run, results, How(json=as_json))
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
    document = shown("profile", [done("a", measurement={"x": 1}), failed("b")], capsys)
    a, b = document["tasks"]
    assert document["schema"] == "envbuild.profile/1" and a["measurement"] == {"x": 1} and a["node"] == "n1"
    assert (b["schema"], b["exit_code"], b["message"]) == ("envbuild.error/1", 5, "too little")
