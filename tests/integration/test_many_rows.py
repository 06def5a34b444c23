"""Several rows in one run, with real processes and the real engine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from envbuild import process
from envbuild.lock import read, write
from envbuild.lock.ask import inputs_digest
from envbuild.matrix import load
from envbuild.model import Environment
from proving import ENVBUILD, REPOSITORY, Cli, surroundings, wait_for

# Answers to being told to end, as envbuild does: it clears up, says so, and ends with 130.
_PATIENT = """
import signal, sys, time
def end(*_):
    print("clearing up", flush=True)
    sys.exit(130)
signal.signal(signal.SIGTERM, end)
print("begun", flush=True)
time.sleep(600)
"""


class Heard:
    """What a crew's members said, and how they ended."""

    def __init__(self) -> None:
        self.running: set[str] = set()
        self.most = 0
        self.lines: list[tuple[str, str]] = []
        self.codes: dict[str, int] = {}

    def start(self, name: str) -> None:
        self.running.add(name)
        self.most = max(self.most, len(self.running))

    def line(self, name: str, line: str) -> None:
        self.lines.append((name, line))

    def end(self, name: str, code: int) -> None:
        self.running.remove(name)
        self.codes[name] = code


def member(name: str, program: str) -> process.Member:
    return process.Member(name=name, argv=(sys.executable, "-c", program))


def test_a_member_that_fails_leaves_the_others_alone() -> None:
    heard = Heard()
    programs = {
        "a": "print('1'); print('2', end='')",
        "b": "import os; os.kill(os.getpid(), 9)",
        "c": "exit(4)",
        "d": "",
    }
    process.crew(
        [member(*each) for each in programs.items()],
        at_once=2, on_start=heard.start, on_line=heard.line, on_end=heard.end,
    )  # fmt: skip
    assert heard.codes == {"a": 0, "b": -signal.SIGKILL, "c": 4, "d": 0} and heard.most == 2
    assert heard.lines == [("a", "1"), ("a", "2")]


def test_an_interruption_ends_every_member_and_hears_it_out() -> None:
    heard = Heard()

    def line(name: str, line: str) -> None:
        heard.line(name, line)
        if [text for _, text in heard.lines] == ["begun", "begun"]:
            raise KeyboardInterrupt

    members = [member(name, _PATIENT) for name in ("a", "b", "c")]
    with pytest.raises(KeyboardInterrupt):
        process.crew(members, at_once=2, on_start=heard.start, on_line=line, on_end=heard.end)
    assert heard.codes == {"a": 130, "b": 130}, "the third was never begun"
    assert sorted(heard.lines[2:]) == [("a", "clearing up"), ("b", "clearing up")]


