"""Questions to the matrix: why-not, diff."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from envbuild.cli import options as opt
from envbuild.cli import output

if TYPE_CHECKING:
    from envbuild.pipeline.asking import Answered
    from envbuild.pipeline.differences import FieldChange
    from envbuild.pipeline.diffing import RowChange
    from envbuild.pipeline.records import Record

_FACTS_SHOWN = 12
_PACKAGES_SHOWN = 12


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    app.command("why-not", epilog="Example: envbuild why-not --gpu v100 --cuda 13.0 --torch 2.12")(why_not)
    app.command("diff", epilog="Example: envbuild diff HEAD~1            (or: envbuild diff old/matrix.yaml new/)")(
        diff
    )


def why_not(
    env: Annotated[
        str | None,
        typer.Argument(metavar="[ENV]", help="A row to start from; the options change it.", autocompletion=opt.rows),
    ] = None,
    gpu: Annotated[
        list[str] | None,
        typer.Option("--gpu", metavar="GPU", help="Such as v100; several by comma.", autocompletion=opt.gpu_names),
    ] = None,
    cuda: Annotated[
        str | None, typer.Option("--cuda", metavar="X.Y", help="Toolkit.", autocompletion=opt.cuda_versions)
    ] = None,
    torch: Annotated[
        str | None,
        typer.Option("--torch", metavar="X.Y[.Z][+BUILD]", help="Or a series.", autocompletion=opt.torch_versions),
    ] = None,
    deepspeed: Annotated[
        str | None,
        typer.Option("--deepspeed", metavar="X.Y[.Z]", help="Or a series.", autocompletion=opt.deepspeed_versions),
    ] = None,
    gcc: Annotated[str | None, typer.Option("--gcc", metavar="X[.Y]", help="Host compiler.")] = None,
    python: Annotated[str | None, typer.Option("--python", metavar="X.Y", help="Interpreter.")] = None,
    nccl: Annotated[str | None, typer.Option("--nccl", metavar="X.Y.Z", help="Its exact version.")] = None,
    base: Annotated[
        str | None,
        typer.Option("--base", metavar="RELEASE", help="Such as jammy.", autocompletion=opt.release_names),
    ] = None,
    family: Annotated[
        str | None,
        typer.Option("--family", metavar="FAMILY", help="Such as ubuntu.", autocompletion=opt.family_names),
    ] = None,
    glibc: Annotated[str | None, typer.Option("--glibc", metavar="X.Y", help="C library of the base.")] = None,
    driver: Annotated[str | None, typer.Option("--driver", metavar="VERSION", help="Driver of the hosts.")] = None,
    accelerator: Annotated[
        str | None,
        typer.Option("--accelerator", metavar="cpu|cuda", help="cuda without it.", autocompletion=opt.accelerators),
    ] = None,
    keep: Annotated[
        list[str] | None,
        typer.Option(
            "--keep", metavar="FIELD", help="What cannot change, such as gpu; may be repeated.",
            autocompletion=opt.field_names,
        ),
    ] = None,
    most: Annotated[int, typer.Option("-n", "--number", min=1, max=50, help="How many alternatives.")] = 5,
    project: opt.ProjectOption = None,
    json: opt.JsonOption = False,
) -> None:  # fmt: skip
    """Say what is known against a combination, and which valid ones are nearest: fewest changed fields first.

    What is not said is free. A version may be a series: 2.12 is any 2.12.x that the facts know.

    Exit codes: 0 nothing is known against it, 1 a rule is broken or a value is unknown to the facts, 2 bad usage.
    """
    from envbuild.pipeline.asking import ask, document

    given = {
        "gpu": ",".join(gpu) if gpu is not None else None, "cuda": cuda, "torch": torch, "deepspeed": deepspeed,
        "gcc": gcc, "python": python, "base": base, "family": family, "glibc": glibc, "nccl": nccl, "driver": driver,
    }  # fmt: skip
    said = {name: value for name, value in given.items() if value is not None}
    kept = [field for each in keep or () for field in each.split(",") if field]
    asked = ask(opt.workbench(project), said, row=env, accelerator=accelerator, keep=kept)
    if json:
        output.document("why-not", **document(asked, most))
    else:
        _print_answer(asked, most, kept)
    if not asked.answer.valid:
        raise typer.Exit(1)


def _print_answer(asked: Answered, most: int, kept: list[str]) -> None:
    import dataclasses

    from envbuild.pipeline.asking import fields_of, mark_of

    answer = asked.answer
    values = fields_of(asked, answer.values, answer.row)
    asked_for = [name for name in values if name in asked.wants]
    free = [name for name in values if name not in asked.wants]
    output.paragraph("Asked: ", _told(values, asked_for))
    if free:
        output.paragraph("Free:  ", _told(values, free))
    build = answer.values["torch"][1]
    builds = asked.space.facts.versions.get(answer.values["torch"][0])
    if builds and "torch" in asked.wants and "+" not in asked.wants["torch"].text and len(builds.builds) == 1:
        output.paragraph("Note:  ", f"{build} is the only build of that torch that the facts know")
    output.text()
    output.findings(
        dataclasses.replace(each, source=f"{each.source} ({mark_of(each)})") if each.source else each
        for each in asked.findings
    )
    if asked.findings:
        output.text()
    if answer.valid:
        output.paragraph("", "Nothing is known against it." + _like(asked, answer.values, " It is "))
        return
    if not answer.alternatives:
        kept_too = f" and keeps {', '.join(kept)}" if kept else ""
        output.paragraph("", f"No valid combination changes {_most(asked)} of the fields or fewer{kept_too}.")
        return
    output.paragraph("", "Nearest combinations that nothing is known against:")
    for number, each in enumerate(answer.alternatives[:most], 1):
        changes = ", ".join(f"{change.field} {change.old} -> {change.new}" for change in each.changes)
        output.paragraph(f"{number:>2}. ", output.paint(changes, "1"))
        told = fields_of(asked, each.values, each.row)
        output.paragraph("    ", _told(told, list(told)))
        like = _like(asked, each.values, "")
        if like:
            output.paragraph("    ", like)


def _most(asked: Answered) -> int:
    from envbuild.matrix.nearest import MOST_CHANGES

    return min(MOST_CHANGES, len(asked.wants))


_WORDS = {"gpu": "GPU", "cuda": "CUDA", "deepspeed": "DeepSpeed", "gcc": "GCC", "python": "Python", "nccl": "NCCL"}


def _told(values: dict[str, str], names: list[str]) -> str:
    return ", ".join(f"{_WORDS.get(name, name)} {values[name]}" for name in names)


def _like(asked: Answered, values: Any, before: str) -> str:
    from envbuild.pipeline.asking import like

    found = like(asked, values)
    if found is None:
        return ""
    if not found.differs:
        return f"{before or 'this is '}row {found.name}."
    differs = ", ".join(f"{_WORDS.get(field, field)} {value}" for field, value in found.differs.items())
    return f"{before and ' '}{'Close' if before else 'close'}: row {found.name} has {differs}."


def diff(
    old: Annotated[str, typer.Argument(metavar="OLD", help="A git revision, a project folder or a matrix file.")],
    new: Annotated[
        str | None, typer.Argument(metavar="[NEW]", help="The same; the project as it lies here without it.")
    ] = None,
    project: opt.ProjectOption = None,
    json: opt.JsonOption = False,
) -> None:
    """Compare two matrices: what changed, which images have to be built again and why, which evidence still counts.

    Each side brings its own rows, locks, templates and facts; this envbuild makes the targets of both.
    """
    from envbuild.pipeline import diffing
    from envbuild.pipeline.sides import side

    bench = opt.workbench(project)
    with side(bench, old) as before, side(bench, new, strict=True) as after:
        rows = diffing.compare(before, after)
        files, facts = diffing.changed_files(before, after), diffing.changed_facts(before, after)
        notes = [*before.notes, *after.notes]
        if json:
            output.document(
                "diff", old=before.label, new=after.label, changes=[diffing.as_dict(row) for row in rows],
                files=[{"path": path, "status": status} for path, status in files],
                facts=[{"path": each.path, "old": each.old, "new": each.new} for each in facts], notes=notes,
            )  # fmt: skip
            return
        for note in notes:
            output.narrate(f"note: {note}")
        _print_changes(rows, files, facts)


def _print_changes(
    rows: tuple[RowChange, ...], files: tuple[tuple[str, str], ...], facts: tuple[FieldChange, ...]
) -> None:
    quiet = [row for row in rows if row.status == "same" and row.effect == "nothing"]
    for row in rows:
        if row not in quiet:
            _print_row(row)
    for path, status in files:
        output.text(f"{path}: {status}")
    for each in facts[:_FACTS_SHOWN]:
        output.text(f"    {_change(each)}")
    if len(facts) > _FACTS_SHOWN:
        output.text(f"    and {len(facts) - _FACTS_SHOWN} more facts (--json has all)")
    if len(quiet) == len(rows) and not files:
        output.text("No difference.")
    elif quiet:
        output.text(f"As they were: {', '.join(row.name for row in quiet)}")


_EFFECTS = {
    "rebuild": "build again, because of", "prove": "the image stays; prove it again, because of",
    "nothing": "the image and its evidence stay",
}  # fmt: skip


def _print_row(row: RowChange) -> None:
    output.text(output.paint(f"{row.name}: {row.status if row.status != 'same' else 'the row is as it was'}", "1"))
    for each in row.fields:
        output.text(f"    {_change(each)}" + (f"   ({each.source})" if each.source else ""))
    for package in row.lock[:_PACKAGES_SHOWN]:
        same = package.old == package.new
        after = "other files" if same else package.new or "gone"
        output.text(f"    lock: {package.name} {package.old or '(new)'} -> {after}")
    if len(row.lock) > _PACKAGES_SHOWN:
        output.text(f"    lock: and {len(row.lock) - _PACKAGES_SHOWN} more packages (--json has all)")
    for word, finding in row.rules:
        output.text(f"    {word} {finding.severity.value} [{finding.rule}] {finding.message}")
    if row.status == "removed":
        return
    if row.status == "added":
        output.text("  -> to be built")
    else:
        output.text(f"  -> {_EFFECTS[row.effect]} {', '.join(row.causes)}".rstrip())
    if row.old_id and row.new_id and row.old_id != row.new_id:
        output.text(f"     target {row.old_id[:8]} -> {row.new_id[:8]}")
    for record in row.evidence:
        output.text(f"     {_evidence(record)}")
    for note in row.notes:
        output.text(f"     note: {note}")


def _evidence(record: Record) -> str:
    what = f"evidence {record.level.value} of {record.finished:%Y-%m-%d}"
    return f"{what} counts ({record.path})" if record.valid else f"{what} does not count: {'; '.join(record.against)}"


def _change(each: FieldChange) -> str:
    return f"{each.path}: {_value(each.old)} -> {_value(each.new)}"


def _value(value: Any) -> str:
    if value is None:
        return "(none)"
    if isinstance(value, list):
        return "[" + ", ".join(_value(item) for item in value) + "]"
    text = str(value)
    return text if len(text) <= 120 else f"{text[:117]}..."
