"""Runs on a cluster: what is asked for, what is heard of a run, what a node writes down, what comes home."""

from __future__ import annotations

import datetime
import io
import json
import os
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from envbuild import evidence, process, store
from envbuild.cli import lines
from envbuild.cli.display import make_sinks
from envbuild.errors import EngineError, InputError
from envbuild.events import Event, Note, PhaseDone, PhaseStarted
from envbuild.executors import Ended, Node, Run, RunFolder, Submission, Task, every, find, new_id, slurm, words
from envbuild.executors.follow import Ending, Follower
from envbuild.executors.runs import Seen
from envbuild.executors.words import State
from envbuild.matrix import load
from envbuild.pipeline import cluster, pruning
from envbuild.pipeline.node import TimeUp, carry_out
from envbuild.pipeline.works import Work
from envbuild.project import find as find_project
from envbuild.site.cluster import ExecutorSection, Share, SlurmSection

MATRIX = load(find_project(None, Path(__file__)).matrix)
NOW = datetime.datetime(2026, 11, 30, 10, 15, tzinfo=datetime.timezone.utc)


# --- what is asked for ------------------------------------------------------------------------------------------------


def test_the_row_says_more_than_its_gpu_and_its_gpu_more_than_the_site() -> None:
    site = SlurmSection(
        partition="all", time="1:00:00", options=("--mem=8G",),
        gpus={"h100": Share(gres="gpu:h100:8", partition="gpu", options=("--exclusive",))},
        rows={"h100-cu124": Share(time="3:00:00", options=("--nice=10",))},
    )  # fmt: skip
    wanted = slurm.resources(site, MATRIX.get("h100-cu124"))
    assert (wanted.partition, wanted.gres, wanted.time) == ("gpu", "gpu:h100:8", "3:00:00")
    assert wanted.options == ("--mem=8G", "--exclusive", "--nice=10")
    assert slurm.resources(site, MATRIX.get("cpu")).gres is None


def test_a_gpu_that_the_site_does_not_know_is_no_gamble() -> None:
    with pytest.raises(InputError, match=r"h100-cu121 needs one of h100.*\[slurm\.gpus\] knows a100") as caught:
        slurm.resources(SlurmSection(gpus={"a100": Share(gres="gpu:a100:4")}), MATRIX.get("h100-cu121"))
    assert "[slurm.gpus] h100" in caught.value.hint
    # A row may say it by itself.
    own = SlurmSection(rows={"h100-cu121": Share(gres="gpu:8")})
    assert slurm.resources(own, MATRIX.get("h100-cu121")).gres == "gpu:8"


@pytest.mark.parametrize(
    ("time", "seconds"),
    [("90", 5400), ("1:30", 90), ("2:00:00", 7200), ("1-0", 86400), ("2-12", 216000), ("1-00:30", 88200)],
)
def test_times_as_slurm_writes_them(time: str, seconds: int) -> None:
    assert slurm.seconds(time) == seconds


@pytest.mark.parametrize("option", ["-p gpu", "mem=4G", "--array=0-3", "--requeue", "--job-name=x"])
def test_options_that_are_none_of_the_sites(option: str) -> None:
    with pytest.raises(ValueError, match=r"no option of sbatch|envbuild's own"):
        SlurmSection(options=(option,))


def test_a_run_is_one_array_for_each_kind_of_node(tmp_path: Path) -> None:
    planned = plan(tmp_path, "cpu", "h100-cu121", "h100-cu124")
    assert [each.tasks for each in planned.run.submissions] == [(0,), (1, 2)]
    assert [each.argv[3] for each in planned.run.submissions] == ["--array=0", "--array=1,2"]
    assert planned.as_dict()["submissions"][1]["argv"] == list(planned.run.submissions[1].argv)
    assert not list(tmp_path.iterdir()), "a plan writes nothing"


def bench(shared: Path | None, heard: list[Event] | None = None) -> Any:
    site = SimpleNamespace(
        executor=ExecutorSection(folder=shared), slurm=SlurmSection(gpus={"h100": Share(gres="gpu:h100:8")})
    )
    return SimpleNamespace(site=site, matrix=MATRIX, sink=(heard if heard is not None else []).append)


def plan(shared: Path | None, *rows: str) -> cluster.Planned:
    works = [Work(name=row, row=row, argv=("build", "--json", "--", row)) for row in rows]
    return cluster.plan(bench(shared), "build", works, program=("envbuild",), now=NOW)


