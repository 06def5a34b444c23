"""Which GPUs a smoke gets, and what it can prove: decided before any container starts. Pure."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from envbuild.errors import InputError
from envbuild.evidence import seen_on
from envbuild.facts import Facts
from envbuild.facts.versions import cuda_of_build, parse, within
from envbuild.model import Environment, Finding, Level, Severity
from envbuild.pipeline.gpus import DriverFault, Gpu, HostGpus, Slice
from envbuild.pipeline.requirements import unfulfilled
from envbuild.pipeline.smoking import CPU, Device

ALL, NONE = ("all",), ("none",)
_OPTIONS = "With --gpus none, or with --allow-level, it is proven on the CPU, and no more than that."


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What a smoke trains on.

    Attributes:
        level: What it proves when it passes.
        device: None when nothing can train here.
        gpus: The GPUs, as the evidence names them.
        findings: What stands in the way of more; one of severity error forbids to start.
        unseen: The engine is on another host: which GPUs there are is seen in the container only.
    """

    level: Level
    device: Device | None
    gpus: tuple[dict[str, Any], ...] = ()
    driver: str | None = None
    cuda: str | None = None
    findings: tuple[Finding, ...] = ()
    unseen: bool = False

    @property
    def seen_on(self) -> str:
        """GPU models and driver, as the name of the evidence carries them."""
        return seen_on([str(gpu["name"]) for gpu in self.gpus], self.driver) if self.gpus else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What a decision depends on beside the row.

    Attributes:
        host: The GPUs here, or why they cannot be asked; None when the engine is elsewhere.
        image_env: The variables of the image.
        compat: The image carries a cuda-compat library.
        engine: The engine's address, for messages.
        any_gpu: Held to no row: every GPU is one that counts.
    """

    host: HostGpus | DriverFault | None
    image_env: Mapping[str, str]
    compat: bool = False
    engine: str = ""
    any_gpu: bool = False


def parse_gpus(text: str | None) -> tuple[str, ...]:
    """``--gpus``: all, none, or GPUs by UUID or index, with commas.

    Raises:
        InputError: It is none of these.
    """
    wanted = tuple(part.strip() for part in (text or "all").split(","))
    if wanted in (ALL, NONE):
        return wanted
    for part in wanted:
        if not re.fullmatch(r"\d{1,3}(:\d{1,2})?|(GPU|MIG)-[0-9A-Za-z/-]{4,120}", part):
            raise InputError(
                f"--gpus: '{part}' is no GPU",
                hint="Say all, none, or GPUs by UUID or index (nvidia-smi -L): --gpus 0,1 or --gpus MIG-...",
            )
    return tuple(dict.fromkeys(wanted))


def decide(env: Environment, facts: Facts, around: Surroundings, wanted: tuple[str, ...] = ALL) -> Decision:
    """What this row's smoke trains on here.

    Without ``wanted``: every GPU that the row names, each a rank; where there are only MIG slices of one, the largest
    slice; where there is no such GPU, the CPU.

    Raises:
        InputError: GPUs were asked for, and the row uses none.
    """
    if env.accelerator == "cpu":
        if wanted not in (ALL, NONE):
            raise InputError(f"--gpus: the row {env.name} trains on the CPU", hint="Leave --gpus out.")
        return Decision(level=Level.CPU, device=CPU)
    if wanted == NONE:
        return _on_cpu(env, facts, ())
    host = around.host
    if host is None:
        elsewhere = _finding(
            "gate.gpu", env, f"the engine at {around.engine} runs its containers on another host: which GPUs and which "
            "driver are there is seen in the container only", severity=Severity.INFO,
        )  # fmt: skip
        device = Device(accelerator="cuda", ranks=0 if wanted == ALL else len(wanted), gpus=wanted)
        return Decision(level=Level.GPU, device=device, findings=(elsewhere,), unseen=True)
    if isinstance(host, DriverFault):
        if host.absent and wanted == ALL:
            return _on_cpu(env, facts, (_no_gpu(env, facts, host.message),))
        return _refused(_finding("gate.driver", env, host.message, host.fix or _needed(env, facts)))
    return _chosen(env, facts, around, host, wanted)


def lenient(decision: Decision, env: Environment, facts: Facts, allowed: Level | None) -> Decision:
    """The same, when less than the row requires is allowed: what forbids to use a GPU then only is a warning."""
    if allowed is None or allowed.rank > Level.CPU.rank or not _errors(decision.findings):
        return decision
    milder = tuple(dataclasses.replace(each, severity=Severity.WARNING) for each in decision.findings)
    return _on_cpu(env, facts, milder)


def obstructed(env: Environment, decision: Decision, obstacle: str) -> Decision:
    """The same, when the engine cannot give its GPUs to a container: then a smoke would prove nothing."""
    refusal = _finding(
        "gate.runtime", env, obstacle,
        f"Install Podman's client (4.1 or newer), or use a Docker Engine (--host). {_OPTIONS}",
        source="https://github.com/containers/podman/issues/22645",
    )  # fmt: skip
    return dataclasses.replace(decision, device=None, findings=(*decision.findings, refusal))


def fits(env: Environment, facts: Facts, product: str, sm: str | None = None) -> str | None:
    """The row's name for a GPU, by its product name and its compute capability; None when it is none of the row's."""
    for name in env.gpus:
        known = facts.gpus.get(name)
        # Whole words only: an H200 is not in a GH200.
        if known and re.search(rf"(?<![a-z0-9]){re.escape(known.name)}(?![a-z0-9])", product, re.IGNORECASE):
            return name if sm in (None, known.sm) else None
    return None


def _chosen(env: Environment, facts: Facts, around: Surroundings, host: HostGpus, wanted: tuple[str, ...]) -> Decision:
    gpus, slices, missing = _select(host, wanted)
    if missing:
        there = ", ".join(_told(gpu) for gpu in host.gpus) or "none"
        return _refused(_finding("gate.gpu", env, f"there is no GPU {', '.join(missing)} here; there are: {there}",
                                 "nvidia-smi -L lists them."))  # fmt: skip
    parents = [gpu for gpu, _ in slices]
    every = () if around.any_gpu else (*gpus, *parents)
    foreign = [gpu for gpu in every if fits(env, facts, gpu.name, gpu.sm) is None]
    if wanted == ALL:
        gpus = [gpu for gpu in gpus if gpu not in foreign]
        slices = [(gpu, part) for gpu, part in slices if gpu not in foreign]
        if not gpus and not slices:
            return _on_cpu(env, facts, (_no_gpu(env, facts, _there(host, env, facts)),))
        slices = [] if gpus else sorted(slices, key=lambda each: each[1].memory_bytes)[-1:]
    elif foreign:
        told = ", ".join(_told(gpu) for gpu in foreign)
        return _refused(_finding("gate.gpu", env, f"{told}: not what the row names", _needed(env, facts)))
    elif slices and (gpus or len(slices) > 1):
        return _refused(_finding("gate.gpu", env, "one MIG slice is one rank, and trains with nothing beside it",
                                 "Name one slice, or whole GPUs."))  # fmt: skip
    used = gpus or [slices[0][0]]
    found = _driver(env, facts, around, host, used)
    if _errors(found):
        return _refused(*found)
    if gpus:
        named = tuple({"name": gpu.name, "sm": gpu.sm, "memory_bytes": gpu.memory_bytes} for gpu in gpus)
        level, ids = Level.GPU, tuple(gpu.uuid for gpu in gpus)
    else:
        (gpu, part) = slices[0]
        name = f"{gpu.name} MIG {part.profile}"
        named = ({"name": name, "sm": gpu.sm, "memory_bytes": part.memory_bytes},)
        level, ids = Level.GPU_MIG, (part.uuid,)
        found += (_slice_only(env, name),)
    device = Device(accelerator="cuda", ranks=len(ids), gpus=ids)
    return Decision(level=level, device=device, gpus=named, driver=host.driver, cuda=host.cuda, findings=found)


def _select(host: HostGpus, wanted: tuple[str, ...]) -> tuple[list[Gpu], list[tuple[Gpu, Slice]], list[str]]:
    """Whole GPUs, slices with their GPUs, and what was asked for and is not there. A GPU in MIG mode is its slices."""
    whole = {name: gpu for gpu in host.gpus if not gpu.mig for name in (gpu.uuid, str(gpu.index))}
    parts = {
        name: (gpu, part)
        for gpu in host.gpus
        for place, part in enumerate(gpu.slices)
        for name in (part.uuid, f"{gpu.index}:{place}")
    }
    if wanted == ALL:
        wanted = tuple(gpu.uuid for gpu in whole.values()) + tuple(part.uuid for _, part in parts.values())
    gpus = list(dict.fromkeys(whole[name] for name in wanted if name in whole))
    slices = list(dict.fromkeys(parts[name] for name in wanted if name in parts))
    return gpus, slices, [name for name in wanted if name not in whole and name not in parts]


def _driver(
    env: Environment, facts: Facts, around: Surroundings, host: HostGpus, used: list[Gpu]
) -> tuple[Finding, ...]:
    """R16: the driver is as new as toolkit and GPU want it, and fulfils what the image asks for."""
    cuda = env.cuda.version if env.cuda else cuda_of_build(env.torch.build)
    names = tuple(dict.fromkeys(name for gpu in used if (name := fits(env, facts, gpu.name))))
    floor = facts.driver_floor(cuda, names) if cuda else None
    found = []
    numbers = re.match(r"\d+(\.\d+)*", host.driver)
    if floor and (numbers is None or parse(numbers[0]) < parse(floor.floor)):
        rescued = around.compat and all(name in facts.datacenter.gpus for name in names)
        message = (
            f"the driver is {host.driver}; CUDA {cuda} on {', '.join(gpu.name for gpu in used)} needs {floor.floor}"
        )
        if rescued:
            message += "; the image's cuda-compat library makes up for it on datacenter GPUs"
        fix = f"Install a driver of {floor.floor} or newer, or use a row with an older CUDA. {_OPTIONS}"
        source = f"R16: {floor.source} ({floor.date}, {floor.mark.value})"
        severity = Severity.WARNING if rescued else Severity.ERROR
        found.append(_finding("gate.driver", env, message, fix, severity=severity, source=source))
    asked = {
        each
        for gpu in used
        for each in unfulfilled(around.image_env, driver=host.driver, cuda=host.cuda, sm=gpu.sm, brand=gpu.brand)
    }
    found += [
        _finding(
            "gate.driver", env, f"the image asks for more than driver {host.driver} (CUDA {host.cuda}) fulfils: "
            f"{each[:200]}", f"Install a newer driver: the GPU runtime would refuse to start the image. {_OPTIONS}",
            source="R16: libnvidia-container, src/cli/dsl.c",
        )
        for each in sorted(asked)
    ]  # fmt: skip
    return tuple(found)


def _on_cpu(env: Environment, facts: Facts, findings: tuple[Finding, ...]) -> Decision:
    first = facts.deepspeed.minimums.cpu
    if within(env.deepspeed.version, first.version, None):
        return Decision(level=Level.CPU, device=CPU, findings=findings)
    cannot = _finding(
        "gate.level", env, f"DeepSpeed {env.deepspeed.version} cannot train on the CPU, so nothing can train here",
        f"DeepSpeed {first.version} is the first that can. {_needed(env, facts)}", severity=Severity.WARNING,
        source=f"{first.source} ({first.date})",
    )  # fmt: skip
    return Decision(level=Level.BUILT, device=None, findings=(*findings, cannot))


def _refused(*findings: Finding) -> Decision:
    return Decision(level=Level.BUILT, device=None, findings=findings)


def _no_gpu(env: Environment, facts: Facts, message: str) -> Finding:
    return _finding("gate.gpu", env, message, _needed(env, facts), severity=Severity.WARNING)


def _slice_only(env: Environment, name: str) -> Finding:
    return _finding(
        "gate.gpu", env, f"only a MIG slice is here ({name}): it proves gpu-mig, which is not gpu",
        "Use a whole GPU: nvidia-smi -i INDEX -mig 0 takes it out of MIG mode.", severity=Severity.WARNING,
    )  # fmt: skip


def _needed(env: Environment, facts: Facts) -> str:
    names = " or ".join(facts.gpus[name].name for name in env.gpus if name in facts.gpus) or "no GPU at all"
    cuda = env.cuda.version if env.cuda else cuda_of_build(env.torch.build)
    floor = facts.driver_floor(cuda, env.gpus) if cuda else None
    driver = f" with driver {floor.floor} or newer" if floor else ""
    return f"The row {env.name} names {names}{driver}: use a host that has one. {_OPTIONS}"


def _there(host: HostGpus, env: Environment, facts: Facts) -> str:
    if not host.gpus:
        return f"driver {host.driver} sees no GPU on this host"
    undivided = [gpu for gpu in host.gpus if gpu.mig and not gpu.slices and fits(env, facts, gpu.name, gpu.sm)]
    if undivided:
        return f"{', '.join(map(_told, undivided))} is in MIG mode and has no slice (nvidia-smi mig -cgi ... -C)"
    return f"this host has {', '.join(map(_told, host.gpus))}: none that the row names"


def _told(gpu: Gpu) -> str:
    return f"GPU {gpu.index} ({gpu.name})"


def _errors(findings: tuple[Finding, ...]) -> bool:
    return any(finding.severity is Severity.ERROR for finding in findings)


def _finding(
    rule: str, env: Environment, message: str, fix: str = "", *, severity: Severity = Severity.ERROR, source: str = ""
) -> Finding:
    return Finding(rule=rule, severity=severity, subject=env.name, message=message, fix=fix, source=source)
