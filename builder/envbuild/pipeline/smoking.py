"""Run the ZeRO-3 probe in an image, on one device, and judge what it printed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from envbuild.engines import ContainerResult, ContainerSpec, DockerEngine, Mount, Run
from envbuild.errors import InputError
from envbuild.judge import smoke
from envbuild.judge.outcome import Outcome, document
from envbuild.judge.suite import probes_folder
from envbuild.model import Environment, Finding
from envbuild.pipeline.sizes import parse_size

SMOKE_SECONDS = 600.0
STEPS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """What a smoke trains on.

    Attributes:
        accelerator: DeepSpeed's accelerator.
        ranks: How many processes train; with GPUs one for each.
        gpus: UUIDs of the GPUs or MIG slices that the container gets; empty on the CPU.
    """

    accelerator: Literal["cpu", "cuda"]
    ranks: int
    gpus: tuple[str, ...] = ()


# One rank would prove no communication.
CPU = Device(accelerator="cpu", ranks=2)


@dataclass(slots=True)
class Smoked:
    """What the passes of a smoke gave: the raw reports by name, and what is wrong with them."""

    reports: dict[str, Any] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)


def smoke_image(
    engine: DockerEngine,
    run: Run,
    env: Environment,
    engine_id: str,
    *,
    device: Device,
    timeout: float,
    long_seconds: float | None = None,
) -> Smoked:
    """Train in an image.

    Args:
        engine: Where the image is.
        run: This run; its labels go onto every container.
        env: The row whose claims the image is held to.
        engine_id: The image, by the engine's id.
        device: What to train on.
        timeout: Limit of all passes together, in seconds.
        long_seconds: Train for so long beside the few steps; None for the steps alone.

    Raises:
        EngineError: The engine failed. What goes wrong in the container is a finding.
    """
    if long_seconds is not None:
        raise InputError("a long run is not built yet")
    seen = Smoked()
    # The probe has a limit of its own, a little shorter: it can say which rank was in which phase.
    inner = str(max(10, int(timeout - 20)))
    argv = ("/opt/venv/bin/python", "-I", f"{probes_in(run)}/zero3.py", "--ranks", str(device.ranks),
            "--steps", str(STEPS), "--accelerator", device.accelerator, "--dtype", "fp32",
            "--timeout", inner)  # fmt: skip
    result = engine.run(smoke_spec(env, engine_id, argv, run, gpus=device.gpus), timeout=timeout)
    outcome = outcome_of(env, result)
    report = document(outcome, smoke.SCHEMA)
    seen.reports["fp32"] = report
    failure = smoke.explain_failure(outcome)
    if failure or report is None:
        seen.findings += failure
    else:
        seen.findings += smoke.judge(env, report, dtype="fp32")
    return seen


def probes_in(run: Run) -> str:
    """Where the probes lie in a container: elsewhere in every run, so that no image can wait for them."""
    return f"/run/{run.id}"


def smoke_spec(
    env: Environment, ref: str, argv: tuple[str, ...], run: Run, *, gpus: tuple[str, ...] = ()
) -> ContainerSpec:
    """A container as strict clusters give it: no network, an ordinary uid, only /tmp to write to."""
    return ContainerSpec(
        image=ref,
        argv=argv,
        env=(("HOME", "/tmp"), ("TORCH_EXTENSIONS_DIR", "/tmp/extensions")),
        mounts=(Mount(source=probes_folder(), target=probes_in(run), read_only=True),),
        # Docker mounts a tmpfs noexec by default, and then nothing compiled can be loaded from it.
        tmpfs=(("/tmp", "rw,exec,nosuid,size=2g,mode=1777"),),
        user="65532:65532",
        network="none",
        shm_bytes=parse_size(env.shm_size),
        memlock=-1 if env.memlock == "unlimited" else parse_size(env.memlock),
        read_only=True,
        labels=run.labels,
        cap_drop_all=True,
        no_new_privileges=True,
        gpus=gpus,
    )


def outcome_of(env: Environment, result: ContainerResult) -> Outcome:
    """How a probe's container ended, for the judge."""
    return Outcome(
        exit_code=result.exit_code,
        stdout=result.stdout,
        stderr=result.stderr,
        oom_killed=result.oom_killed,
        timed_out=result.timed_out,
        seconds=result.seconds,
        shm_bytes=parse_size(env.shm_size),
    )
