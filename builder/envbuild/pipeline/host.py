"""The host as evidence records it: what it can do, never whose it is."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

from envbuild.engines import EngineInfo
from envbuild.evidence import Host


def describe(
    engine: EngineInfo, *, gpus: tuple[dict[str, Any], ...] = (), driver: str | None = None, cuda: str | None = None
) -> Host:
    """System, processor, engine and GPUs. Names of hosts and users, addresses, paths and UUIDs are left out on purpose.

    Args:
        engine: The engine that ran it.
        gpus: The GPUs that trained: name, compute capability, memory.
        driver: Version of their driver.
        cuda: The newest CUDA that the driver knows.
    """
    return Host(
        system=f"{platform.system()} {platform.release()}",
        machine=platform.machine(),
        cpu=cpu_name(),
        cpus=engine.cpus,
        memory_bytes=engine.memory_bytes,
        engine=f"{engine.kind} {engine.version} ({engine.storage_driver})",
        gpus=gpus,
        driver=driver,
        cuda=cuda,
    )


def cpu_name() -> str:
    """The processor's model."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or "unknown"


def host_name() -> str:
    """What this host is called, by Slurm where it runs a job: a machine may be several of its nodes."""
    return os.environ.get("SLURMD_NODENAME") or platform.node()
