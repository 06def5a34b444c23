"""What made a program fail: diagnose."""

from __future__ import annotations

import sys
import textwrap
from typing import TYPE_CHECKING, Annotated

import typer

from envbuild.cli import options as opt
from envbuild.cli import output

if TYPE_CHECKING:
    from collections.abc import Sequence

    from envbuild.diagnose import Cause, Diagnosis, Evidence, Signature
    from envbuild.pipeline.workbench import Workbench

# Of a long line of a log.
_LINES_OF_ONE = 4
_ECHOES_SHOWN = 6


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command(
        "diagnose", epilog="Example: envbuild diagnose train.log            (or: ... 2>&1 | envbuild diagnose -)"
    )(diagnose)


def _kinds(ctx: typer.Context, incomplete: str) -> list[str]:
    """Kinds of failures, for shell completion."""
    from envbuild.diagnose import load

    return opt.completed(ctx, incomplete, lambda bench: load(bench.project.signatures).by_kind)


def diagnose(
    logs: Annotated[
        list[str] | None,
        typer.Argument(metavar="LOG...", help="Files (packed too), folders of per-rank logs, - for standard input."),
    ] = None,
    listed: Annotated[bool, typer.Option("--list", help="Print the kinds of failures that are known.")] = False,
    kind: Annotated[
        str | None,
        typer.Option("--kind", metavar="KIND", help="Explain one, without a log.", autocompletion=_kinds),
    ] = None,
    project: opt.ProjectOption = None,
    quiet: opt.QuietOption = False,
    json: opt.JsonOption = False,
) -> None:
    """Read failing logs and name the root cause, its evidence, what it explains away, and the fix.

    Any bytes are a log; gigabytes are read as a stream. Without a known failure it shows the lines that tell most.

    Exit codes: 0 no cause found, 1 a cause is found, 2 nothing could be read.
    """
    if listed or kind is not None:
        if logs:
            raise typer.BadParameter("--list and --kind take no log")
        _explain(kind, opt.workbench(project), json)
        return
    if not logs:
        raise typer.BadParameter("name a log, or - for standard input (envbuild diagnose LOG...)")
    from envbuild.diagnose import as_dict, evidence_dict
    from envbuild.diagnose import diagnose as read

    with opt.narrated(project, None, verbose=False, quiet=quiet or json) as bench:
        found = read(logs, bench.project, sink=bench.sink)
    for name, reason in found.unread:
        output.narrate(f"{'note' if 'were read' in reason else 'error'}: {_printable(name)}: {reason}")
    if json:
        output.document(
            "diagnose", causes=[as_dict(cause) for cause in found.causes],
            telling=[evidence_dict(each) for each in found.telling],
            unread=[{"file": name, "reason": reason} for name, reason in found.unread],
        )  # fmt: skip
    else:
        _print(found)
    if found.causes:
        raise typer.Exit(1)


def _print(found: Diagnosis) -> None:
    for number, cause in enumerate(found.causes):
        if number == 1:
            output.text()
            output.text(output.paint("Also found, less sure or later:", "1"))
        if number:
            output.text()
        _print_cause(cause)
    if found.causes:
        return
    output.text("No known failure is in there.")
    if found.telling:
        output.text("The lines that tell most:")
        _print_lines(found.telling)


def _print_cause(cause: Cause) -> None:
    unsure = "" if cause.certainty == "sure" else f" ({cause.certainty})"
    output.paragraph("", f"{output.paint(cause.kind, '1;31')}{unsure}: {cause.cause}")
    _print_lines(cause.evidence)
    more = cause.count - len({(each.file, each.line) for each in cause.evidence})
    if more > 0:
        output.text(f"    and {'another line' if more == 1 else f'about {more} more lines'} of the kind")
    if cause.explains:
        output.text("  explains:")
        for echo in cause.explains[:_ECHOES_SHOWN]:
            times = f" ({echo.count} times)" if echo.count > 1 else ""
            output.paragraph("    ", f"{_printable(echo.first.file)}:{echo.first.line}: {echo.title}{times}")
        if len(cause.explains) > _ECHOES_SHOWN:
            output.text(f"    and {len(cause.explains) - _ECHOES_SHOWN} more (--json has all)")
    output.text("  fix:")
    for number, step in enumerate(cause.fix, 1):
        output.paragraph(f"    {number}. ", step)
    if cause.command:
        output.text(f"  command: {cause.command}")
    if cause.doctor:
        output.text(f"  look closer: envbuild doctor --only {','.join(cause.doctor)}")
    if cause.rules:
        output.text(f"  rules: {', '.join(cause.rules)}")
    output.paragraph("  source: ", cause.source)


