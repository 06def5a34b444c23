"""Commands about facts: list, show, refresh."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from envbuild.cli import options as opt
from envbuild.cli import output

if TYPE_CHECKING:
    from envbuild.facts.known import Entry, FactsFile
    from envbuild.facts.refresh import Outcome
    from envbuild.project import Project

facts = typer.Typer(
    help="Look at what is known about upstream, and read it again.",
    epilog="Example: envbuild facts show torch 2.7.1, or envbuild facts refresh",
)


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    facts.callback(invoke_without_command=True)(_facts)
    facts.command("list", epilog="Example: envbuild facts list --json")(facts_list)
    facts.command("show", epilog="Example: envbuild facts show deepspeed cuda13")(facts_show)
    facts.command("refresh", epilog="Example: envbuild facts refresh torch nccl   (then again with --write)")(
        facts_refresh
    )
    app.add_typer(facts, name="facts")


def topics(incomplete: str) -> list[str]:
    """What can be refreshed, for shell completion."""
    return [name for name in ("torch", "deepspeed", "nccl", "toolkits") if name.startswith(incomplete)]


def _facts(context: typer.Context, project: opt.ProjectOption = None, json: opt.JsonOption = False) -> None:
    if context.invoked_subcommand is None:
        facts_list(project, json)


def facts_list(project: opt.ProjectOption = None, json: opt.JsonOption = False) -> None:
    """List the files of facts that count here: where each comes from, how old it is, how far it was checked."""
    import datetime

    from envbuild.facts.known import overview

    bench = opt.workbench(project)
    files = overview(bench.project.facts)
    today = datetime.date.today()
    if json:
        output.document("facts", facts=[_file_dict(file, bench.project, today) for file in files])
        return
    output.table(
        ("FILE", "FROM", "FACTS", "VERIFIED", "PARTIAL", "UNVERIFIED", "OLDEST", "NEWEST"),
        [
            (
                file.name,
                _origin(file, bench.project),
                str(len(file.entries)),
                *(str(file.marked(mark)) for mark in ("verified", "partial", "unverified")),
                str(min(file.dates, default="-")),
                str(max(file.dates, default="-")),
            )
            for file in files
        ],
    )
    _hints(files, today)


def facts_show(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[WORD]...", help="A file, a key, a version: torch 2.7.1, or deepspeed cuda13."),
    ] = None,
    project: opt.ProjectOption = None,
    json: opt.JsonOption = False,
) -> None:
    """Show facts with their mark, source and date; without words, list the files."""
    if not words:
        facts_list(project, json)
        return
    from envbuild.facts.known import look_up

    found = look_up(opt.workbench(project).project.facts, words)
    if json:
        output.document("facts", facts=[_entry_dict(entry) for entry in found])
        return
    output.table(
        ("FACT", "SAYS", "MARK", "DATE", "SOURCE"),
        [
            (
                f"{entry.file}: {entry.name}",
                _brief(", ".join(f"{key} {value}" for key, value in entry.values.items())),
                entry.mark,
                str(entry.date or "-"),
                entry.source + (f" ({entry.note})" if entry.note else ""),
            )
            for entry in found
        ],
    )


def facts_refresh(
    wanted: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TOPIC]...", help="torch, deepspeed, nccl, toolkits; all without one.", autocompletion=topics
        ),
    ] = None,
    write: Annotated[
        bool, typer.Option("--write", "-y", help="Write the changes; without it they are only shown.")
    ] = False,
    dry_run: opt.DryRunOption = False,
    download: Annotated[
        bool,
        typer.Option(
            "--download",
            help="Also what needs much data: whole wheels where a server sends no parts, and NCCL inside torch.",
        ),
    ] = False,
    project: opt.ProjectOption = None,
    json: opt.JsonOption = False,
    verbose: opt.VerboseOption = False,
    quiet: opt.QuietOption = False,
) -> None:
    """Read upstream's own metadata and show, as a diff, which facts change.

    From the package indexes that pip uses here, in small pieces. Facts that were not read stay as they are, byte for
    byte, and are named. Nothing is written without --write. Exit code 3: an index does not answer, or something there
    has changed its shape.
    """
    import datetime

    from envbuild.errors import InputError
    from envbuild.facts.refresh import TOPICS
    from envbuild.facts.refresh import refresh as run_refresh
    from envbuild.facts.refresh import write as run_write
    from envbuild.facts.upstream import Upstream

    if write and dry_run:
        raise InputError("--write and --dry-run contradict one another", hint="without --write nothing is written")
    with opt.narrated(project, None, verbose=verbose, quiet=quiet) as bench:
        upstream = Upstream(bench.pip, bench.cache / "upstream", sink=bench.sink, whole=download)
        outcome = run_refresh(
            upstream, bench.project.facts, wanted or TOPICS, datetime.date.today(), deep=download, sink=bench.sink
        )
        paths = run_write(outcome, _target(bench.project)) if write else ()
    if json:
        output.document("facts-refresh", **_outcome_dict(outcome), written=[str(path) for path in paths])
    else:
        _print(outcome, paths, wrote=write)
    if outcome.failed:
        raise typer.Exit(3)


def _target(project: Project) -> Path:
    """The project's own facts, where it may be written; else the user's."""
    from envbuild.project import stored_facts

    return project.root / "facts" if project.writable else stored_facts()


def _print(outcome: Outcome, paths: tuple[Path, ...], *, wrote: bool) -> None:
    for file in outcome.files:
        output.result(file.diff)
    if outcome.changes:
        output.text()
        output.table(
            ("FACT", "WHAT", "WAS", "IS", "SOURCE"),
            [
                (
                    f"{change.file}: {change.fact}.{change.key}",
                    change.kind,
                    _brief(change.old or "-"),
                    _brief(change.new),
                    change.source,
                )
                for change in outcome.changes
                if change.kind != "renewed"
            ],
        )
        output.text()
    for remark in outcome.remarks:
        output.text(f"for a person: {remark.subject}: {remark.message}")
    for each in outcome.unread:
        word = output.paint("not read", "31" if each.failed else "33")
        output.text(f"{word}: {each.subject}: {each.reason}" + (f" ({each.hint})" if each.hint else ""))
    kinds = {kind: sum(change.kind == kind for change in outcome.changes) for kind in _KINDS}
    said = ", ".join(f"{count} {kind}" for kind, count in kinds.items() if count)
    output.text(f"{outcome.confirmed} facts confirmed; {said or 'nothing changes'}")
    for path in paths:
        output.text(f"written: {path}")
    if outcome.files and not wrote:
        output.narrate("nothing was written; to write it: envbuild facts refresh --write")


_KINDS = ("added", "changed", "proven", "renewed")


def _hints(files: tuple[FactsFile, ...], today: Any) -> None:
    for file in files:
        if file.newer is not None:
            output.narrate(f"note: {file.path} hides newer facts in {file.newer}")
    stale = sum(file.stale(today) for file in files)
    if stale:
        output.narrate(f"note: {stale} facts are older than six months; read upstream again: envbuild facts refresh")


def _origin(file: FactsFile, project: Project) -> str:
    from envbuild.project import own_root, stored_facts

    names = {own_root() / "facts": "envbuild", stored_facts(): "refreshed", project.root / "facts": "project"}
    folder = file.path.parent
    # In envbuild's own repository the project's facts are the ones that it comes with.
    return "envbuild" if folder == own_root() / "facts" else names.get(folder, str(folder))


def _brief(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:57]}..."


def _file_dict(file: FactsFile, project: Project, today: Any) -> dict[str, Any]:
    return {
        "file": file.name,
        "path": str(file.path),
        "from": _origin(file, project),
        "facts": len(file.entries),
        "marks": {mark: file.marked(mark) for mark in ("verified", "partial", "unverified")},
        "oldest": str(min(file.dates)) if file.dates else None,
        "newest": str(max(file.dates)) if file.dates else None,
        "stale": file.stale(today),
        "hides": str(file.newer) if file.newer else None,
    }


def _entry_dict(entry: Entry) -> dict[str, Any]:
    return {
        "file": entry.file,
        "fact": entry.name,
        "values": dict(entry.values),
        "mark": entry.mark,
        "source": entry.source,
        "date": str(entry.date) if entry.date else None,
        "note": entry.note,
    }


def _outcome_dict(outcome: Outcome) -> dict[str, Any]:
    import dataclasses

    return {
        "changes": [dataclasses.asdict(change) | {"date": str(change.date)} for change in outcome.changes],
        "confirmed": outcome.confirmed,
        "unread": [dataclasses.asdict(each) for each in outcome.unread],
        "remarks": [dataclasses.asdict(each) for each in outcome.remarks],
        "files": [{"name": file.name, "path": str(file.path), "diff": file.diff} for file in outcome.files],
    }