def locked(folder: Path, env: Environment) -> None:
    """The wheels of the row cpu as the lock of another row."""
    lock = read(REPOSITORY / "images" / "cpu" / "lock.json")
    changes = {"environment": env.name, "base": None, "inputs": inputs_digest(env, lock.platform)}
    write(folder / "images" / env.name / "lock.json", lock.model_copy(update=changes))


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The row cpu as it is in the repository, and rows that fail: its base cannot be had, its lock is none."""
    document = yaml.safe_load((REPOSITORY / "matrix.yaml").read_text())
    row = document["environments"]["cpu"]
    away = {**row, "base": {"image": "127.0.0.1:1/nobody/there:1"}}
    rows = {"away": away, "garbled": row, "cpu": row}
    (tmp_path / "matrix.yaml").write_text(yaml.safe_dump({**document, "environments": rows}))
    matrix = load(tmp_path / "matrix.yaml")
    for name in rows:
        (tmp_path / "images" / name).mkdir(parents=True)
        locked(tmp_path, matrix.get(name))
    (tmp_path / "images" / "cpu" / "lock.json").write_bytes((REPOSITORY / "images" / "cpu" / "lock.json").read_bytes())
    (tmp_path / "images" / "garbled" / "lock.json").write_text("{")
    return tmp_path


def build(project: Path, home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    argv = [ENVBUILD, "build", *arguments, "--project", str(project)]
    return subprocess.run(
        argv, cwd=project, env=surroundings(home), capture_output=True, text=True, timeout=120, check=False
    )


def test_rows_that_fail_each_say_why_and_the_highest_code_counts(project: Path, store_home: Path) -> None:
    # A module of the current folder is no module of ours.
    (project / "typer.py").write_text("raise SystemExit('not that one')")
    done = build(project, store_home, "garbled", "away", "-j", "2", "--json")
    document = json.loads(done.stdout)
    assert document["schema"] == "envbuild.build/1" and done.returncode == 3
    garbled, away = document["images"]
    assert (garbled["environment"], garbled["status"], garbled["exit_code"]) == ("garbled", "failed", 1)
    assert "lock.json" in garbled["error"]["message"] and garbled["tags"] == []
    assert (away["environment"], away["exit_code"], away["error"]["code"]) == ("away", 3, "engine")
    assert "127.0.0.1:1" in away["error"]["message"] and away["error"]["hint"]
    assert "away: [base]" in done.stderr and "garbled: failed" in done.stderr

    told = build(project, store_home, "garbled", "away", "-q")
    assert told.returncode == 3
    head, first, second = told.stdout.splitlines()
    assert head.split() == ["ROW", "STATUS", "LEVEL", "TIME", "TAG"]
    assert first.split()[:2] == ["garbled", "failed"] and second.split()[:2] == ["away", "failed"]
    assert "hint: name a mirror" in told.stderr


def test_a_row_that_is_up_to_date_is_not_begun(
    project: Path, store_home: Path, proven: dict[str, object], cli: Cli
) -> None:
    done = build(project, store_home, "--all", "--json")
    away, cpu, garbled = json.loads(done.stdout)["images"]  # in the order of the matrix
    assert (cpu["status"], cpu["exit_code"], cpu["id"]) == ("up to date", 0, proven["id"]), done.stderr
    assert cpu["tags"] and "cpu: note: up to date" in done.stderr
    assert (away["status"], garbled["status"], done.returncode) == ("failed", "failed", 3)


def test_rows_that_changed_since_a_revision(project: Path, store_home: Path) -> None:
    outside = build(project, store_home, "--changed-since", "HEAD")
    assert outside.returncode == 2 and "is in no git repository" in outside.stderr
    who = ["-c", "user.name=nobody", "-c", "user.email=nobody@example.invalid"]
    for words in (["init", "-q"], ["add", "."], [*who, "commit", "-qm", "first"]):
        subprocess.run(["git", "-C", str(project), *words], check=True, env={**os.environ, "GIT_CONFIG_GLOBAL": ""})
    same = build(project, store_home, "--changed-since", "HEAD", "--json")
    assert (same.returncode, json.loads(same.stdout)["images"]) == (0, []) and "no row (of 3)" in same.stderr
    matrix = project / "matrix.yaml"
    document = yaml.safe_load(matrix.read_text())
    document["environments"]["away"]["cpu_baseline"] = "x86-64-v2"
    matrix.write_text(yaml.safe_dump(document))
    done = build(project, store_home, "--changed-since", "HEAD", "--dry-run", "--json")
    assert [plan["environment"] for plan in json.loads(done.stdout)["plans"]] == ["away"]
    nowhere = build(project, store_home, "--changed-since", "nowhere")
    assert nowhere.returncode == 2


def test_an_interruption_says_what_became_of_each_row(project: Path, store_home: Path) -> None:
    document = yaml.safe_load((project / "matrix.yaml").read_text())
    document["environments"]["garbled"]["gcc"] = {"version": "12.2", "package": "gcc-no-such"}
    (project / "matrix.yaml").write_text(yaml.safe_dump(document))
    locked(project, load(project / "matrix.yaml").get("garbled"))
    argv = [ENVBUILD, "build", "garbled", "away", "--json", "--project", str(project)]
    run = subprocess.Popen(
        argv, cwd=project, env=surroundings(store_home), text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    wait_for(run, "garbled: [build]")
    run.send_signal(signal.SIGINT)
    out, err = run.communicate(timeout=60)
    assert run.returncode == 130, err
    first, second = json.loads(out)["images"]
    assert (first["status"], first["exit_code"]) == ("interrupted", 130)
    assert (second["status"], second["exit_code"], second["seconds"]) == ("not begun", 130, 0)
    assert not list((store_home / "cache" / "contexts").glob("*"))
