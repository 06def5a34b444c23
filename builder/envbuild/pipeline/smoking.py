"""Run the ZeRO-3 probe in an image, on one device, and judge what it printed."""

from __future__ import annotations

import contextlib
import secrets
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from envbuild import store
from envbuild.engines import ContainerResult, ContainerSpec, Engine, Mount, Run
from envbuild.errors import EngineError
from envbuild.judge import smoke
from envbuild.judge.outcome import Outcome, document
from envbuild.judge.suite import probes_folder
from envbuild.model import Environment, Finding
from envbuild.pipeline.sizes import parse_size

SMOKE_SECONDS = 600.0
STEPS = 10
# Training goes before the builds beside it. Its ranks wait for one another by spinning (DeepSpeed's shared-memory
# collectives): with a rank that is kept from the CPU the others burn theirs. Sixteen times a build's weight.
CPU_SHARES = 16384
# The name of the probe's document among the reports.
REPORT = "zero3"
# The op without which nothing can be swapped to a disk.
_DISK_OP = "async_io"


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
    """What a smoke gave: the raw reports by name (``zero3``), and what is wrong with them."""

    reports: dict[str, Any] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)


def smoke_image(
    engine: Engine,
    run: Run,
    env: Environment,
    engine_id: str,
    *,
    device: Device,
    timeout: float,
    long_seconds: float | None = None,
    gpus: smoke.Gpus | None = None,
) -> Smoked:
    """Train in an image.

    Args:
        engine: Where the image is.
        run: This run; its labels go onto every container.
        env: The row whose claims the image is held to.
        engine_id: The image, by the engine's id.
        device: What to train on.
        timeout: Limit of everything but the long training, in seconds.
        long_seconds: How long to train on after the steps; None is not at all.
        gpus: The GPUs that training may be seen on; None where the device is the CPU.

    Raises:
        EngineError: The engine failed, or the folder for swapped states cannot be made. What goes wrong in the
            container is a finding.
    """
    seen = Smoked()
    seconds = long_seconds or 0.0
    # A prebuilt op is taken on the accelerator that it was built for alone, and without its headers in the image
    # async_io cannot be compiled: a cuda image on the CPU does not swap.
    swaps = _DISK_OP in env.deepspeed.ops and device.accelerator == env.accelerator
    # New for every run: a document of another run does not fit.
    expected = smoke.Expected.of(
        env, seed=secrets.randbelow(2**31), accelerator=device.accelerator, nvme=swaps, seconds=seconds, gpus=gpus
    )
    limit = timeout + seconds
    with _disk_folder(run) if swaps else contextlib.nullcontext() as disk:
        argv = probe_argv(expected, ranks=device.ranks, timeout=limit, place=probes_in(run), disk=_disk_in(run))
        spec = smoke_spec(env, engine_id, argv, run, gpus=device.gpus, disk=disk)
        result = engine.run(spec, timeout=limit)
    outcome = outcome_of(env, result)
    report = document(outcome, smoke.SCHEMA)
    seen.reports[REPORT] = report
    failure = smoke.explain_failure(outcome)
    if failure or report is None:
        seen.findings += failure
    else:
        seen.findings += smoke.judge(expected, report)
    return seen


def probe_argv(
    expected: smoke.Expected,
    *,
    ranks: int,
    timeout: float,
    place: str,
    disk: str,
    python: str = "/opt/venv/bin/python",
) -> tuple[str, ...]:
    """The command line of the ZeRO-3 probe.

    Args:
        expected: What its document will be held to.
        ranks: 0 is one for each visible GPU.
        timeout: After so many seconds it is ended from outside. It ends itself a little earlier: it can say which rank
            was in which phase.
        place: Folder of the probes.
        disk: Folder to swap to, where that is expected.
        python: The interpreter to probe with.
    """
    argv = [python, "-I", f"{place}/zero3.py", "--ranks", str(ranks), "--steps", str(STEPS)]
    argv += ["--accelerator", expected.accelerator, "--seed", str(expected.seed)]
    argv += ["--timeout", str(max(10, int(timeout - 20)))]
    if expected.seconds:
        argv += ["--seconds", f"{expected.seconds:g}"]
    if expected.nvme:
        argv += ["--nvme", disk]
    if expected.jit:
        argv.append("--jit")
    return tuple(argv)


@contextlib.contextmanager
def _disk_folder(run: Run) -> Iterator[Path]:
    """A folder on this host's disk for a container to swap to: a tmpfs may refuse what async_io asks for (O_DIRECT).

    It lies in the run's own folder, so that the next run removes it when this one is killed. Everybody may write to
    it, because the container's user is none of this host's, and nobody else comes that far.
    """
    folder = store.make_folder(run.folder / "nvme")
    try:
        run.folder.chmod(0o700)
        folder.chmod(0o777)
    except OSError as error:
        raise EngineError(f"cannot open {folder} to the container: {error.strerror}") from error
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _disk_in(run: Run) -> str:
    return f"/run/{run.id}-nvme"


def probes_in(run: Run) -> str:
    """Where the probes lie in a container: elsewhere in every run, so that no image can wait for them."""
    return f"/run/{run.id}"


def smoke_spec(
    env: Environment,
    ref: str,
    argv: tuple[str, ...],
    run: Run,
    *,
    gpus: tuple[str, ...] = (),
    disk: Path | None = None,
) -> ContainerSpec:
    """A container as strict clusters give it: no network, an ordinary uid, only /tmp and a disk folder to write to."""
    mounts = [Mount(source=probes_folder(), target=probes_in(run), read_only=True)]
    if disk is not None:
        mounts.append(Mount(source=disk, target=_disk_in(run), read_only=False))
    return ContainerSpec(
        image=ref,
        argv=argv,
        env=(("HOME", "/tmp"), ("TORCH_EXTENSIONS_DIR", "/tmp/extensions")),
        mounts=tuple(mounts),
        # Docker mounts a tmpfs noexec by default, and then nothing compiled can be loaded from it.
        tmpfs=(("/tmp", "rw,exec,nosuid,size=2g,mode=1777"),),
        user="65532:65532",
        network="none",
        shm_bytes=parse_size(env.shm_size),
        memlock=-1 if env.memlock == "unlimited" else parse_size(env.memlock),
        cpu_shares=CPU_SHARES,
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
