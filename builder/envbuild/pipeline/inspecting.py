"""Look into an image: its files from outside, its modules from inside, both against the row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from envbuild.engines import DockerEngine, Run
from envbuild.judge import content, inspection, smoke
from envbuild.judge.outcome import document
from envbuild.model import Environment, Finding, ImageIdentity
from envbuild.pipeline.smoking import outcome_of, probes_in, smoke_spec

_INSPECT_SECONDS = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspected:
    """What an image holds.

    Attributes:
        identity: Who it is, from its exported config.
        reports: The raw reports by name; ``inside`` is the content probe's.
        findings: Where it is not what the row says.
    """

    identity: ImageIdentity
    reports: dict[str, Any]
    findings: tuple[Finding, ...]


def inspect_image(
    engine: DockerEngine, run: Run, env: Environment, engine_id: str, *, sms: tuple[str, ...]
) -> Inspected:
    """Read an exported image, and let its modules speak.

    Args:
        engine: Where the image is.
        run: This run; its labels go onto every container.
        env: The row whose claims the image is held to.
        engine_id: The image, by the engine's id.
        sms: Compute capabilities of the row's GPUs.

    Raises:
        EngineError: The engine failed, or the export cannot be read.
    """
    with engine.save(engine_id) as stream:
        looked = inspection.look(stream, env)
    argv = ("/opt/venv/bin/python", "-I", f"{probes_in(run)}/content.py", "--ops", ",".join(env.deepspeed.ops),
            "--accelerator", env.accelerator)  # fmt: skip
    result = engine.run(smoke_spec(env, engine_id, argv, run), timeout=_INSPECT_SECONDS)
    outcome = outcome_of(env, result)
    inside = document(outcome, content.SCHEMA)
    findings = [] if inside is not None else smoke.explain_failure(outcome, probe="content")
    findings += inspection.judge(env, looked, inside, sms=sms)
    return Inspected(identity=looked.identity, reports={**looked.as_dict(), "inside": inside}, findings=tuple(findings))