def test_a_site_without_a_shared_folder_says_how_to_name_one() -> None:
    with pytest.raises(InputError, match="none is named") as caught:
        plan(None, "cpu")
    assert "[executor] folder" in caught.value.hint


# --- submitting -------------------------------------------------------------------------------------------------------


class Slurm:
    """Slurm as this program hears it: what it answers, and what it was asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.answers: list[tuple[int, str]] = []
        self.cancelled: list[str] = []
        self.by_name = ""
        monkeypatch.setattr(process, "which", lambda program: f"/usr/bin/{program}")
        monkeypatch.setattr(process, "stream", self._stream)
        monkeypatch.setattr(process, "run", self._run)

    def _stream(self, argv: Any, *, on_line: Any, timeout: float) -> int:
        code, said = self.answers.pop(0)
        for line in said.splitlines():
            on_line(line)
        return code

    def _run(self, argv: Any, timeout: float) -> process.Completed:
        if argv[0] == "scancel":
            self.cancelled += argv[1:]
        return process.Completed(argv=tuple(argv), returncode=0, stdout=self.by_name, stderr="")


def test_every_number_is_on_the_disk_as_soon_as_slurm_has_said_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[Event] = []
    planned = plan(tmp_path, "cpu", "h100-cu121")
    full = "sbatch: error: Slurm temporarily unable to accept job, sleeping and retrying."
    Slurm(monkeypatch).answers = [(0, "12"), (0, f"{full}\n13;tests")]
    run = cluster.begin(bench(tmp_path, heard), planned)
    assert run.jobs == ("12", "13") and planned.folder.load() == run
    assert [each.message for each in heard if isinstance(each, Note)] == [f"sbatch: {full[15:]}"]
    assert (planned.folder.path / "job-1.sh").read_text().startswith("#!/bin/sh\n")
    assert planned.folder.path.stat().st_mode & 0o777 == 0o700
    assert [found.id for _, found in every(tmp_path)] == [run.id] and find(tmp_path, run.id[-4:])[1] == run


def test_where_one_array_is_refused_those_before_it_are_taken_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned, fake = plan(tmp_path, "cpu", "h100-cu121"), Slurm(monkeypatch)
    fake.answers = [(0, "12"), (1, "sbatch: error: Batch job submission failed: Invalid generic resource (gres)")]
    with pytest.raises(EngineError, match="Invalid generic resource") as caught:
        cluster.begin(bench(tmp_path), planned)
    assert "gres of [slurm]" in caught.value.hint and fake.cancelled == ["12"]
    assert not planned.folder.path.exists()


def test_a_number_that_nobody_wrote_down_is_asked_for_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planned, fake = plan(tmp_path, "cpu", "h100-cu121"), Slurm(monkeypatch)
    planned.folder.create(planned.run)
    with pytest.raises(InputError, match="was never submitted"):
        cluster.recover(planned.folder, planned.run)
    fake.by_name = "13\n12\n13\n"
    assert cluster.recover(planned.folder, planned.run).jobs == ("12", "13") == planned.folder.load().jobs


@pytest.mark.parametrize(
    ("said", "hint"),
    [
        ("Batch job submission failed: Invalid partition name specified", "sinfo"),
        ("Batch job submission failed: Invalid account or account/partition combination specified", "[slurm] account"),
        ("Batch job submission failed: Requested node configuration is not available", "gres, constraint"),
        ("Batch job submission failed: Unable to contact slurm controller (connect failure)", "slurmctld"),
        ("Batch job submission failed: Job violates accounting/QOS policy (job submit limit, ...)", "limit of jobs"),
        ("unrecognized option '--no-such'", "[slurm] options"),
        ("fatal: Could not establish a configuration source", "SLURM_CONF"),
    ],
)
def test_a_refusal_is_slurms_words_and_what_to_do(said: str, hint: str) -> None:
    error = words.refused(f"sbatch: error: {said}\n")
    assert said in error.message and hint in error.hint and error.exit_code == 3


# --- what Slurm prints ------------------------------------------------------------------------------------------------


def test_what_squeue_and_sacct_print() -> None:
    assert slurm.states("12_0|RUNNING|None|n1\n12_1|PENDING|Resources|\n\n") == {
        "12_0": State(name="RUNNING", node="n1"), "12_1": State(name="PENDING", reason="Resources"),
    }  # fmt: skip
    assert slurm.accounted("12_0|CANCELLED by 1000|n1\n12_1|NODE_FAIL|n2\n12_2|PENDING|None assigned\n") == {
        "12_0": State(name="CANCELLED", node="n1"), "12_1": State(name="NODE_FAIL", node="n2"),
        "12_2": State(name="PENDING"),
    }  # fmt: skip
    assert slurm.job_of("sbatch: a word of the site's\n12\n") == "12" and slurm.job_of("") is None


@pytest.mark.parametrize(
    ("reason", "said", "hopeful"),
    [
        ("Resources", "every node", True),
        ("ReqNodeNotAvail(Unavailable:n1)", "down, drained", True),
        ("QOSMaxJobsPerUserLimit", "a limit", True),
        ("AssocGrpGRES", "a limit", True),
        ("PartitionTimeLimit", "[slurm] time", False),
        ("SomethingNew", "SomethingNew", True),
    ],
)
def test_why_a_job_waits(reason: str, said: str, hopeful: bool) -> None:
    text, starts = words.waits(reason)
    assert text.startswith(reason) and said in text and starts is hopeful


# --- following --------------------------------------------------------------------------------------------------------


class Followed:
    """A run of one task, Slurm's job 7, and what a session hears of it."""

    def __init__(self, shared: Path, *, job: str | None = "7", limit: str = "") -> None:
        self.folder = RunFolder.of(shared, new_id(NOW))
        array = Submission(tasks=(0,), script="job-0.sh", argv=("sbatch",), job=job, limit=limit)
        self.run = Run(
            schema="envbuild.run/1", id=self.folder.path.name, command="build", envbuild="0", begun=NOW,
            program=("envbuild",), tasks=(Task(name="cpu", argv=("build", "cpu")),), submissions=(array,),
        )  # fmt: skip
        self.folder.create(self.run)
        self.heard: list[str] = []
        self.notes: list[Note] = []
        self.endings: list[Ending] = []
        self.follower = Follower(
            folder=self.folder, run=self.run, ask=lambda: None,
            on_line=lambda name, line: self.heard.append(f"{name}: {line}"),
            on_note=lambda name, note: self.notes.append(note),
            on_end=lambda name, ending: self.endings.append(ending),
        )  # fmt: skip

    def begin(self, number: int = 1, on: str = "n1") -> Path:
        attempt = self.folder.attempt(0, number)
        attempt.begin(Node(node=on, job="7_0", began=NOW, envbuild="0"))
        return attempt.path

    def end(self, number: int = 1, code: int = 0, how: str = "ended") -> None:
        ended = {"code": code, "how": how, "ended": NOW + datetime.timedelta(seconds=5)}
        self.folder.attempt(0, number).end(Ended.model_validate(ended))

    def look(self, state: str | None = None, reason: str = "", times: int = 1, gone: bool = False) -> list[Ending]:
        states: Mapping[str, State] | None = None
        if state or gone:
            states = {"7_0": State(name=state, reason=reason)} if state else {}
        for _ in range(times):
            self.follower.look(states)
        return self.endings


