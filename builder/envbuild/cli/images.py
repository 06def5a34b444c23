"""Commands about images: build, promote, run; smoke has a file of its own."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from envbuild.cli import options as opt
from envbuild.cli import output
from envbuild.cli.smoke import smoke

if TYPE_CHECKING:
    from envbuild.engines import ImageInfo
    from envbuild.model import Environment
    from envbuild.pipeline.current import Result
    from envbuild.pipeline.workbench import Workbench

TimeoutOption = Annotated[
    float, typer.Option("--timeout", callback=opt.seconds, help="Limit of the whole image build, in seconds.")
]
SmokeTimeoutOption = Annotated[
    float, typer.Option("--smoke-timeout", callback=opt.seconds, help="Limit of the smoke, in seconds.")
]


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    app.command("build", epilog="Example: envbuild build cpu")(build)
    app.command("smoke", epilog="Example: envbuild smoke registry.example/team/train:7 --row cpu")(smoke)
    app.command("promote", epilog="Example: envbuild promote cpu")(promote)
    app.command("run", epilog="Example: envbuild run cpu -- python train.py --deepspeed ds_config.json")(run)


def build(
    env: opt.Row,
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
) -> None:
    """Build a row's image, prove it by a real ZeRO-3 offload step, and only then tag it.

    Exit codes: 0 tagged or up to date, 1 the row breaks a rule, 3 engine or network, 4 a build step failed,
    5 the image does not pass or its evidence is too weak. Nothing is tagged unless the exit code is 0.
    """
    allowed, chosen = opt.level(allow_level), opt.gpus(gpus)
    settings = {"signing.key": key, "engine.builder": builder}
    with opt.narrated(project, host, engine, verbose=verbose, quiet=quiet or dry_run, settings=settings) as bench:
        bench.need_signing_key()
        if not (dry_run or record or no_cache or force):
            from envbuild.pipeline.current import still_current

            done = still_current(bench, env)
            if done is not None:
                _print(done, json=json, quiet=quiet, written=())
                return
        from envbuild.pipeline.build import BuildOptions
        from envbuild.pipeline.build import build as run_build

        wanted = BuildOptions(
            no_cache=no_cache, timeout=timeout, smoke_timeout=smoke_timeout, allow_level=allowed,
            gpus=chosen, force=force,
        )  # fmt: skip
        if dry_run:
            _plan(bench, env, json=json)
            return
        if record:
            from envbuild.pipeline.recording import require_writable

            require_writable(bench)
        result = run_build(bench, env, wanted)
        written: tuple[Path, ...] = ()
        if record:
            from envbuild.pipeline.prepare import prepare
            from envbuild.pipeline.recording import record as write_record

            written = write_record(bench, prepare(bench, env), result.evidence)
    _print(result, json=json, quiet=quiet, written=written)


def promote(
    images: Annotated[
        list[str],
        typer.Argument(
            metavar="ENV|IMAGE...",
            help="A row (its image), or any image; rows with --set.",
            autocompletion=opt.rows_and_images,
        ),
    ],
    row: opt.RowOption = None,
    release: Annotated[
        str | None, typer.Option("--set", metavar="RELEASE", help="All of these rows together, under this name too.")
    ] = None,
    remote: Annotated[
        bool, typer.Option("--remote", help="With --set: names in the registry, of images that were pushed.")
    ] = False,
    registry: opt.RegistryOption = None,
    key: opt.TrustOption = None,
    project: opt.ProjectOption = None,
    host: opt.HostOption = None,
    engine: opt.EngineOption = None,
    json: opt.JsonOption = False,
    quiet: opt.QuietOption = False,
    dry_run: opt.DryRunOption = False,
    allow_level: opt.LevelOption = None,
) -> None:
    """Tag an image as far as its evidence allows. Builds nothing and runs nothing.

    With --set RELEASE the rows named get that name, which never moves, and `validated` of all of them moves together:
    all, or none. A run that was killed is finished by saying the same again.
    """
    if release is None and (remote or dry_run or len(images) != 1):
        raise typer.BadParameter("several rows, --remote and --dry-run go with --set RELEASE")
    if release is not None and (row or allow_level):
        raise typer.BadParameter("--row and --allow-level do not go with --set")
    settings = {"registry.name": registry, "trust.keys": key or None}
    with opt.narrated(project, host, engine, verbose=False, quiet=quiet or dry_run, settings=settings) as bench:
        if release is not None:
            _promote_set(bench, release, opt.chosen(bench, images, False, "promote"), remote, dry_run, json)
            return
        from envbuild.pipeline.build import promote as run_promote

        result = run_promote(bench, images[0], row=row, allow_level=opt.level(allow_level))
    _print(result, json=json, quiet=quiet, written=())


def _promote_set(bench: Workbench, release: str, rows: list[str], remote: bool, dry_run: bool, json: bool) -> None:
    from envbuild.pipeline import sets

    planned = sets.plan(bench, release, rows, remote=remote)
    if not dry_run:
        sets.carry_out(bench, planned)
    if json:
        output.document("promote", **{"plan" if dry_run else "release": planned.as_dict()})
        return
    for tag in planned.tags:
        output.text(tag)


def run(
    image: opt.Image,
    command: Annotated[
        list[str] | None, typer.Argument(metavar="[-- CMD...]", help="What to run; a shell without it.")
    ] = None,
    row: opt.RowOption = None,
    project: opt.ProjectOption = None,
    host: opt.HostOption = None,
    engine: opt.EngineOption = None,
    dry_run: opt.DryRunOption = False,
) -> None:
    """Run a command in a row's image, as it was smoked: shared memory, memlock, GPUs, your uid, this folder."""
    from envbuild.errors import InputError
    from envbuild.matrix.commandline import refused
    from envbuild.pipeline.build import locate
    from envbuild.pipeline.running import run_spec
    from envbuild.process import replace

    if command and "--" not in sys.argv:
        raise InputError(
            f"'{command[0]}' follows the image without --", hint=f"envbuild run {image} -- {shlex.join(command)}"
        )
    if word := refused(command or ()):
        raise InputError(
            f"deepspeed has no option {word} (R24): it would end with 'unrecognized arguments', exit code 2",
            hint="Set zero_optimization.offload_optimizer in the ds_config, and name that with --deepspeed_config; "
            "a script with such an option of its own can be started by torchrun.",
        )
    with opt.narrated(project, host, engine, verbose=False, quiet=True) as bench:
        ref, info, env = locate(bench, image, row)
        interactive = sys.stdin.isatty() and sys.stdout.isatty()
        spec = run_spec(env, ref, tuple(command or ()), folder=Path.cwd(), interactive=interactive)
        spec = bench.engine.granted(spec, bench.sink)
        line = bench.engine.run_line(spec)
    if dry_run:
        output.text(shlex.join(line))
        return
    _warn_unproven(info, env, ref)
    replace(line)


