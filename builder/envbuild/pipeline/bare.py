"""Prove a bare host: the same probes, outside a container, with any interpreter's torch and DeepSpeed."""

from __future__ import annotations

import dataclasses
import datetime
import os
import platform
import re
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from envbuild import __version__, store
from envbuild.engines.cleanup import host_id
from envbuild.events import PhaseDone, PhaseStarted
from envbuild.evidence import Host
from envbuild.evidence.bare import HostEvidence, fingerprint, save_host
from envbuild.facts import Facts
from envbuild.judge import content, smoke
from envbuild.judge.claims import module
from envbuild.judge.number import count, show
from envbuild.judge.outcome import document
from envbuild.judge.suite import probes_folder, suite_hash
from envbuild.model import Environment, Finding, Level, Severity
from envbuild.pipeline.causes import of_training
from envbuild.pipeline.gates import NONE, Decision, Surroundings, decide, lenient
from envbuild.pipeline.gpus import read as read_gpus
from envbuild.pipeline.host import cpu_name
from envbuild.pipeline.interpreter import described, find_interpreter, run_probe
from envbuild.pipeline.prepare import FindingsError, errors
from envbuild.pipeline.proof import Wish, as_dict, claims
from envbuild.pipeline.smoking import REPORT, STEPS, probe_argv
from envbuild.pipeline.workbench import Workbench

Accelerator = Literal["cpu", "cuda"]
_CONTENT_SECONDS = 300.0
_RULE = "host."


@dataclass(frozen=True, slots=True, kw_only=True)
class HostProof:
    """What an interpreter on this host has shown, and where that is written."""

    interpreter: Path
    level: Level
    path: Path
    record: HostEvidence


@dataclass(frozen=True, slots=True, kw_only=True)
class Ahead:
    """What was seen of a prefix before its interpreter ran. Its ops were compiled: none may be compiled on first use.

    Attributes:
        content: The reports by name.
        findings: Where it is not what the row says.
        launcher: What starts a command in the prefix's environment.
    """

    content: dict[str, Any]
    findings: tuple[Finding, ...]
    launcher: tuple[str, ...]


