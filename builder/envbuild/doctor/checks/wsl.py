"""Windows Subsystem for Linux: pinned memory is limited there, whatever is free."""

from __future__ import annotations

from collections.abc import Iterator

from envbuild.doctor.found import deepspeed_version, has_gpu
from envbuild.doctor.view import Check, View
from envbuild.model import Finding, Severity


def look(view: View) -> Iterator[Finding]:
    """That it is WSL, where a GPU is to train."""
    if not view.collection.machine.wsl:
        return
    yield Finding(
        rule="wsl.pinned",
        severity=Severity.WARNING if has_gpu(view) else Severity.INFO,
        subject="WSL",
        message="WSL limits pinned memory to a part of what Windows gives it, and offload pins most of what it holds",
        why="tensor.pin_memory() ends with 'CUDA error: out of memory' while RAM and GPU memory are free.",
        fix="set pin_memory to false in offload_optimizer and offload_param (DeepSpeed 0.19.5 made true the default"
        + (f"; here is {deepspeed_version(view)}" if deepspeed_version(view) else "")
        + "), and raise memory= in .wslconfig",
        source="deepspeedai/DeepSpeed#2977; NVIDIA CUDA on WSL user guide, known limitations",
    )


CHECK = Check(
    name="wsl",
    title="pinned memory is not limited by WSL",
    look=look,
)
