"""Commands about rows: list, show, check, lock, render."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from envbuild.cli import options as opt
from envbuild.cli import output

if TYPE_CHECKING:
    from envbuild.model import Environment
    from envbuild.pipeline.prepare import Target
    from envbuild.pipeline.workbench import Workbench


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    app.command("list", epilog="Example: envbuild list --json | jq '.environments[].name'")(list_rows)
    app.command("show", epilog="Example: envbuild show cpu")(show)
    app.command("check", epilog="Example: envbuild check            (exit 1 when a rule is broken)")(check)
    app.command("lock", epilog="Example: envbuild lock cpu")(lock)
    app.command("render", epilog="Example: envbuild render cpu -o out   (or: envbuild render cpu | less)")(render)


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


def lock(
    env: opt.Row,
    project: opt.ProjectOption = None,
    json: opt.JsonOption = False,
    verbose: opt.VerboseOption = False,
    quiet: opt.QuietOption = False,
    dry_run: opt.DryRunOption = False,
    timeout: Annotated[
        float, typer.Option("--timeout", callback=opt.seconds, help="Limit of the resolution, in seconds.")
    ] = 300,
) -> None:
    """Resolve a row's wheels for its Python and platform and write them down with hashes."""
    from envbuild.lock import inputs_digest, requirements
    from envbuild.pipeline.prepare import find_lock, make_lock, require_clean

    with opt.narrated(project, None, verbose=verbose, quiet=quiet) as bench:
        row = bench.matrix.get(env)
        require_clean(bench, row)
        if dry_run:
            wanted = list(requirements(row))
            if json:
                output.document("lock", plan={"environment": env, "requirements": wanted})
            else:
                for requirement in wanted:
                    output.text(requirement)
            return
        before = find_lock(bench, row)
        path, made = make_lock(bench, row, timeout=timeout)
    changes = _lock_changes(before[1].packages if before else (), made.packages)
    if json:
        output.document("lock", lock=made.model_dump(mode="json", by_alias=True), path=str(path), changes=changes)
        return
    for line in changes:
        output.text(line)
    output.text(f"{path}: {len(made.packages)} packages ({inputs_digest(row, made.platform)[:19]})")


def render(
    env: opt.Row,
    out: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="DIR", help="Write it here: the whole build context.")
    ] = None,
    kind: Annotated[
        str, typer.Option("--format", metavar="dockerfile|provision|apptainer", help="What to make of the row.")
    ] = "dockerfile",
    project: opt.ProjectOption = None,
    json: opt.JsonOption = False,
) -> None:
    """Print a row's Dockerfile, or write its whole build context.

    `--format provision` is a script for a host without root and without containers, `--format apptainer` a definition
    file for Apptainer.
    """
    bench = opt.workbench(project)
    from envbuild.pipeline.prepare import prepare
    from envbuild.render import write

    target = prepare(bench, env)
    if kind != "dockerfile":
        _render_script(bench, target, kind, out, json=json)
        return
    paths = write(target.rendering, out) if out else ()
    if json:
        files = {path: content.decode() for path, content in target.rendering.files.items()}
        output.document("render", plan={"environment": env, "target_id": target.rendering.target_id, "files": files})
    elif out:
        for path in paths:
            output.text(str(path))
    else:
        output.result(target.rendering.files["Dockerfile"].decode())


_SCRIPTS = {"provision": "provision.sh", "apptainer": "apptainer.def"}


def _render_script(bench: Workbench, target: Target, kind: str, out: Path | None, *, json: bool) -> None:
    """One file of a row: printed, or written into a folder."""
    from envbuild.errors import InputError
    from envbuild.pipeline.provision import script
    from envbuild.render import apptainer
    from envbuild.store import write_atomic

    if kind not in _SCRIPTS:
        raise InputError(f"--format: '{kind}' is none", hint="Say dockerfile, provision or apptainer.")
    content = script(bench, target) if kind == "provision" else apptainer(target.plan, bench.project.templates)
    name = _SCRIPTS[kind]
    if out is not None:
        write_atomic(out / name, content)
    if json:
        files = {name: content.decode()}
        output.document("render", plan={"environment": target.env.name, "target_id": None, "files": files})
    elif out is not None:
        output.text(str(out / name))
    else:
        output.result(content.decode())


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


def _lock_changes(before: tuple[Any, ...], after: tuple[Any, ...]) -> list[str]:
    old = {package.name: package.version for package in before}
    new = {package.name: package.version for package in after}
    if not before:
        return []
    return [
        f"{name}: {old.get(name, '(new)')} -> {new.get(name, '(gone)')}"
        for name in sorted(old.keys() | new.keys())
        if old.get(name) != new.get(name)
    ]


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