def prove_host(
    bench: Workbench, python: str, env: Environment | None, accelerator: Accelerator | None, wish: Wish,
    ahead: Ahead | None = None,
) -> HostProof:  # fmt: skip
    """Let an interpreter's modules speak, train with them, and write what was seen as evidence of this host.

    Args:
        bench: The surroundings.
        python: Path of the interpreter, or its name on PATH.
        env: The row that it is held to; None compares its versions with nothing.
        accelerator: What to train on; None is what the row says, or what its torch and this host can.
        wish: How it is wanted.
        ahead: What was seen of it before, for one that envbuild made.

    Raises:
        InputError: That is no Python.
        FindingsError: It does not pass (exit 5).
    """
    interpreter = find_interpreter(python)
    started, began = datetime.datetime.now(datetime.timezone.utc), time.monotonic()
    bench.sink(PhaseStarted(phase="inspect", detail=f"what the modules of {interpreter} say"))
    launcher = ahead.launcher if ahead else ()
    inside, findings = _content(interpreter, env, accelerator, bench.facts, launcher)
    findings = _settled([*(ahead.findings if ahead else ()), *findings], ahead)
    middle = time.monotonic()
    bench.sink(PhaseDone(phase="inspect", seconds=middle - began))
    reports: dict[str, Any] = {}
    decision = Decision(level=Level.BUILT, device=None)
    if not errors(findings):
        decision = _decision(bench, env, accelerator or (env.accelerator if env else None), inside, wish)
        findings += decision.findings
    if decision.device is not None and not errors(findings):
        ranks = decision.device.ranks
        bench.sink(PhaseStarted(phase="smoke", detail=f"{ranks} ranks on {decision.device.accelerator}, {STEPS} steps"))
        report, told = _train(interpreter, env, decision, wish, launcher)
        reports[REPORT] = report
        findings += _settled(told, ahead)
        bench.sink(PhaseDone(phase="smoke", seconds=time.monotonic() - middle))
    record = HostEvidence(
        schema="envbuild.evidence/1",
        fingerprint=fingerprint(interpreter, host_id()),
        environment=env.name if env else None,
        level=decision.level if reports else Level.BUILT,
        suite=suite_hash(),
        envbuild=__version__,
        claims=claims(env) if env else {},
        content=_masked({**(ahead.content if ahead else {}), "inside": inside}),
        smoke=_masked(reports),
        findings=tuple(_masked([as_dict(finding) for finding in findings])),
        host=_host(decision),
        started=started,
        finished=datetime.datetime.now(datetime.timezone.utc),
        long_seconds=wish.long_seconds if reports else None,
        seconds={"inspect": round(middle - began, 3), "smoke": round(time.monotonic() - middle, 3)},
    )
    if errors(findings):
        path = store.home() / "reports" / f"host-{record.fingerprint[:12]}-{started:%Y%m%dT%H%M%S}.json"
        store.write_json(path, {**record.model_dump(mode="json", by_alias=True), "level": "rejected"})
        error = FindingsError(
            f"{interpreter} does not pass: {len(errors(findings))} finding(s)", tuple(findings),
            hint=f"The whole report: {path}", exit_code=5,
        )  # fmt: skip
        error.causes = of_training(bench, reports.get(REPORT), findings)
        raise error
    path = save_host(record)
    required = env.required_level if env else Level.DECLARED
    if record.level.rank < min(required.rank, (wish.allow_level or required).rank):
        raise FindingsError(
            f"{interpreter} shows level {record.level.value} on this host; the row {record.environment} requires "
            f"{required.value}", tuple(findings), hint=f"The evidence was written: {path}", exit_code=5,
        )  # fmt: skip
    return HostProof(interpreter=interpreter, level=record.level, path=path, record=record)


def _settled(findings: list[Finding], ahead: Ahead | None) -> list[Finding]:
    """On a host that envbuild made, an op that is compiled on first use is no matter of taste."""
    strict = {f"{_RULE}op", f"{_RULE}jit"} if ahead else set()
    return [dataclasses.replace(each, severity=Severity.ERROR) if each.rule in strict else each for each in findings]


def _content(
    interpreter: Path, env: Environment | None, accelerator: Accelerator | None, facts: Facts,
    launcher: tuple[str, ...],
) -> tuple[dict[str, Any], list[Finding]]:  # fmt: skip
    """What the modules say. An op that would be compiled on first use is normal on a bare host: a warning."""
    ops = ",".join(env.deepspeed.ops) if env else ""
    named = accelerator or (env.accelerator if env else "cpu")
    argv = (*launcher, str(interpreter), "-I", str(probes_folder() / "content.py"),
            "--ops", ops, "--accelerator", named)  # fmt: skip
    outcome = run_probe(argv, _CONTENT_SECONDS)
    inside = document(outcome, content.SCHEMA)
    if inside is None:
        return {}, smoke.explain_failure(outcome, probe="content")
    findings = []
    for name in ("torch", "deepspeed"):
        reason = module(inside, "imported", name, "error")
        if reason is not None or module(inside, "imported", name, "version") is None:
            findings.append(
                _finding(f"{_RULE}{name}", interpreter, f"{name} cannot be imported: {show(reason or 'no version')}",
                         f"Install it for this interpreter: {interpreter} -m pip install {name}")
            )  # fmt: skip
    for op in env.deepspeed.ops if env and not findings else ():
        if module(inside, "ops", op, "loaded") is not True:
            known = facts.deepspeed.ops.get(op)
            variable = known.build_variable if known else "DS_BUILD_OPS"
            findings.append(
                _finding(f"{_RULE}op", interpreter, f"{op} is not there ahead of time: it is compiled on first use",
                         f"Compile it when DeepSpeed is installed: {variable}=1", severity=Severity.WARNING)
            )  # fmt: skip
    return inside, findings


