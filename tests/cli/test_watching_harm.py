"""What a training, its terminal and its disks do to watching, and watching to them: real programs, nothing timed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

PROGRAM = os.environ.get("ENVBUILD_TEST_PROGRAM", str(Path(sys.executable).with_name("envbuild")))
STEPS = """
import sys, time
for step in range(1, int(sys.argv[1])):
    print(f"step {step} loss: {5 / step:.4f}", flush=True)
    time.sleep(0.05)
"""
# A rank that is stopped; its launcher starts somebody when it is told to end.
LATE = """
import os, signal, subprocess, sys, time
def told(number, frame):
    helper = subprocess.Popen(["sleep", "3600"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    open("helper.pid", "w").write(str(helper.pid))
    sys.exit(143)
signal.signal(signal.SIGTERM, told)
rank = subprocess.Popen(["sleep", "3600"], env={**os.environ, "RANK": "0", "LOCAL_RANK": "0"})
for step in range(1, 120):
    time.sleep(0.05)
    print(f"step {step} loss: {5 / step:.4f}", flush=True)
os.kill(rank.pid, signal.SIGSTOP)
rank.wait()
"""


def surroundings(home: Path) -> dict[str, str]:
    return {**os.environ, "ENVBUILD_HOME": str(home / "store"), "NO_COLOR": "1"}


def watch(folder: Path, *options: str, argv: list[str]) -> subprocess.CompletedProcess[str]:
    line = [PROGRAM, "watch", "--interval", "1", *options, "--", *argv]
    return subprocess.run(line, env=surroundings(folder), capture_output=True, text=True, timeout=240, cwd=folder)


def test_a_log_on_a_full_disk_costs_neither_exit_code_nor_summary(tmp_path: Path) -> None:
    script = "import sys; print('step 1 loss: 2.5'); sys.exit(7)"
    done = watch(tmp_path, "--json", "--log", "/dev/full", argv=[sys.executable, "-c", script])
    document = json.loads(done.stdout)
    assert done.returncode == document["exit_code"] == 7 and "step 1 loss" in done.stderr
    told = [alert["message"] for alert in document["alerts"] if alert["kind"] == "cannot-write"]
    assert len(told) == 1 and "No space left" in told[0]
    assert document["last_loss"] == 2.5 and "cannot-write 1" in done.stderr and "exit code 7" in done.stderr


def test_a_flood_is_passed_on_whole_and_that_no_loss_was_in_it_is_said(tmp_path: Path) -> None:
    script = "import sys\nfor n in range(200): sys.stdout.write(('rank 0 INFO NCCL words ' + 'y' * 96 + '\\n') * 1000)"
    done = watch(tmp_path, argv=[sys.executable, "-c", script])
    assert done.returncode == 0 and len(done.stdout) == 200 * 1000 * 120, done.stderr
    assert "no loss was understood in 200000 lines of output" in done.stderr
    one = watch(tmp_path, argv=[sys.executable, "-c", "print('step 1 loss: 2.5\\n' + 'words\\n' * 300)"])
    assert one.returncode == 0 and "no loss" not in one.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_who_ends_the_watching_of_a_process_gets_what_was_seen(tmp_path: Path, number: signal.Signals) -> None:
    (tmp_path / "steps.py").write_text(STEPS)
    log, figures = tmp_path / "train.log", tmp_path / "watch.prom"
    with log.open("wb") as stream:
        child = subprocess.Popen([sys.executable, str(tmp_path / "steps.py"), "99999"], stdout=stream)
    line = [PROGRAM, "watch", "--json", "--interval", "0.5", "--pid", str(child.pid), "--follow", str(log)]
    line += ["--openmetrics", str(figures)]
    # Of what was started in the background Ctrl-C may be ignored.
    held = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        watching = subprocess.Popen(line, env=surroundings(tmp_path), stdout=-1, stderr=-1, text=True, cwd=tmp_path)
        until = time.monotonic() + 120
        while not (figures.exists() and "envbuild_watch_loss" in figures.read_text()):
            assert time.monotonic() < until
            time.sleep(0.1)
        assert "envbuild_watch_up 1" in figures.read_text()
        watching.send_signal(number)
        out, err = watching.communicate(timeout=120)
        assert child.poll() is None, "the training goes on"
    finally:
        signal.signal(signal.SIGINT, held)
        child.kill()
        child.wait()
    document = json.loads(out)
    assert watching.returncode == 128 + number and document["schema"] == "envbuild.watch/1", err
    assert document["steps"] > 0 and document["last_loss"] is not None and document["exit_code"] is None
    assert "envbuild_watch_up 0" in figures.read_text() and "alerts: none" in err and "Traceback" not in err


def test_who_was_started_after_the_training_was_told_to_end_is_ended_too(tmp_path: Path) -> None:
    (tmp_path / "late.py").write_text(LATE)
    done = watch(tmp_path, "--on-hang", "stop", argv=[sys.executable, "late.py"])
    assert done.returncode == 143 and "rank 0 is stopped" in done.stderr, done.stderr
    helper = int((tmp_path / "helper.pid").read_text())
    until = time.monotonic() + 60
    while time.monotonic() < until:
        try:
            state = Path(f"/proc/{helper}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return
        if state == "Z":
            return
        time.sleep(0.1)
    os.kill(helper, signal.SIGKILL)
    pytest.fail("it was left behind")
