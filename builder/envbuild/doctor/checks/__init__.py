"""The checks: one file each, one list. A new check is a file and an entry here."""

from __future__ import annotations

from envbuild.doctor.checks import (
    abi,
    compilers,
    cuda_libraries,
    glibc,
    isa,
    jit,
    libcuda,
    libstdcxx,
    loader,
    nccl,
    ops,
)
from envbuild.doctor.view import Check

CHECKS: tuple[Check, ...] = (
    abi.CHECK,
    compilers.CHECK,
    cuda_libraries.CHECK,
    glibc.CHECK,
    isa.CHECK,
    jit.CHECK,
    libcuda.CHECK,
    libstdcxx.CHECK,
    loader.CHECK,
    nccl.CHECK,
    ops.CHECK,
)

__all__ = ["CHECKS"]
