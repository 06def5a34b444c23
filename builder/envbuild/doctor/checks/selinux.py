"""SELinux, which keeps containers from the GPUs' device files unless told otherwise."""

from __future__ import annotations

from collections.abc import Iterator

from envbuild.doctor.view import Check, View
from envbuild.model import Finding, Severity


def look(view: View) -> Iterator[Finding]:
    """That it is enforcing, where containers are to use GPUs."""
    machine, gpu = view.collection.machine, view.collection.gpu
    if machine.selinux != "enforcing" or not (gpu.device_files or gpu.devices) or (gpu.devices and machine.container):
        return
    yield Finding(
        rule="selinux.enforcing",
        severity=Severity.WARNING if machine.container else Severity.INFO,
        subject="SELinux",
        message="it is enforcing: a container may not use /dev/nvidia* unless its label allows it",
        why="NVML then says 'Insufficient Permissions', and torch sees no GPU.",
        fix="start containers with --security-opt label=disable (rootless podman above all), or a policy for GPUs; "
        "leave SELinux itself on",
        source="redhat-et/triton-dev-containers#61; NVIDIA container toolkit's troubleshooting",
    )


CHECK = Check(
    name="selinux",
    title="SELinux lets containers use the GPUs",
    look=look,
)
