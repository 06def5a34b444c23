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
from envbuild.engines import ImageInfo, Run
from envbuild.errors import EngineError, GateError
from envbuild.events import Note, PhaseDone, PhaseStarted
from envbuild.judge.standards import Standards
from envbuild.judge.suite import suite_hash
from envbuild.model import Environment, Finding, Level
from envbuild.pipeline.host import describe
from envbuild.pipeline.inspecting import inspect_image
from envbuild.pipeline.prepare import FindingsError, errors
from envbuild.pipeline.smoking import CPU, SMOKE_SECONDS, STEPS, smoke_image
from envbuild.pipeline.workbench import Workbench


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """What an image has shown, and where that is written; ``engine_id`` is the image that was looked at."""

    engine_id: str
    level: Level
    path: Path
    record: evidence.Evidence


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
    timeout: float = SMOKE_SECONDS,
) -> Proof:
    """Inspect and smoke one image and write what was seen.

    Args:
        bench: The surroundings.
        run: This run; its labels go onto every container.
        env: The row whose claims the image is held to.
        ref: Name of the image in the engine.
        target_id: Declared inputs it was built from, None when it was built elsewhere.
        base: What is known of the base that was really used.
        timeout: Limit of the smoke, in seconds.

    Raises:
        FindingsError: The image is not what it claims to be, or does not train right (exit 5).
        EngineError: The engine failed.
    """
    engine = bench.engine
    info = engine.image(ref)
    if info is None:
        raise GateError(f"there is no image {ref}", hint="See what there is: docker images 'envbuild/*'")
    _usable(env, ref, info)
    seen = _Progress(started=datetime.datetime.now(datetime.timezone.utc))
    with _phase(bench, seen, "inspect", "what the image says, from outside and from inside"):
        found = inspect_image(
            engine, run, env, info.id,
            standards=Standards.of(env, bench.facts), scratch=_scratch(bench), sink=bench.sink,
        )  # fmt: skip
    seen.content = found.reports
    seen.findings += found.findings
    level = Level.BUILT
    if not errors(seen.findings):
        device = CPU
        with _phase(bench, seen, "smoke", f"{device.ranks} ranks, ZeRO-3 with offload, {STEPS} steps"):
            smoked = smoke_image(engine, run, env, info.id, device=device, timeout=timeout)
        seen.smoke = smoked.reports
        seen.findings += smoked.findings
        if not errors(seen.findings):
            level = Level.CPU
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
        findings=tuple(as_dict(finding) for finding in seen.findings),
        host=describe(engine.info()),
        started=seen.started,
        finished=datetime.datetime.now(datetime.timezone.utc),
        seconds={name: round(seconds, 3) for name, seconds in seen.seconds.items()},
    )
    if failed:
        path = store.home() / "reports" / f"{run.id}.json"
        store.write_json(path, {**record.model_dump(mode="json", by_alias=True), "level": "rejected"})
        raise FindingsError(
            f"{ref} does not pass: {len(failed)} finding(s)",
            tuple(seen.findings),
            hint=f"Nothing was tagged. The whole report: {path}",
            exit_code=5,
        )
    path = evidence.save(record, info.id)
    return Proof(engine_id=info.id, level=level, path=path, record=record)


def claims(env: Environment) -> dict[str, str]:
    """What the row says of the image, for the record."""
    said = {
        "python": env.python,
        "gcc": env.gcc.version,
        "torch": env.torch_version,
        "deepspeed": env.deepspeed.version,
        "ops": ",".join(env.deepspeed.ops),
        "cuda": env.cuda.version if env.cuda else None,
        "nccl": env.nccl,
        "gpus": ",".join(env.gpus) or None,
        "cpu_baseline": env.cpu_baseline,
    }
    return {name: value for name, value in said.items() if value}


def proven(info: ImageInfo, env: Environment) -> tuple[Level, evidence.Evidence, Path] | None:
    """The strongest level an image has proven as this row, as the row is today, by the current suite."""
    return evidence.best(info.id, info.diff_ids, environment=env.name, claims=claims(env), suite=suite_hash())


def as_dict(finding: Finding) -> dict[str, Any]:
    """A finding as JSON carries it; without a place where there is none."""
    fields = {
        "rule": finding.rule,
        "severity": finding.severity.value,
        "subject": finding.subject,
        "message": finding.message,
        "fix": finding.fix,
        "source": finding.source,
    }
    if finding.file is not None:
        fields |= {"file": finding.file, "line": finding.line, "column": finding.column}  # type: ignore[dict-item]
    return dict(fields)


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
    """Say once that evidence carries no signature."""
    bench.sink(Note(message="the evidence is not signed: no signing key is configured"))


__all__ = ["SMOKE_SECONDS", "Proof", "as_dict", "claims", "note_unsigned", "prove", "proven"]
