"""Trainings without torch, really watched: small programs as ranks, which stop, die, leak, or do what they should.

Nothing here holds a time against a clock: a program goes on until what is looked for has been said, or for ever.
"""

from __future__ import annotations

import json
import os
import pty
import secrets
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from envbuild.watching import proc

REPOSITORY = Path(__file__).parents[2]
PROGRAM = os.environ.get("ENVBUILD_TEST_PROGRAM", str(Path(sys.executable).with_name("envbuild")))
LAUNCHER = """
import os, subprocess, sys
def start(rank):
    return subprocess.Popen([sys.executable, sys.argv[1]], env={**os.environ, "RANK": str(rank), "WORLD_SIZE": "2"})
children = [start(rank) for rank in range(2)]
codes = [child.wait() for child in children]
sys.exit(next((abs(code) for code in codes if code), 0))
"""
# Steps as DeepSpeed tells of them; what goes wrong goes wrong in step 60, so that steps are known by then.
RANK = """
import os, signal, sys, time
rank = int(os.environ["RANK"])
for step in range(1, LAST):
    time.sleep(0.05)
    if rank == 0:
        print(f"[2026-01-01 00:00:00,000] [INFO] [Rank 0] step={step}, skipped=0, lr=[0.001], mom=[0.9]", flush=True)
        print(f"step {step} loss: {LOSS}, grad_norm: {NORM}", flush=True)
    if step == 60:
        WRONG
"""
WAIT = "exec('while True: time.sleep(0.01)')"


def command(
    folder: Path, wrong: str = "pass", *, last: int = 90, loss: str = "{5 / step:.4f}", norm: str = "{1 / step:.4f}"
) -> list[str]:
    (folder / "launch.py").write_text(LAUNCHER)
    text = RANK.replace("LAST", str(last)).replace("WRONG", wrong).replace("{LOSS}", loss).replace("{NORM}", norm)
    (folder / "rank.py").write_text(text)
    return [sys.executable, str(folder / "launch.py"), str(folder / "rank.py")]


def watch(folder: Path, *options: str, argv: list[str], timeout: float = 240) -> subprocess.CompletedProcess[str]:
    line = [PROGRAM, "watch", "--interval", "1", *options, "--", *argv]
    done = subprocess.run(line, env=surroundings(folder), capture_output=True, text=True, timeout=timeout, cwd=folder)
    assert "envbuild/cli/" not in done.stderr, done.stderr
    return done


def surroundings(home: Path) -> dict[str, str]:
    return {**os.environ, "ENVBUILD_HOME": str(home / "store"), "NO_COLOR": "1"}


def kinds(document: dict[str, Any]) -> list[str]:
    return [alert["kind"] for alert in document["alerts"]]


def test_a_healthy_training_is_left_alone_and_its_words_and_figures_are_kept(tmp_path: Path) -> None:
    log, figures = tmp_path / "train.log", tmp_path / "watch.prom"
    done = watch(tmp_path, "--log", str(log), "--openmetrics", str(figures), argv=command(tmp_path))
    assert done.returncode == 0 and "alerts: none" in done.stderr, done.stderr
    assert log.read_text() == done.stdout and done.stdout.count("step=") == 89
    assert "envbuild_watch_up 0" in figures.read_text() and "envbuild_watch_steps_total 89" in figures.read_text()
    assert not list((tmp_path / "store" / "runs").iterdir())


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (f"os.kill(os.getpid(), signal.SIGSTOP) if rank == 1 else {WAIT}", "rank 1 is stopped"),
        (f"os.kill(os.getpid(), signal.SIGKILL) if rank == 1 else {WAIT}", "rank 1 is gone"),
    ],
)
def test_a_hang_is_told_with_its_rank_and_the_run_is_ended_when_that_was_asked_for(
    tmp_path: Path, wrong: str, said: str
) -> None:
    dump = tmp_path / "dump"
    done = watch(tmp_path, "--json", "--on-hang", "stop", "--dump", str(dump), argv=command(tmp_path, wrong, last=9999))
    document = json.loads(done.stdout)
    hang = next(alert for alert in document["alerts"] if alert["kind"] == "hang")
    assert hang["rank"] == 1 and hang["message"].startswith(said), done.stderr
    assert done.returncode == document["exit_code"] == 128 + signal.SIGTERM
    # The others' own words are on stderr then, and stdout is one document.
    assert "step=60" in done.stderr and "step=61" not in done.stderr
    assert (dump / "rank-0.stack.txt").stat().st_size and json.loads((dump / "alerts.json").read_text())["alerts"]
    if "stopped" in said:
        assert any("rank.py" in line for line in hang["evidence"]), hang
    else:
        assert kinds(document)[0] == "rank-died" and "SIGKILL" in document["alerts"][0]["message"]
    for line in hang["evidence"]:
        if "(process " in line:
            # A stopped process hears of no SIGTERM: nobody is left behind.
            assert gone(int(line.partition("(process ")[2].partition(")")[0]))


