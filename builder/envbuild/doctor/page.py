"""The report as one HTML file that a person can attach to a ticket: nothing is fetched, nothing in it runs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from envbuild import __version__
from envbuild.doctor.collection import Collection
from envbuild.doctor.report import Report, headline
from envbuild.doctor.text import glossary, printable

# Of one part of the facts; a machine with a thousand packages stays below it by far.
_MOST = 4_000_000


def html(report: Report, collection: Collection) -> str:
    """The page, with the facts that the findings stand on folded away in it."""
    import jinja2  # slow to import, and most answers are read on a terminal

    environment = jinja2.Environment(
        # envbuild's own, not the project's templates: this page's escaping is what protects its reader.
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
    )
    return environment.get_template("page.html.j2").render(
        report=report,
        version=__version__,
        headline=headline,
        words={"error": "error", "warning": "warning", "info": "note"},
        glossary=glossary(" ".join(each.why for each in report.answers)),
        facts=tuple(_facts(collection)),
    )


def _facts(collection: Collection) -> Iterator[tuple[str, str]]:
    document: dict[str, Any] = collection.model_dump(mode="json", by_alias=True)
    cache = document["libraries"].get("cache")
    if cache:
        document["libraries"]["cache"] = f"({len(cache)} characters, left out here)"
    plain = {name: value for name, value in document.items() if not isinstance(value, dict | list)}
    for name, value in (("examination", plain), *document.items()):
        if name in plain or not value:
            continue
        text = printable(json.dumps(value, indent=1, ensure_ascii=False))
        yield name, text if len(text) <= _MOST else f"{text[:_MOST]}\n... {len(text) - _MOST} more characters"
