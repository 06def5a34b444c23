"""Commands about rows: list, show, check."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

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


def list_rows(project: opt.ProjectOption = None, host: opt.HostOption = None, json: opt.JsonOption = False) -> None:
    """List the rows of the matrix, with the strongest level their images have here."""
    bench = opt.workbench(project, host)
    from envbuild.pipeline.report import standing

    bench.read_site()
    rows = [(env, standing(bench, env)) for env in bench.matrix.environments.values()]
    if json:
        output.document("list", environments=[_summary(env) | standing.as_dict() for env, standing in rows])
        return
    output.table(
        ("ROW", "GPU", "CUDA", "TORCH", "DEEPSPEED", "GCC", "REQUIRES", "LEVEL", "IMAGE"),
        [
            (
                env.name,
                ", ".join(env.gpus) or "-",
                env.cuda.version if env.cuda else "-",
                env.torch_version,
                env.deepspeed.version,
                env.gcc.version,
                env.requires,
                standing.level,
                standing.image or "-",
            )
            for env, standing in rows
        ],
    )
    if any(each.no_engine for _, each in rows):
        output.narrate("note: no engine answers, so it is not known which images there are")


def show(
    env: opt.Row,
    project: opt.ProjectOption = None,
    host: opt.HostOption = None,
    json: opt.JsonOption = False,
) -> None:
    """Show a row: every fact with its source, the lock, and the evidence of its image."""
    bench = opt.workbench(project, host)
    row = bench.matrix.get(env)
    bench.read_site()
    from envbuild.pipeline.report import details

    described = details(bench, row)
    if json:
        del described["evidence_lines"]
        output.document("show", environment=described)
        return
    _print_row(row, described)


def check(envs: opt.Rows = None, project: opt.ProjectOption = None, json: opt.JsonOption = False) -> None:
    """Check rows against the rules: what is known not to work, with the reason and a fix."""
    bench = opt.workbench(project)
    from envbuild.pipeline.check import check_rows
    from envbuild.pipeline.prepare import errors
    from envbuild.pipeline.prove import as_dict

    names = list(dict.fromkeys(envs or bench.matrix.environments))
    found = check_rows(bench, names)
    if json:
        output.document("check", findings=[as_dict(finding) for finding in found])
    else:
        output.findings(found)
        output.narrate(
            f"{len(names)} row(s), {len(errors(found))} error(s), {len(found) - len(errors(found))} other finding(s)"
        )
    if errors(found):
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


def _print_row(row: Environment, described: dict[str, Any]) -> None:
    output.text(f"{row.name}: {row.summary}")
    output.text()
    output.table(
        ("FACT", "VALUE", "MARK", "SOURCE"),
        [(fact["name"], fact["value"], fact["mark"], fact["source"]) for fact in described["facts"]],
    )
    output.text()
    output.pairs(
        (name.replace("_", " "), str(value)) for name, value in described["state"].items() if value is not None
    )
    record = described["evidence"]
    if record is None:
        output.text()
        output.text(
            f"No image of this row's current inputs has proved itself here. Build one: envbuild build {row.name}"
        )
        return
    output.text()
    for line in described["evidence_lines"]:
        output.text(line)


def bench_of(project: Path | None) -> Workbench:
    """For tests of the command line."""
    return opt.workbench(project)
