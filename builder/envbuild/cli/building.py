"""build: one row, or several (see ``many``)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from envbuild.cli import cluster, modes, output
from envbuild.cli import options as opt

if TYPE_CHECKING:
    from envbuild.pipeline.build import BuildOptions
    from envbuild.pipeline.current import Result
    from envbuild.pipeline.workbench import Workbench

TimeoutOption = Annotated[
    float, typer.Option("--timeout", callback=opt.seconds, help="Limit of a whole image build, in seconds.")
]
SmokeTimeoutOption = Annotated[
    float, typer.Option("--smoke-timeout", callback=opt.seconds, help="Limit of a smoke, in seconds.")
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """How rows are to be built, as the command line said it."""

    no_cache: bool
    record: bool
    force: bool
    allow_level: str | None
    gpus: str | None
    timeout: float
    smoke_timeout: float
    compilers: int | None

    @property
    def repeats(self) -> bool:
        """Whether something is to be done for a row that is up to date."""
        return self.record or self.no_cache or self.force

    def options(self) -> BuildOptions:
        """The same, understood. A run that finds a row up to date has no need of it.

        Raises:
            InputError: A level or a GPU that there is not.
        """
        from envbuild.pipeline.build import BuildOptions

        return BuildOptions(
            no_cache=self.no_cache, timeout=self.timeout, smoke_timeout=self.smoke_timeout,
            allow_level=opt.level(self.allow_level), gpus=opt.gpus(self.gpus), force=self.force,
            compilers=self.compilers,
        )  # fmt: skip


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("build", epilog="Example: envbuild build cpu          (or: envbuild build --all -j 2)")(build)


def build(
    ctx: typer.Context,
    envs: opt.SomeRows = None,
    every: opt.AllOption = False,
    changed_since: Annotated[
        str | None,
        typer.Option("--changed-since", metavar="REV", help="Only rows that came to something else at a git revision."),
    ] = None,
    jobs: Annotated[
        int, typer.Option("-j", "--jobs", min=1, metavar="N", help="Rows at a time, as far as the machine allows.")
    ] = 1,
    project: opt.ProjectOption = None,
    host: opt.HostOption = None,
    engine: opt.EngineOption = None,
    builder: opt.BuilderOption = None,
    json: opt.JsonOption = False,
    verbose: opt.VerboseOption = False,
    quiet: opt.QuietOption = False,
    dry_run: opt.DryRunOption = False,
    no_cache: Annotated[bool, typer.Option("--no-cache", help="Run every step again, the base included.")] = False,
    record: Annotated[
        bool, typer.Option("--record", help="Write images/ENV/ for review: Dockerfile, lock, record.")
    ] = False,
    allow_level: opt.LevelOption = None,
    gpus: opt.GpusOption = None,
    force: opt.ForceOption = False,
    key: opt.KeyOption = None,
    timeout: TimeoutOption = 7200,
    smoke_timeout: SmokeTimeoutOption = 600,
    executor: opt.ExecutorOption = None,
    detach: opt.DetachOption = False,
    compilers: Annotated[
        int | None, typer.Option(hidden=True, min=1, help="One row of several: so many compilers, and lines of JSON.")
    ] = None,
) -> None:
    """Build rows' images, prove each by a real ZeRO-3 offload step, and only then tag it.

    A row that fails does not stop the others. With --executor slurm each row is a job of a cluster's (docs/cluster.md).
    Exit codes, of several rows the highest: 0 tagged or up to date, 1 a row
    breaks a rule, 2 its input is no good, 3 engine, network or disk, 4 a build step failed, 5 an image does not pass,
    its evidence is too weak, or it is not known to be as fast as its row requires. Nothing of a row is tagged unless
    its exit code is 0; only that last one leaves the name of the image's content, and `validated` where it was.
    """
    asked = Asked(
        no_cache=no_cache, record=record, force=force, allow_level=allow_level, gpus=gpus, timeout=timeout,
        smoke_timeout=smoke_timeout, compilers=compilers,
    )  # fmt: skip
    settings = {
        "signing.key": key, "engine.kind": engine, "engine.builder": builder, "executor.kind": executor,
    }  # fmt: skip
    if compilers is not None and envs:
        from envbuild.cli import many

        many.part(project, host, settings, envs[0], asked)
        return
    away = cluster.on_cluster(opt.workbench_with(project, host, settings), detach=detach)
    modes.hold(ctx, "slurm" if away else "here")
    if away or every or changed_since is not None or (envs and len(set(envs)) > 1):
        from envbuild.cli import many

        wanted = many.Wanted(
            rows=envs,
            every=every,
            since=changed_since,
            jobs=jobs,
            project=project,
            host=host,
            engine=engine,
            builder=builder,
            key=key,
            asked=asked,
        )
        how = cluster.How(json=json, verbose=verbose, quiet=quiet, dry_run=dry_run, detach=detach)
        if away:
            many.send(wanted, settings, how)
        else:
            many.build(wanted, settings, json=json, verbose=verbose, quiet=quiet, dry_run=dry_run)
        return
    if not envs:
        raise typer.BadParameter("name a row, or say --all (envbuild build ENV)")
    env = envs[0]
    with opt.narrated(project, host, engine, verbose=verbose, quiet=quiet or dry_run, settings=settings) as bench:
        if dry_run:
            bench.need_signing_key()
            steps = planned(bench, env, asked)
        else:
            result, written = one(bench, env, asked)
    if dry_run:
        _print_plan(steps, json=json)
    else:
        printed("build", result, json=json, quiet=quiet, written=written)


def one(bench: Workbench, env: str, asked: Asked) -> tuple[Result, tuple[Path, ...]]:
    """Build one row, unless it is up to date; returns what came of it and the files that were written for review."""
    bench.need_signing_key()
    _ = opt.level(asked.allow_level), opt.gpus(asked.gpus)
    if not asked.repeats:
        from envbuild.pipeline.current import still_current

        done = still_current(bench, env)
        if done is not None:
            return done, ()
    from envbuild.pipeline.build import build as run_build

    if asked.record:
        from envbuild.pipeline.recording import require_writable

        require_writable(bench)
    result = run_build(bench, env, asked.options())
    if not asked.record:
        return result, ()
    from envbuild.pipeline.prepare import prepare
    from envbuild.pipeline.recording import record as write_record

    return result, write_record(bench, prepare(bench, env), result.evidence)


def image_of(result: Result, written: Sequence[Path]) -> dict[str, Any]:
    """What ``--json`` says of a row's image."""
    return {
        "environment": result.environment,
        "target_id": result.target_id,
        "status": result.status,
        "id": result.image,
        "tags": list(result.tags),
        "level": result.level.value,
        "evidence": str(result.evidence),
        "seconds": round(result.seconds, 3),
        "reason": result.reason,
        "written": [str(path) for path in written],
    }


