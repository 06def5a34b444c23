"""The host as evidence records it: what it can do, never whose it is."""

from __future__ import annotations

import platform
from pathlib import Path

from envbuild.engines import EngineInfo
from envbuild.evidence import Host


def describe(engine: EngineInfo) -> Host:
    """System, processor and engine. Host and user names, addresses and paths are left out on purpose."""
    return Host(
        system=f"{platform.system()} {platform.release()}",
        machine=platform.machine(),
        cpu=_cpu(),
        cpus=engine.cpus,
        memory_bytes=engine.memory_bytes,
        engine=f"{engine.kind} {engine.version} ({engine.storage_driver})",
    )


def _cpu() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or "unknown"
