"""What is wrong with a ds_config: lint."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from envbuild.cli import options as opt
from envbuild.cli import output, places
from envbuild.cli.linted import Run
from envbuild.errors import FINDINGS, USAGE

_EPILOG = (
    "Example: envbuild lint ds_config.json --row h100-cu124 --gpu h100 --gpus 8        "
    "(what can be mended: envbuild lint --fix ds_config.json)"
)


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("lint", epilog=_EPILOG)(lint)


def _launchers(ctx: typer.Context, incomplete: str) -> list[str]:
    from envbuild.dsconfig.context import LAUNCHERS

    return [each for each in LAUNCHERS if each.startswith(incomplete)]


def _rules(ctx: typer.Context, incomplete: str) -> list[str]:
    from envbuild.pipeline.linting import titles

    return [each for each in titles() if each.startswith(incomplete)]


def _versions(ctx: typer.Context, incomplete: str) -> list[str]:
    from envbuild.dsschema import VERSIONS

    return [each for each in VERSIONS if each.startswith(incomplete)]


def _cards(ctx: typer.Context, incomplete: str) -> list[str]:
    from envbuild.sizing import cards

    return opt.completed(ctx, incomplete, lambda bench: cards.names(bench.facts))


def _models(ctx: typer.Context, incomplete: str) -> list[str]:
    from envbuild.sizing import known

    return opt.completed(ctx, incomplete, lambda bench: known.names(bench.facts))


RuleOption = Annotated[
    list[str] | None,
    typer.Option("--rule", metavar="ID", help="Only this rule or family; may be given again.", autocompletion=_rules),
]
IgnoreOption = Annotated[
    list[str] | None,
    typer.Option("--ignore", metavar="ID", help="Without this rule or family; may be given again.",
                 autocompletion=_rules),
]  # fmt: skip


def lint(
    files: Annotated[
        list[str] | None, typer.Argument(metavar="FILE...", help="Configurations; - for standard input.")
    ] = None,
    row: opt.RowOption = None,
    deepspeed: Annotated[
        str | None,
        typer.Option(
            "--deepspeed",
            metavar="V",
            help="DeepSpeed's release; else the row's, or the newest known.",
            autocompletion=_versions,
        ),
    ] = None,
    launcher: Annotated[
        str | None,
        typer.Option(
            "--with",
            metavar="LAUNCHER",
            autocompletion=_launchers,
            help="Who reads the file: deepspeed, hf-trainer or accelerate; seen from the file without it.",
        ),
    ] = None,
    gpu: Annotated[
        str | None, typer.Option("--gpu", metavar="GPU", help="Such as a100-80gb.", autocompletion=_cards)
    ] = None,
    gpus: Annotated[int | None, typer.Option("--gpus", metavar="N", min=1, help="GPUs of one node.")] = None,
    nodes: Annotated[int, typer.Option("--nodes", metavar="N", min=1, help="Nodes.")] = 1,
    ram: Annotated[
        str | None, typer.Option("--ram", metavar="SIZE", help="Memory of one node, such as 512GiB.")
    ] = None,
    params: Annotated[
        str | None,
        typer.Option(
            "--params",
            metavar="N|MODEL",
            help="The model: its parameters, such as 7b, or its name.",
            autocompletion=_models,
        ),
    ] = None,
    model_config: Annotated[
        Path | None, typer.Option("--model-config", metavar="FILE", help="The model: its Hugging Face config.json.")
    ] = None,
    fix: Annotated[bool, typer.Option("--fix", help="Mend what has one obvious remedy: renames, moves.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="With --fix: print the difference; change nothing.")
    ] = False,
    only: RuleOption = None,
    ignore: IgnoreOption = None,
    listed: Annotated[bool, typer.Option("--rules", help="Print every rule.")] = False,
    sarif: Annotated[
        str | None,
        typer.Option(
            "--sarif", metavar="FILE", callback=places.file, help="Write SARIF 2.1.0, for code hosts; - prints it."
        ),
    ] = None,
    project: opt.ProjectOption = None,
    quiet: opt.QuietOption = False,
    json: opt.JsonOption = False,
) -> None:
    """Find what is wrong with a DeepSpeed configuration: unknown keys, wrong values, settings that do not go together.

    What counts is the DeepSpeed release that will read it. Nothing is run and no network is used.

    Exit codes: 0 no errors, 1 a finding of severity error, 2 a file could not be read.
    """
    from envbuild.pipeline import linting

    if listed:
        _list(linting.titles(), json)
        return
    if not files:
        raise typer.BadParameter("name a configuration, or - for standard input (envbuild lint FILE...)")
    if dry_run and not fix:
        raise typer.BadParameter("--dry-run says what --fix would write; give both")
    if params is not None and model_config is not None:
        raise typer.BadParameter("--params and --model-config both name the model; give one")
    _check_outputs(files, fix=fix, dry_run=dry_run, json=json, sarif=sarif)
    wish = linting.Wish(
        row=row, deepspeed=deepspeed, launcher=launcher, gpu=gpu, gpus=gpus, nodes=nodes, ram=ram, params=params,
        model_config=model_config,
    )  # fmt: skip
    wanted = linting.chosen(only or (), ignore or ())
    # What reads rows and facts takes longer than the lint of a file.
    bench = None if all(each is None for each in (row, gpu, params)) else opt.workbench(project)
    run = Run(wish, linting.context(wish, bench), wanted, fix=fix, dry_run=dry_run)
    for name in dict.fromkeys(files):
        run.take(name, quiet=quiet or json)
    errors = run.tell(json=json, sarif=sarif, quiet=quiet)
    if run.unread:
        raise typer.Exit(USAGE)
    if errors:
        raise typer.Exit(FINDINGS)


def _check_outputs(files: Sequence[str], *, fix: bool, dry_run: bool, json: bool, sarif: str | None) -> None:
    """Refuse what would print two things where one can be read, or write over what is linted."""
    printed = [
        word
        for word, given in (
            ("--json", json), ("--sarif -", sarif == "-"), ("--dry-run", dry_run),
            ("--fix of standard input", fix and not dry_run and "-" in files),
        )
        if given
    ]  # fmt: skip
    if len(printed) > 1:
        raise typer.BadParameter(f"{' and '.join(printed)} each print to standard output; give one of them")
    if sarif is not None and not sarif:
        raise typer.BadParameter("--sarif names no file")
    if sarif not in (None, "-") and any(_same(sarif, name) for name in files):
        raise typer.BadParameter(f"--sarif would write over {sarif}, which is linted; name another file")


def _same(one: str | None, other: str) -> bool:
    try:
        return one is not None and Path(one).samefile(other)
    except (OSError, ValueError):
        return False


def _list(titles: dict[str, str], as_json: bool) -> None:
    if as_json:
        output.document("lint", rules=[{"id": name, "title": title} for name, title in titles.items()])
    else:
        output.wrapped(("RULE", "WHAT IT HOLDS A FILE TO"), list(titles.items()))
