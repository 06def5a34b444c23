"""Commands about images: build, smoke, promote, run."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from envbuild.cli import options as opt
from envbuild.cli import output

if TYPE_CHECKING:
    from envbuild.engines import ImageInfo
    from envbuild.model import Environment, Level
    from envbuild.pipeline.current import Result

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
    allowed = _level(allow_level)
    settings = {"signing.key": key}
    with opt.narrated(project, host, verbose=verbose, quiet=quiet or dry_run, settings=settings) as bench:
        bench.need_signing_key()
        if not (dry_run or record or no_cache or force):
            from envbuild.pipeline.current import still_current

            done = still_current(bench, env)
            if done is not None:
                _print(done, json=json, quiet=quiet, written=())
                return
        from envbuild.pipeline.build import BuildOptions
        from envbuild.pipeline.build import build as run_build
        from envbuild.pipeline.gates import parse_gpus

        wanted = BuildOptions(
            no_cache=no_cache, timeout=timeout, smoke_timeout=smoke_timeout, allow_level=allowed,
            gpus=parse_gpus(gpus), force=force,
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


def smoke(
    image: Annotated[
        str | None,
        typer.Argument(metavar="ENV|IMAGE", help="A row (its image), or any image.", autocompletion=opt.rows),
    ] = None,
    row: opt.RowOption = None,
    project: opt.ProjectOption = None,
    host: opt.HostOption = None,
    json: opt.JsonOption = False,
    verbose: opt.VerboseOption = False,
    quiet: opt.QuietOption = False,
    gpus: opt.GpusOption = None,
    force: opt.ForceOption = False,
    allow_level: opt.LevelOption = None,
    long: Annotated[bool, typer.Option("--long", help="Train for minutes instead of steps.")] = False,
    minutes: Annotated[
        float, typer.Option("--minutes", callback=opt.minutes, help="How long a --long run trains, in minutes.")
    ] = 10,
    python: Annotated[
        str | None,
        typer.Option("--python", metavar="PATH", help="Prove this interpreter's torch and DeepSpeed, in no container."),
    ] = None,
    accelerator: Annotated[
        str | None, typer.Option("--accelerator", metavar="cpu|cuda", help="With --python: what to train on.")
    ] = None,
    key: opt.KeyOption = None,
    timeout: Annotated[
        float,
        typer.Option(
            "--timeout", "--smoke-timeout", callback=opt.seconds, help="Limit of the training step, in seconds."
        ),
    ] = 600,
) -> None:
    """Inspect an image and run ZeRO-3 offload in it; write the evidence, tag nothing.

    Exit codes: 0 it has the level that its row requires, 3 engine or disk, 5 it does not pass, or this host cannot show
    that level (what was shown is in the evidence all the same).
    """
    from envbuild.pipeline.gates import parse_gpus
    from envbuild.pipeline.proof import Wish

    wish = Wish(
        timeout=timeout, gpus=parse_gpus(gpus), force=force, long_seconds=minutes * 60 if long else None,
        allow_level=_level(allow_level),
    )  # fmt: skip
    _smoke_arguments(image, python, accelerator, host)
    with opt.narrated(project, host, verbose=verbose, quiet=quiet, settings={"signing.key": key}) as bench:
        if python is not None:
            from envbuild.cli.bare import smoke_interpreter

            smoke_interpreter(bench, python, row=row, accelerator=accelerator, wish=wish, json=json, quiet=quiet)
            return
        bench.need_signing_key()
        from envbuild.pipeline.build import smoke as run_smoke
        from envbuild.pipeline.report import lines

        proof, ref = run_smoke(bench, image or "", row=row, wish=wish)
    if json:
        output.document(
            "smoke",
            findings=list(proof.record.findings),
            image=ref,
            level=proof.level.value,
            evidence=str(proof.path),
            reused=proof.reused,
        )
        return
    output.text(f"{ref} {'has passed' if proof.reused else 'passes'} at level {proof.level.value}")
    if not quiet:
        for line in lines(proof.record, proof.path):
            output.text(line)


def _smoke_arguments(image: str | None, python: str | None, accelerator: str | None, host: str | None) -> None:
    from envbuild.errors import InputError

    if (image is None) == (python is None):
        raise InputError(
            "smoke takes an image or --python, and not both" if image else "smoke needs an image, or --python PATH",
            hint="envbuild smoke IMAGE, or envbuild smoke --python /path/to/python",
        )
    if python is None and accelerator is not None:
        raise InputError("--accelerator goes with --python; an image trains on what its row says")
    if python is not None and host is not None:
        raise InputError("--host goes with an image; --python runs on this host, in no container")
    if accelerator not in (None, "cpu", "cuda"):
        raise InputError(f"--accelerator: '{accelerator}' is none", hint="Say cpu or cuda.")


def promote(
    image: opt.Image,
    row: opt.RowOption = None,
    project: opt.ProjectOption = None,
    host: opt.HostOption = None,
    json: opt.JsonOption = False,
    quiet: opt.QuietOption = False,
    allow_level: opt.LevelOption = None,
) -> None:
    """Tag an image as far as its evidence allows. Builds nothing and runs nothing."""
    from envbuild.pipeline.build import promote as run_promote

    with opt.narrated(project, host, verbose=False, quiet=quiet) as bench:
        result = run_promote(bench, image, row=row, allow_level=_level(allow_level))
    _print(result, json=json, quiet=quiet, written=())


def run(
    image: opt.Image,
    command: Annotated[
        list[str] | None, typer.Argument(metavar="[-- CMD...]", help="What to run; a shell without it.")
    ] = None,
    row: opt.RowOption = None,
    project: opt.ProjectOption = None,
    host: opt.HostOption = None,
    dry_run: opt.DryRunOption = False,
) -> None:
    """Run a command in a row's image, as it was smoked: shared memory, memlock, GPUs, your uid, this folder."""
    from envbuild.errors import InputError
    from envbuild.pipeline.build import locate
    from envbuild.pipeline.running import run_spec
    from envbuild.process import replace

    if command and "--" not in sys.argv:
        raise InputError(
            f"'{command[0]}' follows the image without --", hint=f"envbuild run {image} -- {shlex.join(command)}"
        )
    with opt.narrated(project, host, verbose=False, quiet=True) as bench:
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


def _level(text: str | None) -> Level | None:
    from envbuild.errors import InputError
    from envbuild.model import Level

    if text is None:
        return None
    if text not in ("built", "cpu", "gpu-mig"):
        raise InputError(
            f"--allow-level: '{text}' is not a level that can be allowed", hint="Say built, cpu or gpu-mig."
        )
    return Level(text)


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
    if find_lock(bench, row) is None:
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
