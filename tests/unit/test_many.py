"""Several rows in one run: how many at once, how much disk, what is told of each, and what the run ends with."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from envbuild.cli import failure, lines, many
from envbuild.cli.building import Asked
from envbuild.cli.display import make_sinks
from envbuild.engines import building
from envbuild.errors import GateError
from envbuild.events import Event, Note, PhaseDone, PhaseStarted, StepDone, StepLine, StepStarted, WorkDone
from envbuild.pipeline import room
from envbuild.pipeline.many import NOT_BEGUN, Outcome, stopped, worst
from envbuild.pipeline.room import Need, compilers, needed, rows_at_once

GIB = 1 << 30


@pytest.mark.parametrize(
    ("wanted", "rows", "cpus", "memory", "at_once"),
    [
        (1, 8, 64, 512, 1),
        (4, 8, 64, 512, 4),
        (4, 2, 64, 512, 2),  # no more than there are rows
        (8, 8, 2, 512, 2),  # than CPUs
        (8, 8, 64, 13, 3),  # than memory for each
        (8, 8, 64, 1, 1),  # and one always
    ],
)
def test_rows_at_once(wanted: int, rows: int, cpus: int, memory: int, at_once: int) -> None:
    assert rows_at_once(wanted, rows, cpus=cpus, memory_bytes=memory * GIB) == at_once


@pytest.mark.parametrize(
    ("cpus", "memory", "at_once", "each"),
    [(16, 256, 1, 16), (16, 256, 4, 4), (64, 32, 1, 16), (64, 32, 4, 4), (2, 1, 2, 1)],
)
def test_compilers_of_all_rows_fit_into_the_machine(cpus: int, memory: int, at_once: int, each: int) -> None:
    assert compilers(cpus=cpus, memory_bytes=memory * GIB, at_once=at_once) == each


def test_layers_that_rows_share_need_their_room_once() -> None:
    one, two = (Need(shares="torch", whole=1500, own=300) for _ in range(2))
    assert needed([one]) == 1500
    assert needed([one, two]) == 1500 + 300
    assert needed([one, Need(shares="other torch", whole=5000, own=900)]) == 6500
    there = Need(shares="torch", whole=1500, own=300, there=True)
    assert needed([one, there]) == 600, "an image of one of them has the shared layers already"
    assert needed([]) == 0


def test_too_little_room_names_both_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data").mkdir()
    engine = SimpleNamespace(kind="podman", local=True, info=lambda: SimpleNamespace(root=str(tmp_path / "data")))
    bench: Any = SimpleNamespace(engine=engine, cache=tmp_path / "not" / "yet")
    target: Any = SimpleNamespace(env=SimpleNamespace(name="cpu"))
    monkeypatch.setattr(room, "need_of", lambda bench, target: Need(shares=1, whole=3 * GIB, own=GIB))
    # Both folders are on one disk, so that what they need adds up.
    free = 4 * GIB
    monkeypatch.setattr(room.shutil, "disk_usage", lambda path: SimpleNamespace(free=free))
    with pytest.raises(Exception, match=r"4\.00 GiB free, and building cpu needs about 4\.10 GiB") as caught:
        room.require(bench, [target])
    assert caught.value.exit_code == 3  # type: ignore[attr-defined]
    assert "podman system df" in caught.value.hint  # type: ignore[attr-defined]
    free = 5 * GIB
    room.require(bench, [target])
    engine.local, free = False, 2 * GIB
    room.require(bench, [target])


def test_an_engine_whose_folder_is_closed_to_this_user_is_not_asked_for_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed, cache = tmp_path / "closed", tmp_path / "cache"
    (closed / "data").mkdir(parents=True)
    cache.mkdir()
    closed.chmod(0)
    engine = SimpleNamespace(kind="docker", local=True, info=lambda: SimpleNamespace(root=str(closed / "data")))
    bench: Any = SimpleNamespace(engine=engine, cache=cache)
    target: Any = SimpleNamespace(env=SimpleNamespace(name="cpu"))
    monkeypatch.setattr(room, "need_of", lambda bench, target: Need(shares=1, whole=GIB << 40, own=GIB))
    monkeypatch.setattr(room.shutil, "disk_usage", lambda path: SimpleNamespace(free=GIB << 10))
    with as_somebody():
        room.require(bench, [target])
    closed.chmod(0o700)


@contextlib.contextmanager
def as_somebody() -> Iterator[None]:
    """Without the rights of root, who may look everywhere."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)


def outcome(row: str, code: int) -> Outcome:
    return Outcome(row=row, status="failed" if code else "built", exit_code=code)


def test_the_worst_row_decides() -> None:
    assert worst([]) == 0
    assert worst([outcome("a", 0), outcome("b", 4), outcome("c", 3)]) == 4
    assert worst([outcome("a", 5), stopped("b", NOT_BEGUN)]) == 130


