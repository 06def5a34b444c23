"""profile and compare as jobs of a cluster's: what was typed goes along, and so do the files that it names."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from envbuild.cli import cluster, modes, output
from envbuild.errors import InputError

if TYPE_CHECKING:
    from envbuild.cli.cluster import How
    from envbuild.pipeline.profile_wish import Wish
    from envbuild.pipeline.workbench import Workbench
    from envbuild.pipeline.works import Input

# Options that are about this side alone, or that a node is told in another way.
_HERE = frozenset({"json", "verbose", "quiet", "dry_run", "detach", "executor", "project", "out", "ds_config"})


def profile(
    bench: Workbench,
    ctx: typer.Context,
    image: str,
    row: str | None,
    wish: Wish,
    out: Path | None,
    how: How,
) -> None:
    """Measure on a node whose engine has the image."""
    from envbuild.pipeline.cluster import row_of
    from envbuild.pipeline.profile_wish import given
    from envbuild.pipeline.works import Work

    _need_name(bench, image)
    row = row_of(bench, image, row)
    _need_config(bench, wish, row)
    # Behind -- stands a command of the user's own.
    argv = ("profile", *_options(bench, ctx), "--json", image)
    work = Work(name=image, row=row, argv=argv, inputs=_inputs(wish), values=given(wish))
    cluster.carry_out(bench, "profile", [work], how, out=out.expanduser().absolute() if out is not None else None)


def spread(
    bench: Workbench,
    ctx: typer.Context,
    image: str,
    row: str | None,
    wish: Wish,
    nodes: int,
    per_node: int | None,
    out: Path | None,
    how: How,
) -> None:
    """Measure a training over several nodes, each of which has the image."""
    import datetime
    import secrets

    from envbuild.cli import lines
    from envbuild.executors.ranks import UNTRIED
    from envbuild.pipeline import spread as pipeline
    from envbuild.pipeline.cluster import row_of

    _need_name(bench, image)
    if any(each.startswith(("--host=", "--engine=")) for each in typed(ctx)):
        raise InputError(
            "--host and --engine are of one node", hint="What opens an image on every node: [slurm] container."
        )
    row = row_of(bench, image, row)
    planned = pipeline.plan(
        bench, image, row, wish, nodes=nodes, per_node=per_node, seed=secrets.randbelow(1009), program=lines.program(),
        now=datetime.datetime.now(datetime.timezone.utc), out=out.expanduser().absolute() if out is not None else None,
    )  # fmt: skip
    if (kind := bench.site.slurm.container) in UNTRIED:
        output.narrate(f"warning: [slurm] container = {kind}: written from its manual, and never run by us")
    cluster.submit(bench, planned, how)


def compare(
    bench: Workbench, ctx: typer.Context, base: str, candidate: str, wishes: tuple[Wish, Wish], how: How
) -> None:  # fmt: skip
    """Launch two images in turns on one node, whose engine has both."""
    from envbuild.cli.launching import are_images
    from envbuild.pipeline.cluster import one_row
    from envbuild.pipeline.profile_wish import given
    from envbuild.pipeline.works import Work

    if not are_images(base):
        raise InputError(f"{base} is a file, and {candidate} an image", hint="Compare two of the same kind.")
    for image in (base, candidate):
        _need_name(bench, image)
    row = one_row(bench, (base, candidate))
    for wish in wishes:
        _need_config(bench, wish, row)
    argv = ("compare", *_options(bench, ctx), "--json", "--", base, candidate)
    values = given(wishes[0])
    work = Work(name=f"{base} {candidate}", row=row, argv=argv, inputs=_inputs(wishes[0]), values=values)
    cluster.carry_out(bench, "compare", [work], how)


def _need_name(bench: Workbench, image: str) -> None:
    """Find out before anything waits in a queue whether an image can be called so.

    Raises:
        InputError: It cannot.
    """
    from envbuild.pipeline.names import is_reference

    if image not in bench.matrix.environments and not is_reference(image):
        rows = ", ".join(bench.matrix.environments)
        raise InputError(f"{image!r} is neither a row nor the name of an image", hint=f"Rows: {rows}")


def _need_config(bench: Workbench, wish: Wish, row: str | None) -> None:
    """Find out before anything waits in a queue whether something can train with that ds_config.

    Raises:
        InputError: Nothing can.
    """
    from envbuild.pipeline.training_config import training_config

    training_config(
        wish.ds_config, accelerator=bench.matrix.get(row).accelerator if row is not None else "cpu",
        settings=wish.settings, micro_batch=wish.micro_batch, disk=str(wish.disk) if wish.disk else None,
    )  # fmt: skip


def _options(bench: Workbench, ctx: typer.Context) -> tuple[str, ...]:
    given = cluster.seen_from_nodes(bench, None)
    return (*(f"{name}={value}" for name, value in given.items() if value is not None), *typed(ctx))


def typed(ctx: typer.Context) -> Iterator[str]:
    """The options that were typed, as a node is to be told them; folders lead to the same from everywhere."""
    for param in modes.typed(ctx):
        if param.name in _HERE:
            continue
        name, value = max(param.opts, key=len), ctx.params[param.name or ""]
        if isinstance(value, bool):
            yield from [name] if value else []
            continue
        if param.name == "env":  # what everybody may read: the values go another way
            value = [each.partition("=")[0] for each in value]
        for each in value if isinstance(value, (list, tuple)) else (value,):
            yield f"{name}={each.expanduser().absolute() if isinstance(each, Path) else each}"


def _inputs(wish: Wish) -> tuple[Input, ...]:
    import json

    from envbuild.collector import secrets
    from envbuild.pipeline.works import Input

    if wish.ds_config is None:
        return ()
    # Nothing trains with what looks like a secret; the node need not know of it.
    public = secrets.config(wish.ds_config)
    return (Input(option="--ds-config", name="ds_config.json", text=json.dumps(public, indent=2) + "\n"),)
