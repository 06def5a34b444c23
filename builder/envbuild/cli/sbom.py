"""The command sbom."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from envbuild.cli import options as opt
from envbuild.cli import output, places


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("sbom", epilog="Example: envbuild sbom cpu -o cpu.cdx.json")(sbom)


def sbom(
    image: opt.Image,
    out: Annotated[
        Path | None,
        typer.Option(
            "-o", "--output", metavar="FILE", callback=places.file, help="Write it here; to stdout without it."
        ),
    ] = None,
    project: opt.ProjectOption = None,
    host: opt.HostOption = None,
    engine: opt.EngineOption = None,
    json: opt.JsonOption = False,
    verbose: opt.VerboseOption = False,
    quiet: opt.QuietOption = False,
) -> None:
    """Say what an image is made of, as a CycloneDX 1.6 document: OS packages, Python packages, compiled ops.

    It is made from what is in the image, not from what it was declared to be: what was installed on top appears, what
    was removed does not. The same image gives the same bytes. With --json, the document and its sums by kind.

    Exit codes: 0 made, 2 no image could have that name, 3 engine or disk, 5 there is no such image.
    """
    from envbuild.pipeline import materials

    with opt.narrated(project, host, engine, verbose=verbose, quiet=quiet) as bench:
        found = materials.bill(bench, *materials.find(bench, image))
    for problem in found.problems:
        output.narrate(f"warning: it may lack something: {problem}")
    if out is not None:
        from envbuild.store import write_where_asked

        write_where_asked(out, found.data)
    if json:
        told = {"document": found.document} if out is None else {"file": str(out)}
        summary = {"image": found.image, "config_digest": found.digest, "parts": found.counts}
        output.document("sbom", sbom={**summary, "problems": list(found.problems), **told})
    elif out is None:
        output.result(found.data.decode())
    elif not quiet:
        kinds = ", ".join(f"{count} {kind}" for kind, count in found.counts.items())
        output.narrate(f"wrote {out}: {kinds}")
