"""`deepspeed --zero-offload` is refused before a container starts; a script's own option of that name is not."""

from __future__ import annotations

import pytest

from envbuild.matrix.commandline import refused, zero_offload


@pytest.mark.parametrize(
    "command",
    [
        ["deepspeed", "--zero-offload", "train.py"],
        ["/opt/venv/bin/deepspeed", "--num_gpus", "2", "train.py", "--zero-offload=true"],
        ["bash", "-c", "cd /w && deepspeed train.py --zero-offload"],
        ["sh", "-c", "NCCL_DEBUG=INFO deepspeed --zero_offload train.py; echo done"],
        ["env", "A=1", "ds", "--zero-offload"],
        ["python", "-m", "deepspeed.launcher.runner", "--zero-offload", "train.py"],
    ],
)
def test_the_launcher_is_refused(command: list[str]) -> None:
    assert refused(command).startswith("--zero")


@pytest.mark.parametrize(
    "command",
    [
        [],
        ["deepspeed", "train.py", "--deepspeed_config", "ds.json"],
        ["python", "train.py", "--zero-offload"],
        ["torchrun", "train.py", "--out", "ds", "--zero-offload"],
        ["bash", "-c", "python train.py --model deepspeed --zero-offload"],
        ["deepspeed", "train.py", "--zero-offload-ratio", "1"],
        ["", " ", "\n"],
    ],
)
def test_anything_else_is_left_alone(command: list[str]) -> None:
    assert refused(command) == ""


def test_the_word_alone() -> None:
    assert zero_offload(["a", "--zero-offload"]) == "--zero-offload"
    assert zero_offload(["--zero-offloads", "zero-offload"]) == ""
