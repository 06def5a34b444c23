"""Look into an image and run it: inspect, smoke, evidence. Tags nothing."""

from __future__ import annotations

import contextlib
import datetime
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from envbuild import __version__, evidence, store
from envbuild.engines import GpuStartError, ImageInfo, Run
from envbuild.errors import EngineError, GateError
from envbuild.events import Note, PhaseDone, PhaseStarted
from envbuild.judge.standards import Standards
from envbuild.judge.suite import suite_hash
from envbuild.model import Environment, Finding, Level, Severity
from envbuild.pipeline import bills
from envbuild.pipeline.causes import of_training
from envbuild.pipeline.gates import NONE, Decision, Surroundings, decide, lenient, obstructed
from envbuild.pipeline.gpus import read as read_gpus
from envbuild.pipeline.host import describe
from envbuild.pipeline.inspecting import inspect_image
from envbuild.pipeline.memo import remembered
from envbuild.pipeline.prepare import FindingsError, errors
from envbuild.pipeline.proof import Proof, Wish, as_dict, claims
from envbuild.pipeline.seen import allowed_gpus, driver_faults, really, start_fault
from envbuild.pipeline.smoking import REPORT, SMOKE_SECONDS, STEPS, Device, smoke_image
from envbuild.pipeline.turns import training
from envbuild.pipeline.workbench import Workbench


@dataclass
class _Progress:
    """What has been seen so far; it is worth keeping even when the gate stays shut."""

    started: datetime.datetime
    content: dict[str, Any] = field(default_factory=dict)
    smoke: dict[str, Any] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)


def prove(
    bench: Workbench,
    run: Run,
    env: Environment,
    ref: str,
    *,
    target_id: str | None,
    base: dict[str, Any],
    wish: Wish,
) -> Proof:
    """Inspect and smoke one image and write what was seen; or find that this was done already.

    Args:
        bench: The surroundings.
        run: This run; its labels go onto every container.
        env: The row whose claims the image is held to.
        ref: Name of the image in the engine.
        target_id: Declared inputs it was built from, None when it was built elsewhere.
        base: What is known of the base that was really used.
        wish: How it is wanted.

    Raises:
        FindingsError: The GPUs or their driver cannot do it, the image is not what it claims to be, or does not train
            right (exit 5).
        EngineError: The engine failed.
    """
    engine = bench.engine
    info = engine.image(ref)
    if info is None:
        raise GateError(f"there is no image {ref}", hint=f"See what there is: {engine.kind} images 'envbuild/*'")
    _usable(env, ref, info)
    # Before anything runs, and as if a cuda-compat library were in the image: that is seen by looking into it.
    decision = _decided(bench, env, info, wish, compat=True)
    _tell(bench, ref, decision)
    memo = remembered(
        info, env, decision, claims=claims(env), suite=suite_hash(), long_seconds=wish.long_seconds, force=wish.force,
        key=bench.signing_key.public if bench.signing_key else None,
    )  # fmt: skip
    bench.sink(Note(message=memo.reason))
    if memo.record is not None and memo.path is not None:
        return Proof(
            engine_id=info.id, level=memo.record.level, path=memo.path, record=memo.record, missing=decision.findings,
            reused=True,
        )  # fmt: skip
    seen = _Progress(started=datetime.datetime.now(datetime.timezone.utc))
    with _phase(bench, seen, "inspect", "what the image says, from outside and from inside"):
        scratch = _scratch(bench)
        found = inspect_image(
            engine, run, env, info.id,
            standards=Standards.of(env, bench.facts), scratch=scratch, sink=bench.sink,
            beside=bills.beside(bench.cache, scratch),
        )  # fmt: skip
    seen.content = found.reports
    seen.findings += found.findings
    if not found.compat:
        decision = _decided(bench, env, info, wish, compat=False)
        seen.findings += errors(decision.findings)
    level = Level.BUILT
    if decision.device is not None and not errors(seen.findings):
        decision = _smoke(bench, run, env, info, seen, decision, decision.device, wish)
        if not errors(seen.findings):
            level = decision.level
    failed = errors(seen.findings)
    record = evidence.Evidence(
        schema="envbuild.evidence/1",
        environment=env.name,
        target_id=target_id,
        level=level,
        suite=suite_hash(),
        envbuild=__version__,
        image=evidence.Identity.of(found.identity),
        platform=f"{info.os}/{info.architecture}",
        size_bytes=info.size,
        base=base,
        claims=claims(env),
        content=seen.content,
        portability=found.portability,
        smoke=seen.smoke,
        findings=tuple(as_dict(finding) for finding in (*decision.findings, *seen.findings)),
        host=describe(engine.info(), gpus=decision.gpus, driver=decision.driver, cuda=decision.cuda),
        started=seen.started,
        finished=datetime.datetime.now(datetime.timezone.utc),
        seconds={name: round(seconds, 3) for name, seconds in seen.seconds.items()},
        long_seconds=wish.long_seconds if decision.device else None,
    )
    if failed:
        path = store.home() / "reports" / f"{run.id}.json"
        store.write_json(path, {**record.model_dump(mode="json", by_alias=True), "level": "rejected"})
        error = FindingsError(
            f"{ref} does not pass: {len(failed)} finding(s)",
            tuple(seen.findings),
            hint=f"Nothing was tagged. The whole report: {path}",
            exit_code=5,
        )
        error.causes = of_training(bench, seen.smoke.get(REPORT), failed)
        raise error
    path = evidence.save(record, info.id, key=bench.signing_key)
    return Proof(engine_id=info.id, level=level, path=path, record=record, missing=decision.findings)


