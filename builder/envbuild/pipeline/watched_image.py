"""Watches a training in an image: started as ``envbuild run`` does it, and looked at from this host."""

from __future__ import annotations

import dataclasses
import secrets
from pathlib import Path

from envbuild import store
from envbuild.engines import ContainerSpec, ImageInfo, Mount
from envbuild.model import Environment
from envbuild.pipeline.locate import locate
from envbuild.pipeline.profile_wish import profiler_folder
from envbuild.pipeline.running import run_spec
from envbuild.pipeline.watched import Watched, Wish
from envbuild.pipeline.watched_run import Streams, beacon_folder, run, variables
from envbuild.pipeline.workbench import Workbench

_PROFILER, _BEACON, _OUT = "/run/envbuild-profiler", "/run/envbuild-beacon", "/run/envbuild-out"
_MARK = "ENVBUILD_WATCH_RUN"


def watch_image(
    bench: Workbench, reference: str, row: str | None, command: tuple[str, ...], wish: Wish, streams: Streams
) -> tuple[int, Watched]:
    """Run a command in an image with this terminal's streams, and watch it to its end.

    Raises:
        EngineError: The engine failed.
        GateError: There is no such image.
    """
    ref, info, env = locate(bench, reference, row)
    mark = {_MARK: secrets.token_hex(8)}
    with store.scratch(store.home() / "runs", "watch-") as folder:
        spec = watched_spec(env, ref, info, command, folder, interval=wish.patience.interval)
        spec = dataclasses.replace(spec, env=(*spec.env, *mark.items()))
        line = bench.engine.run_line(bench.engine.granted(spec, bench.sink))
        return run(tuple(line), wish, streams, folder, env={}, container=mark)


def watched_spec(
    env: Environment, ref: str, info: ImageInfo, command: tuple[str, ...], out: Path, *, interval: float
) -> ContainerSpec:
    """What ``envbuild run`` starts, with the beacon."""
    spec = run_spec(env, ref, command, folder=Path.cwd(), interactive=False)
    named = variables(
        _OUT, interval, profiler=_PROFILER, beacon=_BEACON, path=dict(info.env).get("PYTHONPATH", "")
    )  # fmt: skip
    mounts = (
        *spec.mounts,
        Mount(source=profiler_folder(), target=_PROFILER),
        Mount(source=beacon_folder(), target=_BEACON),
        Mount(source=out, target=_OUT, read_only=False),
    )
    return dataclasses.replace(spec, mounts=mounts, env=(*spec.env, *named.items()))