def test_a_task_is_heard_from_the_queue_to_its_end(tmp_path: Path) -> None:
    run = Followed(tmp_path)
    run.look("PENDING", "Resources", times=2)
    assert [note.message.partition(":")[0] for note in run.notes] == ["it waits"], "said once"
    events = run.begin() / "events.jsonl"
    events.write_text('["a"]\n["b')
    run.look()
    with events.open("a") as file:
        file.write('"]\n["c"]\n')
    run.end()
    assert [(each.code, each.node, each.job, each.seconds) for each in run.look()] == [(0, "n1", "7_0", 5.0)]
    assert run.heard == ['cpu: ["a"]', 'cpu: ["b"]', 'cpu: ["c"]'] and "n1 runs it" in run.notes[1].message
    assert run.follower.over


def test_a_node_that_fails_is_told_and_the_second_attempt_counts(tmp_path: Path) -> None:
    run = Followed(tmp_path)
    (run.begin() / "events.jsonl").write_text('["first"]\n')
    run.look("RUNNING")
    # Slurm tells the processes of a failed node to end, and puts the job back into the queue.
    run.end(code=130, how="told")
    assert not run.look() and not run.look("PENDING", "BeginTime", times=9)
    assert "back in the queue" in run.notes[-1].message
    (run.begin(2, "n2") / "events.jsonl").write_text('["second"]\n')
    run.end(2)
    assert [(each.code, each.node) for each in run.look("RUNNING")] == [(0, "n2")]
    assert run.heard == ['cpu: ["first"]', 'cpu: ["second"]']
    assert any("n1 failed" in note.message and "attempt 2 of 2" in note.message for note in run.notes)