def foresee(bench: Workbench, env: Environment, wish: Wish) -> None:
    """Say before a long build what will stand in the way of its proof; it stops nothing yet."""
    for finding in _decided(bench, env, None, wish, compat=True).findings:
        if finding.severity is not Severity.INFO:
            bench.sink(Note(message=f"[{finding.rule}] {finding.message}", level="warning"))


def _decided(bench: Workbench, env: Environment, info: ImageInfo | None, wish: Wish, *, compat: bool) -> Decision:
    host = read_gpus() if env.accelerator == "cuda" and bench.engine.local and wish.gpus != NONE else None
    image_env = dict(info.env) if info else {}
    around = Surroundings(host=host, image_env=image_env, compat=compat, engine=bench.engine.endpoint)
    decision = lenient(decide(env, bench.facts, around, wish.gpus), env, bench.facts, wish.allow_level)
    device = decision.device
    if device is not None and device.accelerator == "cuda" and (obstacle := bench.engine.gpu_obstacle):
        return lenient(obstructed(env, decision, obstacle), env, bench.facts, wish.allow_level)
    return decision


def _tell(bench: Workbench, ref: str, decision: Decision) -> None:
    """Say what stands in the way of a GPU; stop where nothing may start.

    Raises:
        FindingsError: The GPUs or their driver cannot do it (exit 5).
    """
    if errors(decision.findings):
        raise FindingsError(
            f"{ref} cannot be proven here: {len(errors(decision.findings))} finding(s)", decision.findings,
            hint="Nothing was started, and nothing was tagged; the image stays.", exit_code=5,
        )  # fmt: skip
    for finding in decision.findings:
        level = "info" if finding.severity is Severity.INFO else "warning"
        bench.sink(Note(message=f"[{finding.rule}] {finding.message}", level=level))


def _smoke(
    bench: Workbench,
    run: Run,
    env: Environment,
    info: ImageInfo,
    seen: _Progress,
    decision: Decision,
    device: Device,
    wish: Wish,
) -> Decision:
    """Train; what was seen goes into ``seen``. Returns the decision as it came out."""
    on = "on the CPU" if device.accelerator == "cpu" else f"on {', '.join(device.gpus)}"
    detail = f"{device.ranks or 'as many'} ranks {on}, ZeRO-3 with offload, {STEPS} steps"
    with training(bench, device), _phase(bench, seen, "smoke", detail):
        try:
            smoked = smoke_image(
                bench.engine, run, env, info.id, device=device, timeout=wish.timeout, long_seconds=wish.long_seconds,
                gpus=allowed_gpus(env, bench.facts, device),
            )  # fmt: skip
        except GpuStartError as error:
            seen.findings.append(start_fault(env, error))
            return decision
    seen.smoke = smoked.reports
    if device.accelerator == "cuda" and errors(smoked.findings):
        seen.findings += driver_faults(env, smoked.findings)
    seen.findings += smoked.findings
    if errors(seen.findings):
        return decision
    came_out, problems = really(env, bench.facts, decision, smoked.reports)
    seen.findings += problems
    return came_out


def proven(info: ImageInfo, env: Environment) -> tuple[Level, evidence.Evidence, Path] | None:
    """The strongest level an image has proven as this row, as the row is today, by the current suite."""
    return evidence.best(info.id, info.diff_ids, environment=env.name, claims=claims(env), suite=suite_hash())


def _scratch(bench: Workbench) -> Path:
    try:
        bench.cache.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise EngineError(f"cannot make the cache folder {bench.cache}: {error.strerror}") from error
    return bench.cache


def _usable(env: Environment, ref: str, info: ImageInfo) -> None:
    wanted = {platform.removeprefix("linux/") for platform in env.platforms}
    if info.architecture not in wanted:
        raise GateError(
            f"{ref} is a {info.os}/{info.architecture} image; the row {env.name} is for {', '.join(env.platforms)}",
            hint="Build it for the row's platform.",
        )


@contextlib.contextmanager
def _phase(bench: Workbench, seen: _Progress, name: str, detail: str = "") -> Iterator[None]:
    bench.sink(PhaseStarted(phase=name, detail=detail))
    began = time.monotonic()
    try:
        yield
    finally:
        seen.seconds[name] = time.monotonic() - began
    bench.sink(PhaseDone(phase=name, seconds=seen.seconds[name]))


def note_unsigned(bench: Workbench) -> None:
    """Say once that evidence carries no signature; say nothing where it does."""
    if bench.signing_key is None:
        bench.sink(Note(message="the evidence is not signed: no signing key is configured (see: envbuild key new)"))


__all__ = ["SMOKE_SECONDS", "Proof", "Wish", "as_dict", "claims", "foresee", "note_unsigned", "prove", "proven"]
