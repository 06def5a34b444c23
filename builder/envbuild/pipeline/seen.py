"""What a smoke on GPUs really trained on, from its report, held against what was decided before it started."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from envbuild.engines import GpuStartError, known_fault
from envbuild.facts import Facts
from envbuild.judge.number import count, show
from envbuild.judge.outcome import dig
from envbuild.judge.smoke import Gpus
from envbuild.model import Environment, Finding, Level, Severity
from envbuild.pipeline.gates import Decision, fits
from envbuild.pipeline.gpus import version_text
from envbuild.pipeline.smoking import REPORT, Device

_MIG = re.compile(r"\bMIG\b")
_UNPRINTABLE = re.compile(r"[^ -~]")


def really(
    env: Environment, facts: Facts, decision: Decision, reports: Mapping[str, Any]
) -> tuple[Decision, list[Finding]]:
    """The decision as it came out, and where it is not what was decided.

    Args:
        env: The row.
        facts: What is known of GPUs.
        decision: What was decided before the start; for an engine elsewhere the GPUs are filled in here.
        reports: The probe's documents by pass, as decoded JSON; anything in them may be malformed.
    """
    if decision.device is None or decision.device.accelerator != "cuda":
        return decision, []
    report = reports.get(REPORT)
    ranks = dig(report, "ranks")
    devices = [dig(rank, "report", "device") for rank in ranks] if isinstance(ranks, list) else []
    problems, gpus = [], []
    for rank, device in enumerate(devices):
        name = dig(device, "name")
        capability = dig(device, "capability")
        sm = ".".join(map(str, capability)) if isinstance(capability, list) and len(capability) == 2 else None
        if not isinstance(name, str) or fits(env, facts, name, sm) is None:
            problems.append(f"rank {rank} trained on {show(name)}, which is none of {', '.join(env.gpus)}")
            continue
        if _MIG.search(name) and decision.level is Level.GPU and not decision.unseen:
            problems.append(f"rank {rank} trained on a MIG slice ({show(name)}); a whole GPU was asked for")
        gpus.append({"name": _plain(name), "sm": sm, "memory_bytes": count(dig(device, "memory_bytes"))})
    if not devices:
        problems.append("the report does not say which GPUs trained")
    findings = [
        Finding(rule="gate.gpu", severity=Severity.ERROR, subject=env.name, message="; ".join(problems),
                fix="The engine's GPU runtime gave other GPUs than were asked for: see its configuration.")
    ] if problems else []  # fmt: skip
    if not decision.unseen:
        return decision, findings
    driver, cuda = (
        dig(report, "surroundings", "nvidia_driver"),
        count(dig(devices[0] if devices else None, "driver_cuda")),
    )
    part = any(_MIG.search(str(gpu["name"])) for gpu in gpus)
    return dataclasses.replace(
        decision,
        level=Level.GPU_MIG if part else Level.GPU,
        gpus=tuple(gpus),
        driver=_plain(driver) if isinstance(driver, str) else None,
        cuda=version_text(cuda) if cuda else None,
    ), findings


def allowed_gpus(env: Environment, facts: Facts, device: Device) -> Gpus | None:
    """The GPUs that training may be seen on, for the judge; None on the CPU."""
    if device.accelerator != "cuda":
        return None
    named = [facts.gpus[name] for name in env.gpus if name in facts.gpus]
    return Gpus(
        uuids=tuple(each for each in device.gpus if each.startswith(("GPU-", "MIG-"))),
        names=tuple(gpu.name for gpu in named),
        capabilities=tuple(gpu.sm for gpu in named),
    )


def start_fault(env: Environment, error: GpuStartError) -> Finding:
    """The engine could not give the container its GPUs: a fault of the driver or the runtime, not of the image."""
    return Finding(
        rule="gate.runtime",
        severity=Severity.ERROR,
        subject=env.name,
        message=f"{error.fault.meaning}; the engine said: {error.said}",
        fix=error.fault.fix,
        source=error.fault.source,
    )


def driver_faults(env: Environment, findings: list[Finding]) -> list[Finding]:
    """What findings of a smoke on GPUs say of the driver, as findings of their own to be told first."""
    fault = known_fault("\n".join(finding.message for finding in findings))
    if fault is None:
        return []
    return [
        Finding(rule="gate.driver", severity=Severity.ERROR, subject=env.name, message=f"{fault.meaning} (see below)",
                fix=fault.fix, source=fault.source)
    ]  # fmt: skip


def _plain(text: str) -> str:
    return _UNPRINTABLE.sub("?", text)[:100]