def _decision(
    bench: Workbench,
    env: Environment | None,
    accelerator: Accelerator | None,
    inside: Mapping[str, Any],
    wish: Wish,
) -> Decision:
    can_gpu = module(inside, "torch", "cuda") is not None
    asked = accelerator or (env.accelerator if env else None) or ("cuda" if can_gpu else "cpu")
    held = (env or described(inside)).model_copy(update={"accelerator": asked})
    host = read_gpus() if asked == "cuda" and wish.gpus != NONE else None
    if asked == "cpu" or wish.gpus == NONE:
        return decide(held, bench.facts, Surroundings(host=None, image_env={}), NONE)
    around = Surroundings(host=host, image_env={}, any_gpu=env is None)
    decision = lenient(decide(held, bench.facts, around, wish.gpus), held, bench.facts, wish.allow_level)
    if accelerator == "cuda" and (decision.device is None or decision.device.accelerator != "cuda"):
        refused = tuple(dataclasses.replace(each, severity=Severity.ERROR) for each in decision.findings)
        return dataclasses.replace(decision, device=None, findings=refused)
    return decision


def _train(
    interpreter: Path, env: Environment | None, decision: Decision, wish: Wish, launcher: tuple[str, ...]
) -> tuple[dict[str, Any] | None, list[Finding]]:
    device = decision.device
    assert device is not None
    seed, seconds = secrets.randbelow(2**31), wish.long_seconds or 0.0
    expected = smoke.Expected.host(seed=seed, accelerator=device.accelerator, seconds=seconds)
    if env is not None:
        held = smoke.Expected.of(env, seed=seed, accelerator=device.accelerator, seconds=seconds)
        expected = dataclasses.replace(held, jit=not launcher)
    limit = wish.timeout + seconds
    argv = probe_argv(expected, ranks=device.ranks, timeout=limit, place=str(probes_folder()), disk="",
                      python=str(interpreter))  # fmt: skip
    outcome = run_probe(
        (*launcher, *argv), limit, {"CUDA_VISIBLE_DEVICES": ",".join(device.gpus)} if device.gpus else {}
    )
    report = document(outcome, smoke.SCHEMA)
    failure = smoke.explain_failure(outcome)
    if failure or report is None:
        return report, failure
    findings = smoke.judge(expected, report)
    if count(report.get("extension_files")) != 0:
        findings.append(
            _finding(f"{_RULE}jit", interpreter, "an op was compiled on first use, as it may be on a bare host; every "
                     f"new user waits for it ({show(report.get('extension_files'))} files)",
                     "Compile it when DeepSpeed is installed: DS_BUILD_CPU_ADAM=1 and the like.",
                     severity=Severity.WARNING)
        )  # fmt: skip
    return report, findings


def _host(decision: Decision) -> Host:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Host(
        system=f"{platform.system()} {platform.release()}", machine=platform.machine(), cpu=cpu_name(),
        cpus=len(os.sched_getaffinity(0)), memory_bytes=memory, engine="none", gpus=decision.gpus,
        driver=decision.driver, cuda=decision.cuda,
    )  # fmt: skip


def _masked(document: Any) -> Any:
    """Without the user's and the host's name, which paths and messages carry; a host may be called like a key."""
    if isinstance(document, dict):
        return {key: _masked(value) for key, value in document.items()}
    if isinstance(document, (list, tuple)):
        return [_masked(value) for value in document]
    if isinstance(document, str):
        for secret, mask in ((str(Path.home()), "~"), (platform.node(), "host")):
            if len(secret) > 2:
                document = re.sub(rf"(?<![\w.-]){re.escape(secret)}(?![\w-])", mask, document)
    return document


def _finding(rule: str, interpreter: Path, message: str, fix: str, *, severity: Severity = Severity.ERROR) -> Finding:
    return Finding(rule=rule, severity=severity, subject=str(interpreter), message=message, fix=fix)
