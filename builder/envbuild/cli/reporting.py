"""The command report: what was measured, as a page, as JSON, or in short."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from envbuild.cli import measures, modes, output, places
from envbuild.cli import options as opt

if TYPE_CHECKING:
    from envbuild.report.model import Report


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("report", epilog="Example: envbuild report M.json --baseline cpu-tiny -o report.html")(report)


def report(
    ctx: typer.Context,
    measurements: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[MEASUREMENT]...", autocompletion=measures.names,
            help="Files of envbuild profile, or names of baselines; without any, all baselines.",
        ),
    ] = None,
    base: Annotated[
        str | None,
        typer.Option(
            "--baseline", "-b", metavar="BASE", autocompletion=measures.names,
            help="What to compare with: a measurement, or a baseline's name; the baseline of the same key without it.",
        ),
    ] = None,
    row: Annotated[
        str | None,
        typer.Option(
            "--row", metavar="ENV", autocompletion=opt.rows,
            help="Only this row: its baselines, their history, and how far it has come.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", metavar="FILE", callback=places.file, help="Write the page there; - is standard output."
        ),
    ] = None,
    text: Annotated[bool, typer.Option("--text", help="Print a summary; so it is without -o and --json, too.")] = False,
    delta: Annotated[
        str, typer.Option("--delta", metavar="SHARE", help="In the comparison, the change that matters.")
    ] = "5%",
    differs: Annotated[
        list[str] | None,
        typer.Option(
            "--differs", metavar="WHAT", autocompletion=measures.aspects,
            help="In what else than the image the two may differ, as in compare.",
        ),
    ] = None,
    folder: measures.FolderOption = None,
    project: opt.ProjectOption = None,
    host: opt.HostOption = None,
    engine: opt.EngineOption = None,
    json: opt.JsonOption = False,
) -> None:  # fmt: skip
    """Make one page of measurements: steps, utilisation, memory, collectives, losses, findings, history, the matrix.

    The page is one HTML file that needs no network and no script, in light and dark, on paper, and with a table behind
    every drawing. What a device could not give is listed with the reason, and never drawn as 0.
    """
    from envbuild.cli import comparison
    from envbuild.pipeline.reporting import Wish
    from envbuild.pipeline.reporting import report as gather
    from envbuild.profile import comparing
    from envbuild.report import model
    from envbuild.report.history import Given
    from envbuild.report.judged import Base

    modes.hold(ctx, "page" if str(out) == "-" else "json" if json else "text")
    asked = comparing.Asked(delta=comparison.share(delta), differs=comparison.aspects(differs or []))
    place = measures.folder_of(folder, project)
    given = tuple(dict.fromkeys(measurements or ()))
    called = _names([*given, *([base] if base is not None else [])])
    wish = Wish(
        given=tuple(
            Given(name=called[each], measurement=measures.named(each, place, project)) for each in given
        ),
        base=Base(name=called[base], measurement=measures.named(base, place, project)) if base is not None else None,
        row=row, folder=place, asked=asked,
    )  # fmt: skip
    with opt.narrated(project, host, engine, verbose=False, quiet=False) as bench:
        found = gather(bench, wish)
    if out is not None:
        _write(found, out)
    if json:
        output.document("report", report=model.as_dict(found))
    elif text or out is None:
        from envbuild.cli import reported

        reported.show(found)
        if out is None:
            output.narrate("note: the whole of it, with charts: envbuild report ... -o report.html")


def _names(given: Sequence[str]) -> dict[str, str]:
    """What each file is called: by the shortest end of its path that no other one has."""
    parts = {each: Path(each).parts for each in given}
    found = {}
    for each, own in parts.items():
        others = [other for other in parts.values() if other != own]
        sizes = range(1, len(own) + 1)
        size = next((n for n in sizes if all(other[-n:] != own[-n:] for other in others)), len(own))
        found[each] = str(Path(*own[-size:]))
    return found


def _write(found: Report, out: Path) -> None:
    import logging

    from envbuild import store
    from envbuild.report import page

    # It tells that it looks for fonts, and that a home cannot be written: nothing that a reader could act on.
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    made = page.html(found)
    if str(out) == "-":
        output.result(made)
        return
    store.write_where_asked(out, made)
    output.narrate(f"wrote {out}")
