"""Look into an image: its files from outside, its modules from inside, both against the row."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envbuild.engines import Engine, Run
from envbuild.events import Sink, StepDone, StepLine, StepStarted, discard
from envbuild.judge import content, inspection, native_rules, smoke
from envbuild.judge.outcome import document
from envbuild.judge.standards import Standards
from envbuild.model import Environment, Finding, ImageIdentity
from envbuild.pipeline.sizes import format_size
from envbuild.pipeline.smoking import outcome_of, probes_in, smoke_spec

_INSPECT_SECONDS = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspected:
    """What an image holds.

    Attributes:
        identity: Who it is, from its exported config.
        reports: The raw reports by name; ``inside`` is the content probe's.
        portability: The hosts, CPUs and GPUs that it runs on.
        findings: Where it is not what the row says.
        compat: It carries NVIDIA's cuda-compat library, where NVIDIA's packages put it.
    """

    identity: ImageIdentity
    reports: dict[str, Any]
    portability: dict[str, Any]
    findings: tuple[Finding, ...]
    compat: bool = False


def inspect_image(
    engine: Engine,
    run: Run,
    env: Environment,
    engine_id: str,
    *,
    standards: Standards,
    scratch: Path,
    sink: Sink = discard,
    beside: inspection.Beside | None = None,
) -> Inspected:
    """Read an exported image, and let its modules speak.

    Args:
        engine: Where the image is.
        run: This run; its labels go onto every container.
        env: The row whose claims the image is held to.
        engine_id: The image, by the engine's id.
        standards: What the facts say of the row.
        scratch: A folder with room for the image's largest library.
        sink: Told how far the reading is.
        beside: Who else is to see the image as it is read.

    Raises:
        EngineError: The engine failed, or the export cannot be read.
    """
    with _step(sink, "read the image's files from outside") as key, engine.save(engine_id) as stream:
        looked = inspection.look(
            stream, env, scratch, lambda count: sink(StepLine(key=key, text=f"{format_size(count)} read")), beside
        )
    argv = ("/opt/venv/bin/python", "-I", f"{probes_in(run)}/content.py", "--ops", ",".join(env.deepspeed.ops),
            "--accelerator", env.accelerator)  # fmt: skip
    with _step(sink, "import its modules and load its ops"):
        result = engine.run(smoke_spec(env, engine_id, argv, run), timeout=_INSPECT_SECONDS)
    outcome = outcome_of(env, result)
    inside = document(outcome, content.SCHEMA)
    findings = [] if inside is not None else smoke.explain_failure(outcome, probe="content")
    findings += inspection.judge(env, looked, inside, standards)
    return Inspected(
        identity=looked.identity,
        reports={**looked.as_dict(), "inside": inside},
        portability=dataclasses.asdict(native_rules.portability(looked.native, standards)),
        findings=tuple(findings),
        compat=looked.compat,
    )


@contextlib.contextmanager
def _step(sink: Sink, name: str) -> Iterator[str]:
    sink(StepStarted(key=name, name=name))
    began = time.monotonic()
    status = "error"
    try:
        yield name
        status = "done"
    finally:
        sink(StepDone(key=name, name=name, status=status, seconds=time.monotonic() - began))
