"""Commands for beginners: init."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from envbuild.cli import output


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    app.command("init", epilog="Example: envbuild init my-project && cd my-project && envbuild list")(init)


def init(
    folder: Annotated[Path, typer.Argument(metavar="[DIR]", help="Folder of the project.")] = Path(),
) -> None:
    """Start a project of your own: a matrix with one commented row, site configuration, .gitignore."""
    from envbuild import project

    for path in project.init(folder):
        output.text(str(path))
    output.narrate("next: edit matrix.yaml, then envbuild check and envbuild build cpu")