def test_who_is_told_to_end_has_ended_when_slurm_says_so_too(tmp_path: Path) -> None:
    run = Followed(tmp_path)
    run.begin()
    run.end(code=130, how="told")
    assert not run.look() and not run.look("COMPLETING", times=9)
    (ending,) = run.look("CANCELLED")
    assert ending.interrupted and ending.code == 130


def test_a_job_that_never_began_and_was_cancelled(tmp_path: Path) -> None:
    run = Followed(tmp_path)
    assert not run.look("CANCELLED", times=2), "files of a network file system come late"
    (ending,) = run.look("CANCELLED")
    assert ending.interrupted and ending.attempt is None


@pytest.mark.parametrize(
    ("state", "message", "hint"),
    [
        ("TIMEOUT", "reached its time limit of 1:00:00", "[slurm] time"),
        ("OUT_OF_MEMORY", "was ended for memory", "--mem"),
        ("NODE_FAIL", "the node of job 7_0 failed", "sinfo -R"),
        ("FAILED", r"it said: envbuild: not found", "[executor] envbuild"),
        (None, "does not know job 7_0 any more", ""),
    ],
)
def test_a_task_that_left_nothing(tmp_path: Path, state: str | None, message: str, hint: str) -> None:
    run = Followed(tmp_path, limit="1:00:00")
    run.folder.log(0, 0).write_text("envbuild:\nnot found\n")
    (ending,) = run.look(state, times=3, gone=True)
    assert ending.code == 3 and message in ending.message and hint in ending.hint


def test_a_task_whose_time_was_up_says_so_itself(tmp_path: Path) -> None:
    run = Followed(tmp_path, limit="5")
    run.begin()
    run.end(code=3, how="late")
    (ending,) = run.look()
    assert "job 7_0 on n1 reached its time limit of 5" in ending.message


def test_a_task_that_was_never_submitted_is_over(tmp_path: Path) -> None:
    (ending,) = Followed(tmp_path, job=None).look()
    assert ending.interrupted


def test_a_silent_controller_is_told_once_and_ends_nothing(tmp_path: Path) -> None:
    run = Followed(tmp_path)
    clock = iter(range(0, 1000, 6))
    answers = iter([None, None, {}, {}, {}])
    run.follower.ask = lambda: next(answers)
    run.follower.listen(clock=lambda: float(next(clock)), wait=lambda seconds: None)
    assert [note.message for note in run.notes] == ["Slurm does not answer; the jobs go on, and it is asked again"]
    assert len(run.endings) == 1


def test_of_a_run_that_is_over_slurm_is_not_asked(tmp_path: Path) -> None:
    run = Followed(tmp_path)
    (run.begin() / "events.jsonl").write_text('["a"]\n')
    run.end(code=5)

    def ask() -> None:
        raise AssertionError("nobody is there")

    run.follower.ask = ask
    run.follower.listen()
    assert [each.code for each in run.endings] == [5] and run.heard == ['cpu: ["a"]']


# --- on a node --------------------------------------------------------------------------------------------------------


def environ(number: int = 0, restarts: int = 0) -> dict[str, str]:
    said = {"SLURM_ARRAY_TASK_ID": str(number), "SLURM_ARRAY_JOB_ID": "7", "SLURMD_NODENAME": "n1"}
    return {**said, **({"SLURM_RESTART_COUNT": str(restarts)} if restarts else {})}


def command(monkeypatch: pytest.MonkeyPatch, does: Any) -> list[dict[str, Any]]:
    """What stands in for the command of a task."""
    calls: list[dict[str, Any]] = []

    def record(argv: Any, *, stdout: Path, stderr: Path, env: dict[str, str], grace: float) -> int:
        calls.append({"argv": argv, "env": env, "grace": grace})
        code: int = does(stdout, stderr, Path(env["ENVBUILD_HOME"]))
        return code

    monkeypatch.setattr(process, "record", record)
    return calls