def gone(pid: int) -> bool:
    for _ in range(200):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state == "Z":
            return True
        time.sleep(0.1)
    return False


# As much of torch and DeepSpeed as the beacon asks, with NCCL's habit: collectives are known when somebody asks.
STANDIN = {
    "deepspeed/__init__.py": "",
    "deepspeed/runtime/__init__.py": "",
    "deepspeed/runtime/engine.py": """
class DeepSpeedEngine:
    global_steps = 0
    def step(self):
        self.global_steps += 1
""",
    "torch/__init__.py": """
import json
from types import SimpleNamespace
from torch import distributed
__version__ = "2.13.0"
def trace(includeCollectives, onlyActive):
    entry = {"process_group": ["0"], "collective_seq_id": distributed.begun, "profiling_name": "nccl:all_reduce"}
    return json.dumps({"entries": [entry]})
_C = SimpleNamespace(_distributed_c10d=SimpleNamespace(_dump_fr_trace_json=trace))
""",
    "torch/distributed/__init__.py": """
import os, time
from pathlib import Path
begun = 0
is_available = is_initialized = lambda: True
get_rank, get_backend = lambda: int(os.environ["RANK"]), lambda: "nccl"
def all_reduce(folder):
    global begun
    begun += 1
    Path(folder, f"{get_rank()}-{begun}").touch()
    while not Path(folder, f"{1 - get_rank()}-{begun}").exists():
        time.sleep(0.01)
""",
}
OWN_CODE = """
import time, torch
from deepspeed.runtime.engine import DeepSpeedEngine
def evaluate():
    WRONG
engine = DeepSpeedEngine()
for step in range(1, 200):
    torch.distributed.all_reduce("FOLDER")
    engine.step()
    time.sleep(0.05)
    if step == 100 and torch.distributed.get_rank() == 1:
        evaluate()
"""


@pytest.mark.parametrize(
    "wrong", ["time.sleep(3600)", "for _ in range(24): time.sleep(0.1); time.sleep(0.1); time.sleep(0.15)"]
)
def test_a_rank_in_its_own_code_hangs_when_it_sleeps_and_is_busy_when_it_gets_on(tmp_path: Path, wrong: str) -> None:
    for name, text in STANDIN.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "met").mkdir()
    (tmp_path / "launch.py").write_text(LAUNCHER)
    (tmp_path / "rank.py").write_text(OWN_CODE.replace("WRONG", wrong).replace("FOLDER", str(tmp_path / "met")))
    # Whom a script imports lies beside it.
    done = watch(tmp_path, "--json", "--on-hang", "stop", argv=[sys.executable, "launch.py", "rank.py"])
    document = json.loads(done.stdout)
    hangs = "3600" in wrong
    assert kinds(document) == (["hang"] if hangs else ["busy", "goes-on"]), done.stderr
    first = document["alerts"][0]
    assert first["rank"] == 1 and "collective 101, nccl:all_reduce, which it has not begun" in first["message"], first
    if hangs:
        assert any("evaluate (rank.py" in line for line in first["evidence"]), first
    else:
        assert "is busy in code of its own, in evaluate (rank.py:5)" in first["message"] and done.returncode == 0


def test_a_rank_that_fails_is_told_and_its_log_is_diagnosed(tmp_path: Path) -> None:
    wrong = "rank == 1 and exec('raise RuntimeError(\"CUDA out of memory. Tried to allocate 2.00 GiB\")')"
    done = watch(tmp_path, "--json", argv=command(tmp_path, wrong))
    document = json.loads(done.stdout)
    assert done.returncode == document["exit_code"] == 1
    assert [(alert["kind"], alert["rank"]) for alert in document["alerts"]] == [("rank-died", 1)], done.stderr
    assert [cause["kind"] for cause in document["causes"]], document


def test_a_training_that_does_not_learn_is_told_while_it_runs(tmp_path: Path) -> None:
    done = watch(tmp_path, "--json", argv=command(tmp_path, loss="{'nan' if step > 40 else 2 / step}", norm="0.0"))
    document = json.loads(done.stdout)
    assert done.returncode == 0 and kinds(document) == ["zero-gradients", "loss-nan"], done.stderr
    assert document["last_loss"] == "nan" and document["counts"] == {"loss-nan": 1, "zero-gradients": 1}


