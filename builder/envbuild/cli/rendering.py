"""The command that shows, writes and checks what is made of a row: render."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from envbuild.cli import options as opt
from envbuild.cli import output

if TYPE_CHECKING:
    from envbuild.pipeline.workbench import Workbench

_SCRIPTS = {"provision": "provision.sh", "apptainer": "apptainer.def"}


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("render", epilog="Example: envbuild render cpu -o out   (or: envbuild render --check)")(render)


def render(
    envs: opt.SomeRows = None,
    every: opt.AllOption = False,
    out: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="DIR", help="Write one row's build context here.")
    ] = None,
    kind: Annotated[
        str, typer.Option("--format", metavar="dockerfile|provision|apptainer", help="What to make of the row.")
    ] = "dockerfile",
    check: Annotated[
        bool, typer.Option("--check", help="Say which Dockerfiles and locks in images/ are stale; exit 1 if any is.")
    ] = False,
    write: Annotated[bool, typer.Option("--write", help="Write images/ENV/Dockerfile.")] = False,
    project: opt.ProjectOption = None,
    json: opt.JsonOption = False,
) -> None:
    """Print a row's Dockerfile, write its build context, or keep images/ up to date.

    `--format provision` is a script for a host without root and without containers, `--format apptainer` a definition
    file for Apptainer.
    """
    if sum((out is not None, check, write)) > 1:
        raise typer.BadParameter("choose one of -o, --check and --write")
    if kind != "dockerfile" and (check or write):
        raise typer.BadParameter("images/ holds Dockerfiles; --format goes with one row, printed or written with -o")
    bench = opt.workbench(project)
    if check:
        _check_images(bench, envs, json=json)
    elif write:
        _write_images(bench, opt.chosen(bench, envs, every, "render --write"), json=json)
    else:
        names = opt.chosen(bench, envs, every, "render")
        if len(names) != 1:
            raise typer.BadParameter("one row is printed or written out at a time; for all: --check or --write")
        if kind == "dockerfile":
            _render(bench, names[0], out, json=json)
        else:
            _render_script(bench, names[0], kind, out, json=json)


def _render(bench: Workbench, name: str, out: Path | None, *, json: bool) -> None:
    from envbuild.pipeline.prepare import prepare, require_clean

    row = bench.matrix.get(name)
    if out is None:
        from envbuild.pipeline.committed import draft

        bench.read_site()
        require_clean(bench, row)
        made = draft(bench, row)
        if made.rendering is None and made.lock is not None:
            # Without its wheels a row has a Dockerfile, and neither a build context nor an id.
            if json:
                files = {"Dockerfile": made.dockerfile.decode()}
                output.document("render", plan={"environment": name, "target_id": None, "files": files})
            else:
                output.result(made.dockerfile.decode())
            output.narrate(f"note: {name}: {made.said.message if made.said else ''}")
            return
    target = prepare(bench, name)
    if json:
        files = {path: content.decode() for path, content in target.rendering.files.items()}
        output.document("render", plan={"environment": name, "target_id": target.rendering.target_id, "files": files})
    if out is not None:
        from envbuild.render import write

        for path in write(target.rendering, out):
            if not json:
                output.text(str(path))
    elif not json:
        output.result(target.rendering.files["Dockerfile"].decode())


def _check_images(bench: Workbench, envs: list[str] | None, *, json: bool) -> None:
    from envbuild.pipeline.committed import check_images

    names = [bench.matrix.get(name).name for name in dict.fromkeys(envs or bench.matrix.environments)]
    found = check_images(bench, names, everything=not envs)
    if output.report("render", found, f"{len(names)} row(s)", as_json=json):
        raise typer.Exit(1)


def _write_images(bench: Workbench, names: list[str], *, json: bool) -> None:
    from envbuild.pipeline.committed import write_images

    changed, failed = write_images(bench, names)
    if json:
        output.document("render", written=[str(path) for path in changed], findings=output.documents(failed))
    else:
        for path in changed:
            output.text(str(path))
        output.findings(failed, narrated=True)
        output.narrate(f"{len(names)} row(s), {len(changed)} Dockerfile(s) written")
    if failed:
        raise typer.Exit(1)


def _render_script(bench: Workbench, name: str, kind: str, out: Path | None, *, json: bool) -> None:
    """One file of a row: printed, or written into a folder."""
    from envbuild.errors import InputError
    from envbuild.pipeline.prepare import prepare
    from envbuild.pipeline.provision import script
    from envbuild.render import apptainer
    from envbuild.store import write_atomic

    if kind not in _SCRIPTS:
        raise InputError(f"--format: '{kind}' is none", hint="Say dockerfile, provision or apptainer.")
    target = prepare(bench, name)
    content = script(bench, target) if kind == "provision" else apptainer(target.plan, bench.project.templates)
    file = _SCRIPTS[kind]
    if out is not None:
        write_atomic(out / file, content)
    if json:
        output.document("render", plan={"environment": name, "target_id": None, "files": {file: content.decode()}})
    elif out is not None:
        output.text(str(out / file))
    else:
        output.result(content.decode())
