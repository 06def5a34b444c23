"""Whether this host is one that an image runs on: its portability envelope, held to driver, GPUs and CPU."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from envbuild.collector.hardware import level as cpu_level
from envbuild.elf.gpucode import cubin_runs_on
from envbuild.facts.versions import parse
from envbuild.model import Environment, Finding, Severity
from envbuild.pipeline import gpus

_LEVELS = ("x86-64", "x86-64-v2", "x86-64-v3", "x86-64-v4")
_ANYWAY = "To pull it for another machine: --any-host"


def host_objections(
    env: Environment, portability: Mapping[str, Any], image_platform: str, *, cpuinfo: Path = Path("/proc/cpuinfo")
) -> list[Finding]:
    """Why an image would not run here, as far as its evidence says what it needs.

    Args:
        portability: Of the evidence (``native_rules.Portability``).
        image_platform: Such as ``linux/amd64``.
    """
    found = [*_architecture(env, image_platform), *_cpu(env, portability, cpuinfo)]
    if env.accelerator == "cuda":
        found += _gpu(env, portability, gpus.read())
    return found


def _architecture(env: Environment, image_platform: str) -> Iterator[Finding]:
    machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    wanted = image_platform.split("/")[1] if "/" in image_platform else machine
    if wanted != machine:
        yield _finding(
            env, "host.platform", f"the image is for {image_platform}; this host is linux/{machine}", _ANYWAY
        )


def _cpu(env: Environment, portability: Mapping[str, Any], cpuinfo: Path) -> Iterator[Finding]:
    wanted = portability.get("cpu")
    if wanted not in _LEVELS or platform.machine() != "x86_64":
        return
    try:
        lines = cpuinfo.read_text(errors="replace").splitlines()
    except OSError:
        return
    flags = next((line.partition(":")[2].split() for line in lines if line.startswith("flags")), [])
    here = str(cpu_level(flags))
    if flags and _LEVELS.index(here) < _LEVELS.index(wanted):
        message = f"the image's ops use instructions of {wanted}; this CPU has those of {here}"
        fix = f"Build the row on a lower baseline (its `baseline`, then envbuild build {env.name}). {_ANYWAY}"
        yield _finding(env, "host.cpu", message, fix)


def _gpu(env: Environment, portability: Mapping[str, Any], host: gpus.HostGpus | gpus.DriverFault) -> Iterator[Finding]:
    if isinstance(host, gpus.DriverFault):
        severity = Severity.INFO if host.absent else Severity.WARNING
        fix = "It will be of use on a host that has one." if host.absent else "Repair the driver: envbuild doctor"
        yield _finding(env, "host.gpu", f"no GPU can be used here: {host.message}", fix, severity=severity)
        return
    floor = portability.get("driver")
    if isinstance(floor, str) and parse(host.driver) < parse(floor):
        message = f"the image needs a driver of {floor} or newer; this host has {host.driver}"
        yield _finding(env, "host.driver", message, f"Install a newer driver, or take an older row. {_ANYWAY}")
    listed = portability.get("cubins")
    codes = [str(code) for code in listed] if isinstance(listed, list) else []
    for gpu in host.gpus:
        if codes and not any(cubin_runs_on(code, gpu.sm) for code in codes):
            message = f"the image has machine code for {' '.join(codes)}; {gpu.name} is {gpu.sm}"
            yield _finding(env, "host.gpu", message, f"Take a row for that GPU: envbuild list. {_ANYWAY}")
            break


def _finding(env: Environment, rule: str, message: str, fix: str, *, severity: Severity = Severity.ERROR) -> Finding:
    return Finding(rule=rule, severity=severity, subject=env.name, message=message, fix=fix)