def narrate(causes: Sequence[Cause], *, said: str) -> None:
    """The causes of a failure of envbuild's own, behind its message: the first in full, of others their names.

    Args:
        said: What has been printed already; evidence that is in it is not shown again.
    """
    for cause in causes[:1]:
        head = output.paint("cause", "31", stream=sys.stderr)
        output.narrate(f"{head}: [{cause.kind}] {cause.cause}")
        for each in cause.evidence:
            if each.text.strip() not in said:
                output.narrate(f"    line {each.line}: {each.text}")
        for step in cause.fix:
            output.narrate(f"    fix: {step}")
        if cause.command:
            output.narrate(f"    command: {cause.command}")
        output.narrate(f"    source: {cause.source}")
    if causes[1:]:
        output.narrate(f"    also found: {', '.join(cause.kind for cause in causes[1:])}")


def _print_lines(lines: tuple[Evidence, ...]) -> None:
    for each in lines:
        place = f"    {_printable(each.file)}:{each.line}: "
        if len(place) + len(each.text) <= output.width():
            output.text(output.paint(place, "36") + each.text)
            continue
        # What was said is the point of it: it gets lines of its own.
        output.text(output.paint(place.rstrip(), "36"))
        for line in textwrap.wrap(each.text, output.width() - 8, max_lines=_LINES_OF_ONE, placeholder=" ..."):
            output.text(f"        {line}")


def _printable(name: str) -> str:
    """A file's name on a terminal, whatever is in it."""
    return "".join(letter if letter.isprintable() else "?" for letter in name)


def _explain(kind: str | None, bench: Workbench, as_json: bool) -> None:
    from envbuild.diagnose import load

    library = load(bench.project.signatures)
    causes = sorted((each for each in library.signatures if each.role == "cause"), key=lambda each: each.kind)
    if kind is None:
        if as_json:
            output.document("diagnose", kinds=[{"kind": each.kind, "title": each.title} for each in causes])
        else:
            output.wrapped(("KIND", "WHAT IT IS"), [(each.kind, each.title) for each in causes])
        return
    signature = library.by_kind.get(kind)
    if signature is None:
        import difflib

        from envbuild.errors import InputError

        near = difflib.get_close_matches(kind, library.by_kind, 3)
        hint = f"Did you mean {' or '.join(near)}?" if near else "envbuild diagnose --list prints all."
        raise InputError(f"--kind: there is no kind '{kind}'", hint=hint)
    if as_json:
        output.document("diagnose", kinds=[_as_dict(signature)])
        return
    output.paragraph("", f"{output.paint(signature.kind, '1')}: {signature.title}")
    output.text("  looks like:")
    for example in signature.examples.positive:
        for line in example.splitlines():
            output.paragraph("    ", line)
    if signature.answers:
        answer = signature.answers[-1]
        output.text("  fix:")
        for number, step in enumerate(answer.fix, 1):
            output.paragraph(f"    {number}. ", step)
    if signature.explains:
        output.paragraph("  explains: ", ", ".join(signature.explains))
    if signature.doctor:
        output.text(f"  look closer: envbuild doctor --only {','.join(signature.doctor)}")
    if signature.rules:
        output.text(f"  rules: {', '.join(signature.rules)}")
    output.paragraph("  source: ", signature.source)


def _as_dict(signature: Signature) -> dict[str, object]:
    return {
        "kind": signature.kind, "title": signature.title, "role": signature.role, "certainty": signature.certainty,
        "examples": list(signature.examples.positive), "explains": list(signature.explains),
        "answers": [
            {"cause": each.cause, "fix": list(each.fix), "command": each.command} for each in signature.answers
        ],
        "doctor": list(signature.doctor), "rules": list(signature.rules), "source": signature.source,
    }  # fmt: skip
