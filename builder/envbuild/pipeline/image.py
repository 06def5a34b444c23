"""Building one candidate image: base, context, secrets, labels."""

from __future__ import annotations

import contextlib
import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from envbuild import __version__, base, render
from envbuild.engines import BuildRequest, Run
from envbuild.errors import EngineError
from envbuild.events import Note, PhaseDone, PhaseStarted
from envbuild.lock import stage_local
from envbuild.pipeline.causes import explained
from envbuild.pipeline.prepare import Target
from envbuild.pipeline.workbench import Workbench
from envbuild.plan import LABEL_ENV, LABEL_TARGET
from envbuild.site.pip import PipSettings
from envbuild.site.secrets import build_secrets, needs_host_network

LABEL_BASE = "io.envbuild.base"


def build_image(bench: Workbench, run: Run, target: Target, *, no_cache: bool, timeout: float, compilers: int) -> None:
    """Build the candidate: the base first, then the Dockerfile in a context of this run's own.

    How many ``compilers`` may run is told by a secret, which no step's cache key and no history knows of: the same ops
    are the same, however many compiled them.

    Raises:
        BuildError: A step failed; the message names it and the log.
        EngineError: Engine, network, disk or time-out.
    """
    began = time.monotonic()
    bench.sink(PhaseStarted(phase="base", detail=target.plan.base_reference))
    apt = bench.apt_for(target.env)
    with explained(bench):
        used = base.ensure(bench.engine, target.env, site=bench.site, apt=apt, sink=bench.sink, no_cache=no_cache)
        toolkit = base.ensure_toolkit(bench.engine, target.env, site=bench.site, apt=apt, sink=bench.sink)
    build_args = (("BASE", used.reference), *((("TOOLKIT", toolkit.reference),) if toolkit else ()))
    bench.sink(PhaseDone(phase="base", seconds=time.monotonic() - began, detail=used.how))
    began = time.monotonic()
    pip = bench.pip_for(target.env)
    log = bench.cache / "logs" / f"{target.env.name}-{target.rendering.id8}-{run.id[:8]}.log"
    with _context(bench, run, target, pip) as context:
        bench.sink(PhaseStarted(phase="build", detail=f"{target.candidate}  (log: {log})"))
        secrets = []
        folder = context.parent / "secrets"
        folder.mkdir(mode=0o700)
        contents = {**build_secrets(bench.site, pip, apt), "jobs": str(compilers).encode()}
        for name, content in contents.items():
            path = folder / name
            path.touch(mode=0o600)
            path.write_bytes(content)
            secrets.append((name, path))
        request = BuildRequest(
            context=context,
            dockerfile=context / "Dockerfile",
            tag=target.candidate,
            platform=target.plan.platform,
            build_args=build_args,
            labels=_labels(target, used.as_dict()),
            secrets=tuple(secrets),
            network="host" if needs_host_network(bench.site, pip, apt) else None,
            no_cache=no_cache,
            owner=run.labels,
        )
        with explained(bench, log):
            bench.engine.build(request, sink=bench.sink, log=log, timeout=timeout)
    bench.sink(PhaseDone(phase="build", seconds=time.monotonic() - began))


def _labels(target: Target, base_used: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    env = target.env
    return (
        (LABEL_ENV, env.name),
        (LABEL_TARGET, target.rendering.target_id),
        (LABEL_BASE, json.dumps(base_used, sort_keys=True)),
        ("io.envbuild.version", __version__),
        ("org.opencontainers.image.title", f"envbuild/{env.name}"),
        ("org.opencontainers.image.description", env.summary),
        ("org.opencontainers.image.version", f"{env.torch.version}-{env.torch.build}-{target.rendering.id8}"),
        ("org.opencontainers.image.base.name", target.plan.base_reference),
    )


@contextlib.contextmanager
def _context(bench: Workbench, run: Run, target: Target, pip: PipSettings) -> Iterator[Path]:
    """The build context in a folder of this run's own; only rendered files and locked wheels enter it."""
    root = run.folder
    context = root / "context"
    try:
        context.mkdir(parents=True)
        render.write(target.rendering, context)
        staged = stage_local(target.lock, pip, context / "wheels", bench.cache)
        if staged:
            total = len(target.lock.packages)
            bench.sink(Note(message=f"{len(staged)} of {total} locked files come from local wheel folders"))
        yield context
    except OSError as error:
        raise EngineError(f"cannot prepare the build context: {error}") from error
    finally:
        shutil.rmtree(root, ignore_errors=True)


def base_label(bench: Workbench, ref: str) -> dict[str, Any]:
    """The base that was really used, as the image's label says; empty where it does not."""
    info = bench.engine.image(ref)
    text = dict(info.labels).get(LABEL_BASE) if info else None
    try:
        value = json.loads(text) if text else {}
    except ValueError:
        value = {}
    return value if isinstance(value, dict) else {}
