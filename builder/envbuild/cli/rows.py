"""Commands about rows: list, show, check."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from envbuild.cli import options as opt
from envbuild.cli import output

if TYPE_CHECKING:
    from envbuild.model import Environment
    from envbuild.pipeline.workbench import Workbench


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    app.command("list", epilog="Example: envbuild list --json | jq '.environments[].name'")(list_rows)
    app.command("show", epilog="Example: envbuild show cpu")(show)
    app.command("check", epilog="Example: envbuild check            (exit 1 when a rule is broken)")(check)


def list_rows(
    gpu: Annotated[
        str | None,
        typer.Option("--gpu", metavar="GPU", help="Only rows for this GPU.", autocompletion=opt.gpu_names),
    ] = None,
    cuda: Annotated[
        str | None,
        typer.Option("--cuda", metavar="X[.Y]", help="Only rows of this CUDA.", autocompletion=opt.cuda_versions),
    ] = None,
    accelerator: Annotated[
        str | None,
        typer.Option("--accelerator", metavar="cpu|cuda", help="Only rows for it.", autocompletion=opt.accelerators),
    ] = None,
    project: opt.ProjectOption = None,
    host: opt.HostOption = None,
    engine: opt.EngineOption = None,
    json: opt.JsonOption = False,
) -> None:
    """List the rows of the matrix, and how far each has come: by its image here, or by the record it came with."""
    bench = opt.workbench(project, host, engine)
    from envbuild.pipeline.standing import standings

    bench.read_site()
    chosen = _chosen(bench, gpu, cuda, accelerator)
    rows = list(zip(chosen, standings(bench, chosen, exact=json), strict=True))
    if json:
        output.document("list", environments=[_summary(env) | standing.as_dict() for env, standing in rows])
        return
    output.table(
        ("ROW", "GPU", "CUDA", "TORCH", "DEEPSPEED", "GCC", "LEVEL", "IMAGE"),
        [
            (
                env.name,
                ", ".join(env.gpus) or "-",
                env.cuda.version if env.cuda else "-",
                env.torch_version,
                env.deepspeed.version,
                env.gcc.version,
                standing.text,
                standing.image or "-",
            )
            for env, standing in rows
        ],
        # What a narrow terminal can do without, first what goes first.
        spare=("IMAGE", "GCC", "DEEPSPEED", "CUDA", "GPU"),
    )
    if not rows:
        output.narrate("note: no row is like that")
    if any(each.no_engine for _, each in rows):
        output.narrate("note: no engine answers, so it is not known which images there are")


def _chosen(bench: Workbench, gpu: str | None, cuda: str | None, accelerator: str | None) -> list[Environment]:
    from envbuild.errors import InputError
    from envbuild.facts.versions import starts_with

    rows = list(bench.matrix.environments.values())
    if accelerator not in (None, "cpu", "cuda"):
        raise InputError(f"--accelerator: {accelerator!r} is not known", hint="Say cpu or cuda.")
    if accelerator is not None:
        rows = [env for env in rows if env.accelerator == accelerator]
    if cuda is not None:
        rows = [env for env in rows if env.cuda and starts_with(env.cuda.version, cuda)]
    if gpu is not None:
        from envbuild.matrix.asking import gpus

        wanted = gpus(bench.facts, gpu)
        rows = [env for env in rows if set(wanted) & set(env.gpus)]
    return rows


def show(
    env: opt.Row,
    project: opt.ProjectOption = None,
    host: opt.HostOption = None,
    engine: opt.EngineOption = None,
    json: opt.JsonOption = False,
) -> None:
    """Show a row: every fact with its source, what it stands on, what the rules say, the lock, the evidence."""
    bench = opt.workbench(project, host, engine)
    row = bench.matrix.get(env)
    bench.read_site()
    from envbuild.pipeline.report import details

    described = details(bench, row)
    if json:
        del described["evidence_lines"]
        output.document("show", environment=described)
        return
    _print_row(bench, row, described)


def check(envs: opt.Rows = None, project: opt.ProjectOption = None, json: opt.JsonOption = False) -> None:
    """Check rows against the rules: what is known not to work, with the reason and a fix."""
    bench = opt.workbench(project)
    from envbuild.pipeline.check import check_rows

    names = list(dict.fromkeys(envs or bench.matrix.environments))
    found = check_rows(bench, names)
    if output.report("check", found, f"{len(names)} row(s)", as_json=json):
        raise typer.Exit(1)


def _summary(env: Environment) -> dict[str, Any]:
    return {
        "name": env.name,
        "summary": env.summary,
        "accelerator": env.accelerator,
        "gpus": list(env.gpus),
        "cuda": env.cuda.version if env.cuda else None,
        "torch": env.torch_version,
        "deepspeed": env.deepspeed.version,
        "gcc": env.gcc.version,
        "python": env.python,
        "requires": env.requires,
    }


def _print_row(bench: Workbench, row: Environment, described: dict[str, Any]) -> None:
    from envbuild.matrix import check as judge

    output.paragraph(f"{row.name}: ", row.summary)
    output.text()
    _print_facts("FACT", described["facts"])
    if described["upstream"]:
        output.text()
        _print_facts("UPSTREAM SAYS", described["upstream"])
    for said in described["claimed"]:
        output.text()
        output.paragraph("Claimed: ", f"{said['name']} is {said['value']}, by {said['by']}")
        output.paragraph("    but: ", said["contradicted"])
    for waiver in row.waivers:
        output.text()
        where = f" at {waiver.key}" if waiver.key else ""
        output.paragraph("Waived:  ", f"{waiver.rule}{where} until {waiver.until}: {waiver.reason}")
    found = judge(row, bench.facts, bench.matrix)
    if found:
        output.text()
        output.findings(found)
    output.text()
    told = {**described["state"], "recorded": None}
    del told["level"]
    output.pairs((name.replace("_", " "), str(value)) for name, value in told.items() if value is not None)
    output.text()
    if described["evidence"] is None:
        output.paragraph(
            "",
            f"No image of this row's current inputs has proved itself here. Build one: envbuild build {row.name}",
        )
        return
    for line in described["evidence_lines"]:
        output.text(line)
    output.text(f"  signed   {_signed(described['signature'])}")


def _print_facts(title: str, facts: list[dict[str, Any]]) -> None:
    output.wrapped(
        (title, "VALUE", "MARK", "SOURCE"),
        [(fact["name"], fact["value"], fact["mark"], fact["source"]) for fact in facts],
    )


def _signed(signature: dict[str, str | None]) -> str:
    if signature["key"]:
        return f"by {signature['key']}"
    if signature["state"] == "unsigned":
        return "no (unsigned)"
    return f"{signature['state']}: {signature['reason']}"


def bench_of(project: Path | None) -> Workbench:
    """For tests of the command line."""
    return opt.workbench(project)