def test_streams_exit_code_and_arguments_are_the_commands_own(tmp_path: Path) -> None:
    script = "import sys; print(sys.stdin.read(), sys.argv[1:]); print('err', file=sys.stderr); sys.exit(7)"
    done = subprocess.run(
        [PROGRAM, "watch", "--", sys.executable, "-c", script, "--json", "-h"], env=surroundings(tmp_path),
        input="words", capture_output=True, text=True, timeout=120, cwd=tmp_path,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (7, "words ['--json', '-h']\n")
    assert done.stderr.startswith("err\n") and "exit code 7" in done.stderr


def test_a_terminal_stays_one_and_ctrl_c_goes_to_the_command(tmp_path: Path) -> None:
    script = (
        "import os, signal, sys, time\n"
        "signal.signal(signal.SIGINT, lambda *_: (print('heard', flush=True), sys.exit(5)))\n"
        "print(sys.stdout.isatty(), sys.stderr.isatty(), os.get_terminal_size(1).columns, flush=True)\n"
        "time.sleep(300)\n"
    )
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(PROGRAM, [PROGRAM, "watch", "-q", "--", sys.executable, "-c", script], surroundings(tmp_path))
    said = b""
    while b"True True" not in said:
        said += os.read(terminal, 4096)
    os.write(terminal, b"\x03")
    while True:
        try:
            data = os.read(terminal, 4096)
        except OSError:
            break
        if not data:
            break
        said += data
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 5
    os.close(terminal)
    assert b"heard" in said and b"interrupted" not in said


def test_a_process_that_runs_already_is_watched_by_its_number(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    argv = command(tmp_path, "rank == 1 and os._exit(3)")
    with log.open("wb") as stream:
        child = subprocess.Popen(argv, stdout=stream, stderr=stream)
    line = [PROGRAM, "watch", "--json", "--interval", "0.5", "--pid", str(child.pid), "--follow", str(log)]
    try:
        # The training's parent has to ask how it ended, or it would stay.
        watching = subprocess.Popen(line, env=surroundings(tmp_path), stdout=-1, stderr=-1, text=True, cwd=tmp_path)
        child.wait(timeout=120)
        out, err = watching.communicate(timeout=120)
    finally:
        child.kill()
    document = json.loads(out)
    assert watching.returncode == 1 and kinds(document) == ["rank-died"], err
    assert document["alerts"][0]["message"] == "rank 1 ended with exit code 3" and document["steps"] == 89
    assert "cannot be seen" in err


def test_what_an_engine_has_started_is_found_by_its_environment() -> None:
    mark = {"ENVBUILD_WATCH_RUN": secrets.token_hex(8)}
    assert proc.marked(mark) is None
    # A shell and its child: the first of them is the container's.
    with subprocess.Popen(["sh", "-c", "sleep 60 & echo; wait"], env={**os.environ, **mark}, stdout=-1) as child:
        try:
            assert child.stdout is not None and child.stdout.readline()
            assert proc.marked(mark) == child.pid and proc.inner(child.pid) == child.pid
        finally:
            for member in proc.tree(child.pid):
                os.kill(member.pid, signal.SIGKILL)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "takes a command behind --"),
        (["--pid", "1", "--", "true"], "and not both"),
        (["--pid", "999999999"], "no such process"),
        (["--on-hang", "kill", "--", "true"], "Say tell, dump or stop"),
        (["--swap", "/no/such", "--", "true"], "no such folder"),
        (["--log", "/no/such/log", "--", "true"], "--log /no/such/log"),
        (["--openmetrics", "/no/such/x.prom", "--", "true"], "there is no folder /no/such"),
        (["--openmetrics", "/proc/x.prom", "--", "true"], "/proc/x.prom: cannot be written"),
        (["--openmetrics", "/dev/null", "--", "true"], "is no file"),
        (["--on-hang", "dump", "--dump", "/no/such/dump", "--", "true"], "there is no folder /no/such"),
        (["--on-hang", "dump", "--dump", "/proc/dump", "--", "true"], "/proc/dump: cannot be written"),
        (["--follow", "x", "--", "true"], "a command on this host takes no --follow"),
        (["cpu", "h100-cu124", "--", "true"], "'h100-cu124' is one image too many"),
        (["cpu", "--pid", "1", "--", "true"], "and not both"),
        (["no image", "--", "true"], "neither a row nor the name of an image"),
    ],
)
def test_slips_are_told_in_words(tmp_path: Path, arguments: list[str], said: str) -> None:
    line = [PROGRAM, "watch", *arguments]
    done = subprocess.run(line, env=surroundings(tmp_path), capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert done.returncode == 2 and said in done.stderr and "Traceback" not in done.stderr, done.stderr


def test_a_command_that_is_not_there_is_an_error_in_words(tmp_path: Path) -> None:
    done = watch(tmp_path, argv=["/no/such/program"])
    assert done.returncode == 3 and "cannot start /no/such/program: No such file" in done.stderr
