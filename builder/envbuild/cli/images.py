"""Commands about images: promote, run; build and smoke have files of their own."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from envbuild.cli import options as opt
from envbuild.cli import output
from envbuild.cli.building import printed
from envbuild.cli.smoke import smoke

if TYPE_CHECKING:
    from envbuild.engines import ImageInfo
    from envbuild.model import Environment
    from envbuild.pipeline.workbench import Workbench


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    app.command("smoke", epilog="Example: envbuild smoke registry.example/team/train:7 --row cpu")(smoke)
    app.command("promote", epilog="Example: envbuild promote cpu")(promote)
    app.command("run", epilog="Example: envbuild run cpu -- python train.py --deepspeed ds_config.json")(run)


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

    Where the row requires no regression against a baseline, it has to be compared already (envbuild smoke), or to be
    the baseline itself (envbuild baseline add or promote).

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
    printed("promote", result, json=json, quiet=quiet)


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
