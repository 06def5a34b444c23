"""A row's build context, base and secrets, as the pipeline makes them, kept for builds of the benchmark's own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from envbuild import base, process, render
from envbuild.engines import BuildRequest
from envbuild.engines.argv import build_argv
from envbuild.engines.buildkit import ENV, find_client
from envbuild.errors import EngineError
from envbuild.lock import stage_local
from envbuild.pipeline.prepare import Target
from envbuild.pipeline.workbench import Workbench
from envbuild.site.secrets import build_secrets, needs_host_network

BUILD_SECONDS = 7200.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Staged:
    """What a build of the row reads.

    Attributes:
        base: Local name of the base image.
        secrets: Files by the id of the build secret.
        network: Of the RUN steps; None is the engine's default.
    """

    target: Target
    context: Path
    base: str
    secrets: tuple[tuple[str, Path], ...]
    network: str | None

    def request(self, tag: str, *, dockerfile: Path | None = None, stage: str | None = None) -> BuildRequest:
        """A build of this context: the row's own Dockerfile, or another one."""
        return BuildRequest(
            context=self.context,
            dockerfile=dockerfile or self.context / "Dockerfile",
            tag=tag,
            platform=self.target.plan.platform,
            target=stage,
            build_args=(("BASE", self.base),),
            secrets=self.secrets,
            network=self.network,
        )


def stage(bench: Workbench, target: Target, folder: Path) -> Staged:
    """Write context and secrets of a target below ``folder``, which is private to this run."""
    context, private = folder / "context", folder / "secrets"
    for path in (context, private):
        path.mkdir(mode=0o700, parents=True)
    apt, pip = bench.apt_for(target.env), bench.pip_for(target.env)
    used = base.ensure(bench.engine, target.env, site=bench.site, apt=apt, sink=bench.sink)
    render.write(target.rendering, context)
    stage_local(target.lock, pip, context / "wheels")
    secrets = []
    for name, content in build_secrets(bench.site, pip, apt).items():
        path = private / name
        path.touch(mode=0o600)
        path.write_bytes(content)
        secrets.append((name, path))
    return Staged(
        target=target,
        context=context,
        base=used.reference,
        secrets=tuple(secrets),
        network="host" if needs_host_network(bench.site, pip, apt) else None,
    )


def docker_build(bench: Workbench, request: BuildRequest) -> tuple[str, ...]:
    """The command line of a build, by the client that the pipeline builds with."""
    client = find_client(bench.engine.endpoint, bench.site.engine.client)
    return build_argv(client, bench.engine.endpoint, request)


# As pip leaves an installed envbuild: byte-compiled. An editable one would be compiled anew at each start where the
# user's own environment says that no bytecode is to be written.
_BYTECODE = {"PYTHONDONTWRITEBYTECODE": ""}


def must(argv: tuple[str, ...], *, cwd: Path | None = None, env: dict[str, str] | None = None) -> process.Completed:
    """Run a command that has to succeed.

    Raises:
        EngineError: It failed; its own words are in the message.
    """
    done = process.run(argv, cwd=cwd, env={**ENV, **_BYTECODE, **(env or {})}, timeout=BUILD_SECONDS)
    if done.returncode != 0:
        raise EngineError(f"{Path(argv[0]).name} ended with {done.returncode}:\n{done.stderr[-4000:]}")
    return done
