"""Look into an image: its files from outside, its modules from inside, both against the row."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from typing import Any

from envbuild.engines import DockerEngine, Run
from envbuild.judge import archive, content, smoke
from envbuild.judge.outcome import document
from envbuild.model import Environment, Finding, ImageIdentity
from envbuild.pipeline.smoking import outcome_of, probes_in, smoke_spec

_INSPECT_SECONDS = 300.0
_COMPAT = re.compile(r"usr/local/cuda[^/]*/compat/libcuda\.so\.1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspected:
    """What an image holds.

    Attributes:
        identity: Who it is, from its exported config.
        reports: The raw reports: ``outside`` and ``inside``.
        findings: Where it is not what the row says.
        compat: It carries NVIDIA's cuda-compat library, where NVIDIA's packages put it.
    """

    identity: ImageIdentity
    reports: dict[str, Any]
    findings: tuple[Finding, ...]
    compat: bool = False


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
        image = archive.read(stream, content.WANTED)
    outside = content.outside(image, env)
    argv = ("/opt/venv/bin/python", "-I", f"{probes_in(run)}/content.py", "--ops", ",".join(env.deepspeed.ops),
            "--accelerator", env.accelerator)  # fmt: skip
    result = engine.run(smoke_spec(env, engine_id, argv, run), timeout=_INSPECT_SECONDS)
    outcome = outcome_of(env, result)
    inside = document(outcome, content.SCHEMA)
    if inside is None:
        findings = smoke.explain_failure(outcome, probe="content")
    else:
        findings = content.inspect(env, outside, inside, sms=sms)
    reports = {"outside": dataclasses.asdict(outside), "inside": inside}
    compat = any(_COMPAT.fullmatch(path) for path in image.entries)
    return Inspected(identity=image.identity, reports=reports, findings=tuple(findings), compat=compat)