def test_a_node_runs_the_command_and_keeps_what_it_saw(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Followed(tmp_path)

    def does(stdout: Path, stderr: Path, home: Path) -> int:
        stdout.write_text("{}")
        stderr.write_text("words")
        for name, text in (("index/abc", "sha256:def"), ("def/cpu.json", "new"), ("def/cpu.dsse.json", "sealed")):
            store.write_atomic(home / "evidence" / name, text)
        return 5

    (call,) = [command(monkeypatch, does)]
    assert carry_out(run.folder, environ()) == 5
    assert call[0]["argv"] == ("envbuild", "build", "cpu") and call[0]["grace"] < 30
    attempt = run.folder.attempt(0, 1)
    assert call[0]["env"]["ENVBUILD_HOME"] == str(tmp_path / "nodes" / "n1")
    assert call[0]["env"]["ENVBUILD_EVENTS"] == str(attempt.events)
    ended = attempt.ended
    assert ended is not None and (ended.code, ended.how) == (5, "ended")
    assert ended.evidence == (Seen(file="evidence/def/cpu.json", image="sha256:abc"),)
    assert (attempt.path / "evidence/def/cpu.dsse.json").read_text() == "sealed"
    assert attempt.node is not None and (attempt.node.node, attempt.node.job) == ("n1", "7_0")


def test_what_a_node_has_seen_before_comes_home_with_its_comparisons(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another login host knows nothing of an earlier run: what a command names is brought, and what lies beside it."""
    run = Followed(tmp_path)
    home = tmp_path / "nodes" / "n1" / "evidence"
    kept = ("def/cpu.json", "def/performance/cpu.tiny.json", "def/performance/cpu.tiny.dsse.json", "123/cpu.json")
    for name, text in (("index/abc", "sha256:def"), ("index/987", "sha256:123"), *((each, "old") for each in kept)):
        store.write_atomic(home / name, text)
        os.utime(home / name, (1, 1))

    def does(stdout: Path, stderr: Path, place: Path) -> int:
        stdout.write_text(json.dumps({"schema": "envbuild.smoke/1", "evidence": str(home / "def/cpu.json")}))
        return 0

    command(monkeypatch, does)
    assert carry_out(run.folder, environ()) == 0
    ended = run.folder.attempt(0, 1).ended
    assert ended is not None and {each.file for each in ended.evidence} == {
        "evidence/def/cpu.json", "evidence/def/performance/cpu.tiny.json"
    }  # fmt: skip
    assert (run.folder.attempt(0, 1).path / "evidence/def/performance/cpu.tiny.dsse.json").is_file()


def test_a_task_that_has_several_nodes_names_all_of_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Followed(tmp_path)
    (call,) = [command(monkeypatch, lambda *paths: 0)]
    spread = {"SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_NODELIST": "n[1-2]"}
    assert carry_out(run.folder, {**environ(), **spread}) == 0
    node = run.folder.attempt(0, 1).node
    assert node is not None and node.node == "n[1-2]"
    # The store is the first one's own.
    assert call[0]["env"]["ENVBUILD_HOME"] == str(tmp_path / "nodes" / "n1")


@pytest.mark.parametrize(("raised", "how", "code"), [(TimeUp, "late", 3), (KeyboardInterrupt, "told", 130)])
def test_a_node_that_is_told_to_end_writes_down_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, raised: type[BaseException], how: str, code: int
) -> None:
    run = Followed(tmp_path)

    def does(*paths: Path) -> int:
        raise raised

    command(monkeypatch, does)
    with pytest.raises(raised):
        carry_out(run.folder, environ())
    ended = run.folder.attempt(0, 1).ended
    assert ended is not None and (ended.how, ended.code) == (how, code)


def test_a_task_is_tried_twice_and_not_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Followed(tmp_path)
    calls = command(monkeypatch, lambda *paths: -9)
    assert carry_out(run.folder, environ(restarts=1)) == 3
    assert "signal 9" in run.folder.attempt(0, 2).said.read_text()
    run.end(2, code=130, how="told")
    assert carry_out(run.folder, environ(restarts=2)) == 3 and len(calls) == 1
    (ending,) = run.look()
    assert "taken away 2 times" in ending.message and ending.code == 3


def test_what_a_node_given_up_for_dead_has_done_is_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Followed(tmp_path)
    run.begin()
    run.end()
    calls = command(monkeypatch, lambda *paths: 4)
    assert carry_out(run.folder, environ(restarts=1)) == 0 and not calls


def test_outside_a_job_a_node_does_nothing(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no job of an array"):
        carry_out(Followed(tmp_path).folder, {})


# --- coming home ------------------------------------------------------------------------------------------------------


OTHER = "sha256:" + "b" * 64


def record() -> bytes:
    return (find_project(None, Path(__file__)).images / "cpu" / "record.json").read_bytes()


def came_home(run: Followed, *, image: str = "sha256:" + "a" * 64) -> cluster.Result:
    path = run.begin() / "evidence" / "x" / "cpu.json"
    store.write_atomic(path, record())
    store.write_atomic(run.folder.path / "outside.json", record())
    attempt = run.folder.attempt(0, 1)
    there = "/var/lib/node/evidence/x/cpu.json"
    attempt.result.write_text(json.dumps({"schema": "envbuild.build/1", "images": [{"evidence": there}]}))
    seen = (Seen(file="evidence/x/cpu.json", image=image), Seen(file="../../../outside.json", image=OTHER))
    attempt.end(Ended(code=0, ended=NOW, evidence=seen))
    (ending,) = run.look()
    return cluster.home(run.folder, run.run, 0, ending)


def test_evidence_comes_into_the_store_and_the_document_names_it_there(tmp_path: Path) -> None:
    result = came_home(Followed(tmp_path))
    (path,) = result.evidence
    assert evidence.digest_of(OTHER) is None, "what lies outside the attempt is none of its evidence"
    assert path.is_relative_to(store.home()) and path.read_bytes() == record()
    assert result.document["images"][0]["evidence"] == str(path) and not result.error
    seen = evidence.read(path)
    assert evidence.digest_of("sha256:" + "a" * 64) == seen.image.config_digest
    assert seen.target_id is not None and evidence.is_built(seen.target_id, "sha256:" + "a" * 64)


def test_what_others_could_have_written_is_not_believed(tmp_path: Path) -> None:
    run = Followed(tmp_path)
    run.folder.path.chmod(0o770)
    result = came_home(run)
    assert result.evidence == () and not (store.home() / "evidence").exists()


def test_a_result_without_a_document_says_what_was_said(tmp_path: Path) -> None:
    run = Followed(tmp_path)
    (run.begin() / "said.txt").write_text("Traceback\nKeyError: 'x'\n")
    run.end(code=1)
    (ending,) = run.look()
    assert "KeyError: 'x'" in cluster.home(run.folder, run.run, 0, ending).error["message"]


def test_runs_that_are_long_over_may_go(tmp_path: Path) -> None:
    old, silent, young, open_to_others = (Followed(tmp_path) for _ in range(4))
    now = 300 * 86400.0
    for run, days in ((old, 40), (silent, 40), (young, 20), (open_to_others, 200)):
        run.begin()
        if run is not silent:
            run.end()
        for path in (run.folder.path, *run.folder.path.rglob("*")):
            os.utime(path, (now - days * 86400, now - days * 86400))
    open_to_others.folder.path.chmod(0o777)
    assert [item.what for item in pruning._cluster(tmp_path, now)] == [str(old.folder.path)]
    later = [item.what for item in pruning._cluster(tmp_path, now + 150 * 86400)]
    assert sorted(later) == sorted(str(run.folder.path) for run in (old, silent, young))
    assert not list(pruning._cluster(None, now))


def test_events_go_into_the_file_that_is_named(tmp_path: Path) -> None:
    story: list[Event] = [PhaseStarted(phase="smoke", detail="2 ranks"), PhaseDone(phase="smoke", seconds=1.0)]
    out, file = io.StringIO(), tmp_path / "events.jsonl"
    with make_sinks(stream=out, environ={"ENVBUILD_EVENTS": str(file)}) as sink_of:
        for event in story:
            sink_of("a row")(event)
    assert [lines.read(line) for line in file.read_text().splitlines()] == story and not out.getvalue()
    with make_sinks(environ={"ENVBUILD_EVENTS": str(tmp_path / "no" / "folder")}) as sink_of:
        sink_of("")(story[0])
