"""How podman is driven for GPUs, with a fake podman, so named, that only notes how it was called."""

from __future__ import annotations

import json
import sys
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


def test_podmans_own_failures_are_the_engines(fake: Path) -> None:
    cdi = "sys.exit(print('Error: setting up CDI devices: unresolvable CDI devices nvidia.com/gpu=GPU-1', "
    cdi += "file=sys.stderr) or 125)"
    with pytest.raises(GpuStartError, match="no CDI description") as caught:
        podman.run(make(fake, cdi), "unix:///p.sock", SPEC, timeout=30)
    assert "nvidia-ctk cdi generate" in caught.value.hint
    with pytest.raises(EngineError, match="no such image"):
        podman.run(make(fake, "sys.exit(print('Error: no such image', file=sys.stderr) or 125)"), "unix:///p.sock",
                   SPEC, timeout=30)  # fmt: skip
