"""The checks: one file each, one list. A new check is a file and an entry here."""

from __future__ import annotations

from envbuild.doctor.checks import (
    alternatives,
    container,
    curand,
    driver,
    environment,
    glibc,
    gpu_arch,
    host_compiler,
    imports,
    launcher,
    libaio,
    libstdcxx,
    memlock,
    memory,
    network,
    ninja,
    numa,
    nvme,
    nvml,
    packages,
    python_headers,
    row,
    selinux,
    shm,
    toolkit,
    wsl,
)
from envbuild.doctor.view import Check

CHECKS: tuple[Check, ...] = (
    alternatives.CHECK,
    container.CHECK,
    curand.CHECK,
    driver.CHECK,
    environment.CHECK,
    glibc.CHECK,
    gpu_arch.CHECK,
    host_compiler.CHECK,
    imports.CHECK,
    launcher.CHECK,
    libaio.CHECK,
    libstdcxx.CHECK,
    memlock.CHECK,
    memory.CHECK,
    network.CHECK,
    ninja.CHECK,
    numa.CHECK,
    nvme.CHECK,
    nvml.CHECK,
    packages.CHECK,
    python_headers.CHECK,
    row.CHECK,
    selinux.CHECK,
    shm.CHECK,
    toolkit.CHECK,
    wsl.CHECK,
)

__all__ = ["CHECKS"]
