"""A command that is measured is the user's own: its streams, its exit code, and every Python that it starts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from envbuild.judge.suite import probes_folder
from envbuild.pipeline import limited
from envbuild.pipeline.commanded import variables
from envbuild.pipeline.profile_wish import profiler_folder

REPOSITORY = Path(__file__).parents[2]
PROGRAM = os.environ.get("ENVBUILD_TEST_PROGRAM", str(Path(sys.executable).with_name("envbuild")))


def started(folder: Path, code: str) -> subprocess.CompletedProcess[str]:
    """A Python as a measured command starts one."""
    env = variables(
        str(folder), profiler=str(profiler_folder()), probes=str(probes_folder()), nvml="", warmup=1,
        path=str(folder / "theirs"),
    )  # fmt: skip
    return subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **env}, capture_output=True, text=True, timeout=60
    )


def test_a_sitecustomize_that_was_there_is_run_and_a_process_without_deepspeed_is_left_alone(tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "sitecustomize.py").write_text("print('theirs, too')\n")
    done = started(tmp_path, "import sys; print(sys.modules['sitecustomize'].__file__); sys.exit(3)")
    assert done.stdout.split("\n")[:2] == ["theirs, too", str(theirs / "sitecustomize.py")]
    assert (done.returncode, done.stderr) == (3, "") and [path.name for path in tmp_path.iterdir()] == ["theirs"]


def test_a_training_that_cannot_be_measured_goes_on(tmp_path: Path) -> None:
    package = tmp_path / "theirs" / "deepspeed" / "runtime"
    package.mkdir(parents=True)
    for folder in (package, package.parent):
        (folder / "__init__.py").touch()
    (package / "engine.py").write_text("class DeepSpeedEngine: pass\n")
    (tmp_path / "theirs" / "torch.py").write_text("raise ImportError('no torch today')\n")
    done = started(tmp_path, "import deepspeed.runtime.engine as e; print(e.DeepSpeedEngine.__name__, e.__name__)")
    assert done.stdout == "DeepSpeedEngine deepspeed.runtime.engine\n" and done.returncode == 0
    assert "this process is not measured: no torch today" in done.stderr


def surroundings(home: Path) -> dict[str, str]:
    return {**os.environ, "ENVBUILD_HOME": str(home), "NO_COLOR": "1"}


def test_a_command_keeps_its_streams_and_its_exit_code(tmp_path: Path) -> None:
    script = "import os, sys; print(sys.stdin.read(), end=''); print(os.environ['PYTHONPATH']); sys.exit(7)"
    argv = [PROGRAM, "profile", "-o", str(tmp_path / "m.json"), "--", sys.executable, "-c", script, "--json"]
    done = subprocess.run(
        argv, env=surroundings(tmp_path), input="words\n", capture_output=True, text=True, timeout=60, cwd=REPOSITORY
    )
    assert done.returncode == 7, done.stderr
    first, path, *rest = done.stdout.split("\n")
    assert first == "words" and path.startswith(str(profiler_folder() / "shim")) and rest == [""]
    assert "nothing was measured" in done.stderr and not (tmp_path / "m.json").exists()
    assert not list((tmp_path / "runs").iterdir())


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 33), (signal.SIGKILL, -signal.SIGKILL)])
def test_a_signal_reaches_the_command(tmp_path: Path, number: int, code: int) -> None:
    script = (
        "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(33)); print('up', flush=True); time.sleep(60)"
    )
    child = subprocess.Popen(
        [PROGRAM, "profile", "--", sys.executable, "-c", script], env=surroundings(tmp_path), stdout=subprocess.PIPE,
        text=True, cwd=REPOSITORY,
    )  # fmt: skip
    assert child.stdout is not None
    try:
        assert child.stdout.readline() == "up\n"
        pid = int(subprocess.run(["pgrep", "-P", str(child.pid)], capture_output=True, text=True).stdout.split()[-1])
        child.send_signal(number)
        assert child.wait(timeout=20) == code
    finally:
        child.kill()
        child.stdout.close()
    if number == signal.SIGKILL:
        # The training is the user's: it outlives the one that watched it, as it would a shell.
        os.kill(pid, signal.SIGTERM)
    for _ in range(100):
        if not Path(f"/proc/{pid}").exists():
            return
        time.sleep(0.1)
    raise AssertionError("the command went on")


def test_a_command_that_is_not_there_is_an_error_in_words(tmp_path: Path) -> None:
    done = subprocess.run(
        [PROGRAM, "profile", "--", "/no/such/program"], env=surroundings(tmp_path), capture_output=True, text=True,
        timeout=60, cwd=REPOSITORY,
    )  # fmt: skip
    assert done.returncode == 3 and "cannot start /no/such/program: No such file" in done.stderr


def test_a_command_gets_its_variables_and_no_more_time_than_it_is_given(tmp_path: Path) -> None:
    script = (
        "import os, signal, sys, time; signal.signal(15, lambda *_: (print('told'), sys.exit(0)))\n"
        "print(os.environ['A'], os.environ['PYTHONPATH'].split(':')[-1], flush=True); time.sleep(60)"
    )
    typed = ["--timeout", "2", "--env", "A=b c", "--env", "PYTHONPATH=/theirs", "--", sys.executable, "-c", script]
    done = subprocess.run(
        [PROGRAM, "profile", *typed], env=surroundings(tmp_path), capture_output=True, text=True, timeout=60,
        cwd=REPOSITORY,
    )  # fmt: skip
    assert done.stdout.split("\n")[:2] == ["b c /theirs", "told"], "it may write its last words"
    assert done.returncode == 5 and "did not end within 2 s" in done.stderr and "--timeout SECONDS" in done.stderr


def test_a_command_whose_time_is_up_takes_those_with_it_that_do_not_listen(tmp_path: Path) -> None:
    """A rank in a session of its own that ignores SIGTERM, behind a launcher that ends at once."""
    rank = f"trap '' TERM; echo $$ > {tmp_path}/rank; while :; do sleep 0.05; done"
    launcher = subprocess.Popen(["bash", "-c", 'setsid bash -c "$0" & wait', rank])
    for _ in range(200):
        if (tmp_path / "rank").exists() and (tmp_path / "rank").read_text().strip():
            break
        time.sleep(0.05)
    number = int((tmp_path / "rank").read_text())
    limited.end(launcher.pid, grace=0.3)
    assert launcher.wait(timeout=10) == -signal.SIGTERM
    for _ in range(100):
        if not Path(f"/proc/{number}").exists():
            return
        time.sleep(0.05)
    os.kill(number, signal.SIGKILL)
    raise AssertionError("the rank goes on")
