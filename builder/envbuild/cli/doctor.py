"""doctor: why does training not start here? Root causes first, each with its evidence and its fix."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from envbuild.cli import examining as ex
from envbuild.cli import options as opt
from envbuild.cli import output

if TYPE_CHECKING:
    from envbuild.pipeline.doctoring import Examined

# Typer makes one paragraph of what is not separated by an empty line.
_EPILOG = "\n\n".join(
    (
        "Example: envbuild doctor --python ~/envs/train/bin/python",
        "inside of an image: envbuild doctor --image my-team/train:1",
        "would this machine run a row: envbuild doctor --row a100-cu118",
        "what broke it: envbuild doctor --save good.json, and on a bad day: envbuild doctor --since good.json",
        "a machine without envbuild: envbuild doctor --collector doctor.pyz, there: python3 doctor.pyz > facts.json, "
        "here: envbuild doctor --from facts.json --html report.html",
    )
)


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("doctor", epilog=_EPILOG)(doctor)


def doctor(
    image: ex.Image = None,
    python: ex.Python = None,
    saved: ex.Saved = None,
    nvme: ex.Nvme = None,
    bench: ex.Bench = False,
    timeout: ex.Timeout = 300,
    row: ex.Row = None,
    torch: ex.Torch = None,
    cuda: ex.Cuda = None,
    deepspeed: ex.DeepSpeed = None,
    gpu: ex.Gpu = None,
    params: ex.Params = None,
    gpus: ex.Ranks = None,
    since: ex.Since = None,
    only: ex.Only = None,
    json: ex.Json = False,
    html: ex.Html = None,
    report: ex.Report = None,
    save: ex.Save = None,
    collector: ex.Collector = None,
    listed: ex.Listed = False,
    verbose: ex.Verbose = False,
    quiet: ex.Quiet = False,
    project: opt.ProjectOption = None,
    host: opt.HostOption = None,
    engine: opt.EngineOption = None,
) -> None:
    """Find out why training does not start: here, in an image, or on a machine that you have facts of.

    What is found comes root first; what is only a consequence stands under its cause. Nothing is changed.

    Exit codes: 0 no error was found, 1 errors, 2 bad usage or facts that cannot be read, 3 engine or disk.
    """
    if listed:
        _list(json=json)
        return
    if collector is not None:
        _write_collector(collector)
        return
    said = {"torch": torch, "cuda": cuda, "deepspeed": deepspeed, "gpu": gpu}
    _check(image=image, python=python, saved=saved, host=host, measured=bool(nvme) or bench, since=since)
    with opt.narrated(project, host, engine, verbose=verbose, quiet=quiet) as workbench:
        from envbuild.pipeline.doctoring import Extent, Question, params_of
        from envbuild.pipeline.doctoring import doctor as examine

        question = Question(
            image=image, python=python, extent=Extent(nvme=tuple(nvme or ()), bench=bench, timeout=timeout),
            saved=saved, row=row, said={name: value for name, value in said.items() if value is not None},
            params=params_of(params) if params is not None else None, ranks=gpus, since=since, only=tuple(only or ()),
        )  # fmt: skip
        examined = examine(workbench, question)
    _write(examined, html=html, report=report, save=save)
    if json:
        from envbuild.pipeline.doctoring import document

        output.document("doctor", **document(examined))
    else:
        _print(examined, verbose=verbose, quiet=quiet)
    if examined.report.wrong:
        raise typer.Exit(1)


def _check(
    *, image: str | None, python: str | None, saved: str | None, host: str | None, measured: bool, since: str | None
) -> None:
    from envbuild.errors import InputError

    given = {"--image": image, "--from": saved, "--python": python}
    named = [name for name, value in given.items() if value is not None]
    if saved is not None and len(named) > 1:
        raise InputError(f"--from takes facts that are there; {named[0 if named[0] != '--from' else 1]} collects them")
    if saved is not None and measured:
        raise InputError(
            "--nvme and --bench look at a machine, and --from does not",
            hint="Give them to the collector: python3 doctor.pyz --nvme DIR --bench > facts.json",
        )
    if host is not None and image is None:
        raise InputError("--host goes with --image: nothing else needs an engine")
    if saved == "-" and since == "-":
        raise InputError("--from and --since cannot both read standard input")


def _list(*, json: bool) -> None:
    from envbuild.doctor.checks import CHECKS

    if json:
        # These are no findings: the payload says what it is.
        output.document("doctor", checks=[{"name": each.name, "title": each.title} for each in CHECKS])
    else:
        output.wrapped(("CHECK", "WHAT IT LOOKS AT"), [(each.name, each.title) for each in CHECKS])


def _write_collector(path: Path) -> None:
    from envbuild.doctor.archive import write_archive

    write_archive(path)
    output.text(f"wrote {path}")
    output.narrate(f"run it where training does not start: python3 {path.name} > facts.json")
    output.narrate("and read what it found: envbuild doctor --from facts.json")


def _write(examined: Examined, *, html: Path | None, report: Path | None, save: Path | None) -> None:
    """The files that were asked for, each whole or not at all."""
    from envbuild import store

    files: dict[Path, str] = {}
    if html is not None:
        from envbuild.doctor.page import html as page

        files[html] = page(examined.report, examined.collection)
    if report is not None:
        from envbuild.doctor.ticket import markdown

        files[report] = markdown(examined.report)
    if save is not None:
        from envbuild.pipeline.examine import collection_text

        files[save] = collection_text(examined.collection)
    for path, text in files.items():
        store.write_where_asked(path, text)
        output.narrate(f"wrote {path}")


def _print(examined: Examined, *, verbose: bool, quiet: bool) -> None:
    from envbuild.cli.examined import Page, lines

    page = Page(
        width=output.width(), encoding=sys.stdout.encoding or "utf-8", paint=output.paint, verbose=verbose, quiet=quiet
    )
    for line in lines(examined.report, page):
        output.text(line)