def printed(command: str, result: Result, *, json: bool, quiet: bool, written: Sequence[Path] = ()) -> None:
    """Print what came of one image, as the answer of that command."""
    if json:
        output.document(command, images=[image_of(result, written)])
        return
    for tag in result.tags:
        output.text(tag)
    if quiet:
        return
    took = f" in {result.seconds:.0f} s" if result.seconds >= 1 else ""
    said = f"{result.environment}: {result.status}, level {result.level.value}{took}"
    output.narrate(f"{said}; see: envbuild show {result.environment}")
    if result.reason:
        output.narrate(result.reason)
    for path in written:
        output.narrate(f"wrote {path}")


def planned(bench: Workbench, env: str, asked: Asked) -> dict[str, Any]:
    """What would be done for a row, as it is asked for."""
    from envbuild.pipeline.build import up_to_date
    from envbuild.pipeline.names import names
    from envbuild.pipeline.performance_told import required
    from envbuild.pipeline.prepare import find_lock, prepare, require_clean

    row, level = bench.matrix.get(env), opt.level(asked.allow_level)
    _ = opt.gpus(asked.gpus)
    target_id = None
    found = find_lock(bench, row)
    if found is None or not found[1].resolved:
        # What is built depends on the lock, and locking is a change.
        require_clean(bench, row)
        steps = [f"lock: resolve the wheels, then build what they give (see: envbuild lock {env} --dry-run)"]
    else:
        target = prepare(bench, env)
        target_id = target.rendering.target_id
        wanted = names(target.env, target.rendering.id8, bench.site.registry.name)
        steps = (
            ["build: nothing, it is up to date" if asked.record else "nothing: up to date"]
            if not (asked.no_cache or asked.force) and up_to_date(bench, target, touch=False)
            else [
                f"base: {target.plan.base_reference}",
                f"build: {target.candidate} ({len(target.plan.wheels)} wheels, ops: {', '.join(target.plan.ops)})"
                + (", every step again" if asked.no_cache else ""),
                f"inspect and smoke: level {target.env.requires} required"
                + (f", {level.value} allowed" if level is not None else ""),
                *([f"compare: {required(gate)}, before validated"] if (gate := target.env.performance) else ()),
                f"tag: {wanted.proven} and {wanted.moving}",
            ]
        )
    steps += [f"write: images/{env}/, for review"] if asked.record else []
    return {"environment": env, "target_id": target_id, "steps": steps}


def _print_plan(plan: dict[str, Any], *, json: bool) -> None:
    if json:
        output.document("build", plan=plan)
        return
    for step in plan["steps"]:
        output.text(step)