def _warn_unproven(info: ImageInfo, env: Environment, ref: str) -> None:
    from envbuild.pipeline.prove import proven

    if proven(info, env) is None:
        output.narrate(f"warning: {ref} has no evidence from the current suite; prove it: envbuild smoke {ref}")


def _print(result: Result, *, json: bool, quiet: bool, written: tuple[Path, ...]) -> None:
    if json:
        image: dict[str, Any] = {
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
        output.document("images", images=[image])
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


def _plan(bench: Any, env: str, *, json: bool) -> None:
    from envbuild.pipeline.build import up_to_date
    from envbuild.pipeline.names import names
    from envbuild.pipeline.prepare import find_lock, prepare, require_clean

    row = bench.matrix.get(env)
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
            ["nothing: up to date"]
            if up_to_date(bench, target, touch=False)
            else [
                f"base: {target.plan.base_reference}",
                f"build: {target.candidate} ({len(target.plan.wheels)} wheels, ops: {', '.join(target.plan.ops)})",
                f"inspect and smoke: level {target.env.requires} required",
                f"tag: {wanted.proven} and {wanted.moving}",
            ]
        )
    if json:
        output.document("build", plan={"environment": env, "target_id": target_id, "steps": steps})
        return
    for step in steps:
        output.text(step)