def test_every_row_of_the_document_has_the_same_keys() -> None:
    image = {"environment": "a", "target_id": "t", "status": "built", "id": "i", "tags": ["x"], "level": "cpu",
             "evidence": "e", "seconds": 1.0, "reason": "", "written": []}  # fmt: skip
    well = Outcome(row="a", status="built", exit_code=0, seconds=2.0, image=image).as_dict()
    ill = Outcome(row="b", status="failed", exit_code=5, error={"code": "gate"}).as_dict()
    assert well.keys() == ill.keys() == {*image, "exit_code", "error"}
    assert well["error"] is None and well["id"] == "i" and well["seconds"] == 2.0
    assert ill["error"] == {"code": "gate"} and ill["tags"] == [] and ill["level"] is None


STORY: list[Event] = [
    PhaseStarted(phase="build", detail="candidate"),
    StepStarted(key="4", name="[ops 1/1] RUN : compile"),
    StepLine(key="4", text='a "quoted" line ✓'),
    StepDone(key="4", name="[ops 1/1] RUN : compile", status="done", seconds=3.0),
    Note(message="slow mirror", level="warning"),
    PhaseDone(phase="build", seconds=4.0),
    WorkDone(detail="built", seconds=5.0, ok=True),
]


def test_what_a_row_tells_arrives_as_it_was(capsys: pytest.CaptureFixture[str]) -> None:
    for event in STORY:
        lines.tell(event)
    error = GateError("too little\nevidence", hint="prove it")
    ended = lines.Ended(image={}, error=failure.fields(error), told=failure.told(error))
    lines.end(ended)
    assert [lines.read(line) for line in capsys.readouterr().out.splitlines()] == [*STORY, ended]
    assert ended.told == ("error: too little", "evidence", "hint: prove it")


@pytest.mark.parametrize("line", ["", "Traceback (most recent call last):", "[]", "{}", '["Note"]', '["Note", {}]',
                                  '["Other", {"message": "x"}]', '["Ended", {}]', "[" * 100_000])  # fmt: skip
def test_other_words_are_no_events(line: str) -> None:
    assert lines.read(line) is None


def test_rows_are_told_apart_in_a_log() -> None:
    out = io.StringIO()
    with make_sinks(stream=out, environ={}) as sink_of:
        sink_of("a")(PhaseStarted(phase="build"))
        sink_of("b")(PhaseStarted(phase="smoke"))
        sink_of("a")(StepDone(key="4", name="RUN x", status="done", seconds=3.0))
        sink_of("b")(Note(message="hm"))
        sink_of("a")(WorkDone(detail="built", seconds=5.0, ok=True))
    assert out.getvalue().splitlines() == [
        "a: [build] started", "b: [smoke] started", "a: [build] #4 RUN x 3.0s done", "b: note: hm", "a: built 5.0s"
    ]  # fmt: skip


def test_a_row_of_its_own_is_asked_for_in_full() -> None:
    asked = Asked(
        no_cache=True, record=False, force=True, allow_level="cpu", gpus=None, timeout=60.0, smoke_timeout=30.0,
        compilers=None,
    )  # fmt: skip
    wanted = many.Wanted(
        rows=None,
        every=True,
        since=None,
        jobs=2,
        project=Path("/p"),
        host=None,
        engine="podman",
        builder=None,
        key="k.pem",
        asked=asked,
    )
    program, flag, code, command, *rest = wanted.argv("-row", 3)
    assert (program, flag, command) == (sys.executable, "-c", "build") and "import main" in code
    assert rest == [
        "--project=/p", "--engine=podman", "--key=k.pem", "--allow-level=cpu", "--timeout=60.0", "--smoke-timeout=30.0",
        "--compilers=3", "--no-cache", "--force", "--", "-row",
    ]  # fmt: skip


def test_a_failure_in_the_table_fits_the_reader_and_its_step_has_a_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    mounts = " ".join(f"--mount=type=secret,id=a-secret-{number},mode=0444" for number in range(9))
    step = building.short(f"[toolchain 2/2] RUN {mounts} : install the compiler; set -eu; {'x' * 300}")
    assert step.startswith("[toolchain 2/2] RUN : install the compiler") and len(step) == 200
    error = {"message": f"build step failed: {step}\n  E: no such package", "exit_code": 4}
    told = ("error: all of it", f"  {step}")
    failed = Outcome(row="a-row", status="failed", exit_code=4, seconds=61, error=error, told=told)
    many.show(
        [failed, Outcome(row="b", status="built", exit_code=0, image={"tags": ["b:1"], "level": "cpu"})], json=False
    )
    header, first, second = capsys.readouterr().out.splitlines()
    assert header.split() == ["ROW", "STATUS", "LEVEL", "TIME", "TAG"] and second.endswith("b:1")
    assert len(first) <= 80 and "[toolchain 2/2] RUN :" in first, first
    # Who reads the log of a CI sees no document.
    many.show([failed], json=True)
    assert "error: all of it" in capsys.readouterr().err
