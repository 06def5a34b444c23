"""How podman is driven for GPUs, with a fake podman, so named, that only notes how it was called."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from envbuild.engines import ContainerSpec, GpuStartError, podman
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


def calls(fake: Path) -> list[list[str]]:
    return [json.loads(line) for line in (fake.parent / "calls").read_text().splitlines()]


def test_gpus_are_asked_for_by_cdi_and_the_end_is_the_programs(fake: Path) -> None:
    client = make(fake, "print('out'); print('err', file=sys.stderr); sys.exit(3)")
    result = podman.run(client, "unix:///p.sock", SPEC, timeout=30)
    assert (result.exit_code, result.stdout, result.stderr, result.timed_out) == (3, "out\n", "err\n", False)
    [call] = calls(fake)
    assert call[:5] == ["--url", "unix:///p.sock", "run", "--rm", "--name"]
    assert call[6:] == ["--device", "nvidia.com/gpu=GPU-1", "--device", "nvidia.com/gpu=GPU-2", "--network", "none",
                        "--entrypoint", "", "sha256:1", "python", "-V"]  # fmt: skip


def test_a_container_that_does_not_end_in_time_is_removed(fake: Path) -> None:
    result = podman.run(make(fake, "time.sleep(600)"), "unix:///p.sock", SPEC, timeout=2)
    assert result.timed_out
    started, removed = calls(fake)
    assert removed == ["--url", "unix:///p.sock", "rm", "--force", started[5]]


# As podman 4.3.1 says it over its API.
CDI = "Error: preparing container 7a9 for attach: setting up CDI devices: unresolvable CDI devices nvidia.com/gpu=GPU-1"
RUNC = "Error: preparing container 9ec for attach: runc: runc create failed: unable to start container process: "


def failing(said: str, code: int) -> str:
    return f"print({said!r}, file=sys.stderr); sys.exit({code})"


@pytest.mark.parametrize("code", [125, 126])
def test_a_gpu_that_podman_does_not_know_is_told_as_that(fake: Path, code: int) -> None:
    with pytest.raises(GpuStartError, match="no CDI description") as caught:
        podman.run(make(fake, failing(CDI, code)), "unix:///p.sock", SPEC, timeout=30)
    assert "nvidia-ctk cdi generate" in caught.value.hint


def test_what_keeps_a_container_from_starting_is_the_engines_and_a_missing_program_the_images(fake: Path) -> None:
    for said, code in (("Error: no such image", 125), (f"{RUNC}error setting rlimit type 7", 126)):
        with pytest.raises(EngineError, match=said[-12:]):
            podman.run(make(fake, failing(said, code)), "unix:///p.sock", SPEC, timeout=30)
    no_program = f'{RUNC}exec: "python": executable file not found in $PATH: OCI runtime attempted to invoke a command'
    assert podman.run(make(fake, failing(no_program, 127)), "unix:///p.sock", SPEC, timeout=30).exit_code == 127
    # The program's own exit code, whatever it is.
    assert podman.run(make(fake, "sys.exit(126)"), "unix:///p.sock", SPEC, timeout=30).exit_code == 126


def test_a_limit_that_may_not_be_set_is_left_out(fake: Path) -> None:
    does = f"sys.exit(0) if '--ulimit' not in sys.argv else print({RUNC + 'error setting rlimit type 8'!r}, "
    does += "file=sys.stderr) or sys.exit(126)"
    spec = replace(SPEC, memlock=-1)
    assert podman.run(make(fake, does), "unix:///p.sock", spec, timeout=30).exit_code == 0
