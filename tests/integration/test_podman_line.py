"""How podman is driven for GPUs, with a fake podman, so named, that only notes how it was called."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from envbuild.engines import ContainerResult, ContainerSpec, GpuStartError, podman_run
from envbuild.errors import EngineError

SPEC = ContainerSpec(image="sha256:1", argv=("python", "-V"), gpus=("GPU-1", "GPU-2"), network="none", interactive=True)
FAKE = """#!{python} -I
import json, pathlib, sys, time
folder = pathlib.Path({folder!r})
with (folder / "calls").open("a") as log:
    log.write(json.dumps(sys.argv[1:]) + "\\n")
if "run" in sys.argv:
    {does}
"""


@pytest.fixture
def fake(tmp_path: Path) -> Path:
    return tmp_path / "podman"


def make(fake: Path, does: str) -> str:
    fake.write_text(FAKE.format(python=sys.executable, folder=str(fake.parent), does=does))
    fake.chmod(0o755)
    return str(fake)


def run(client: str, spec: ContainerSpec, timeout: float = 30) -> ContainerResult:
    return podman_run.run(podman_run.Client(program=client, endpoint="unix:///p.sock"), spec, timeout=timeout)


def calls(fake: Path) -> list[list[str]]:
    return [json.loads(line) for line in (fake.parent / "calls").read_text().splitlines()]


def test_gpus_are_asked_for_by_cdi_and_the_end_is_the_programs(fake: Path) -> None:
    client = make(fake, "print('out'); print('err', file=sys.stderr); sys.exit(3)")
    result = run(client, SPEC)
    assert (result.exit_code, result.stdout, result.stderr, result.timed_out) == (3, "out\n", "err\n", False)
    call, removed = calls(fake)
    assert call[:4] == ["--url", "unix:///p.sock", "run", "--name"]
    assert call[call.index("--security-opt") + 2 :] == [
        "--device", "nvidia.com/gpu=GPU-1", "--device", "nvidia.com/gpu=GPU-2", "--network", "none",
        "--entrypoint", "", "sha256:1", "python", "-V",
    ]  # fmt: skip
    assert removed == ["--url", "unix:///p.sock", "rm", "--force", "--time", "0", "--volumes", call[4]]


def test_a_container_that_does_not_end_in_time_is_killed_and_removed(fake: Path) -> None:
    does = "print('before', flush=True); time.sleep(3)"
    result = run(make(fake, does), SPEC, 0.5)
    assert (result.timed_out, result.exit_code, result.stdout) == (True, 137, "before\n")
    started, *after = calls(fake)
    assert [call[2] for call in after] == ["kill", "rm"]
    assert {call[-1] for call in after} == {started[4]}


# As podman 4.3.1 says it over its API.
CDI = "Error: preparing container 7a9 for attach: setting up CDI devices: unresolvable CDI devices nvidia.com/gpu=GPU-1"
RUNC = "Error: preparing container 9ec for attach: runc: runc create failed: unable to start container process: "


def failing(said: str, code: int) -> str:
    return f"print({said!r}, file=sys.stderr); sys.exit({code})"


@pytest.mark.parametrize("code", [125, 126])
def test_a_gpu_that_podman_does_not_know_is_told_as_that(fake: Path, code: int) -> None:
    with pytest.raises(GpuStartError, match="no CDI description") as caught:
        run(make(fake, failing(CDI, code)), SPEC)
    assert "nvidia-ctk cdi generate" in caught.value.hint


def test_what_keeps_a_container_from_starting_is_the_engines_and_a_missing_program_the_images(fake: Path) -> None:
    for said, code in (("Error: no such image", 125), (f"{RUNC}error setting rlimit type 7", 126)):
        with pytest.raises(EngineError, match=said[-12:]):
            run(make(fake, failing(said, code)), SPEC)
    no_program = f'{RUNC}exec: "python": executable file not found in $PATH: OCI runtime attempted to invoke a command'
    assert run(make(fake, failing(no_program, 127)), SPEC).exit_code == 127
    # The program's own exit code, whatever it is.
    assert run(make(fake, "sys.exit(126)"), SPEC).exit_code == 126


def test_a_limit_that_may_not_be_set_is_left_out(fake: Path) -> None:
    does = f"sys.exit(0) if '--ulimit' not in sys.argv else print({RUNC + 'error setting rlimit type 8'!r}, "
    does += "file=sys.stderr) or sys.exit(126)"
    spec = replace(SPEC, memlock=-1)
    assert run(make(fake, does), spec).exit_code == 0
