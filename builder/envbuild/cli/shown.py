"""What came of a run on a cluster, shown as the command that began it shows it, with who did each task."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from envbuild.cli import output

if TYPE_CHECKING:
    from envbuild.cli.cluster import How
    from envbuild.executors import Run
    from envbuild.pipeline.cluster import Result
    from envbuild.pipeline.many import Outcome

# What a cancelled task has left undone, by the command; a measurement has nothing to tag.
_UNDONE = {"build": ", and nothing was tagged", "smoke": ", and nothing was tagged"}


def show(run: Run, results: Sequence[Result], how: How) -> None:
    """Show the results of a run."""
    _SHOWN.get(run.command, documents)(run, results, how)


def _show_build(run: Run, results: Sequence[Result], how: How) -> None:
    from envbuild.cli import many

    many.show([_outcome(result) for result in results], json=how.json, **({"run": run.id} if how.json else {}))


def _outcome(result: Result) -> Outcome:
    from envbuild.pipeline.many import FAILED, INTERRUPTED_ROW, NOT_BEGUN, Outcome

    ending = result.ending
    images = result.document.get("images") or [{}]
    image = dict(images[0]) if ending.code == 0 else {}
    if ending.interrupted:
        status = INTERRUPTED_ROW if ending.attempt else NOT_BEGUN
    else:
        status = FAILED if ending.code else str(image.get("status", ""))
    return Outcome(
        row=result.name, status=status, exit_code=ending.code, seconds=ending.seconds, image=image,
        error=result.error, told=told(result), node=ending.node, job=ending.job,
    )  # fmt: skip


def told(result: Result) -> tuple[str, ...]:
    """What people read of a failure, line by line."""
    if result.told or not result.error:
        return result.told
    error = result.error
    return (f"error: {error['message']}", *((f"hint: {error['hint']}",) if error["hint"] else ()))


def documents(run: Run, results: Sequence[Result], how: How) -> None:
    """Each task's own document, with who did it; of several tasks all of them in one. In words a line for each."""
    for result in results:
        for line in told(result):
            output.narrate(line)
        if not how.json:
            ending = result.ending
            on = f" on {ending.node} (job {ending.job})" if ending.node else ""
            word = "failed" if ending.code else "done"
            word = f"was cancelled{_UNDONE.get(run.command, '')}" if ending.interrupted else word
            output.text(f"{result.name}{on}: {word}")
    if how.json and len(results) == 1:
        schema, body = document(results[0])
        output.document(schema.removeprefix("envbuild.").removesuffix("/1"), **body, run=run.id)
    elif how.json:
        tasks = [{"name": result.name, "exit_code": result.ending.code} for result in results]
        for task, (schema, body) in zip(tasks, map(document, results), strict=True):
            task |= {"schema": schema, **body}
        output.document(run.command, run=run.id, tasks=tasks)


def document(result: Result) -> tuple[str, dict[str, Any]]:
    """What a task says with ``--json``, its schema apart, and where it was done."""
    ending = result.ending
    where = {"node": ending.node or None, "job": ending.job}
    if ending.interrupted:
        return "envbuild.error/1", {"code": "interrupted", "message": "the job was cancelled", "hint": "", **where}
    if result.error:
        return "envbuild.error/1", {**result.error, **where}
    body = {name: value for name, value in result.document.items() if name != "schema"}
    return str(result.document.get("schema")), {**body, **where}


def _show_smoke(run: Run, results: Sequence[Result], how: How) -> None:
    from envbuild import evidence
    from envbuild.pipeline.report import lines

    apart = [result for result in results if result.ending.code or how.json]
    if apart:
        documents(run, apart, how)
    for result in results:
        if result in apart:
            continue
        said, ending = result.document, result.ending
        if "ranks" in said:
            from envbuild.pipeline.collective import summary

            output.text(f"{result.name}: {summary(said['ranks'])} (job {ending.job})")
            continue
        word = "has passed" if said.get("reused") else "passes"
        output.text(f"{said.get('image')} {word} at level {said.get('level')} on {ending.node} (job {ending.job})")
        for path in result.evidence if not how.quiet else ():
            if str(path) == said.get("evidence"):
                for line in lines(evidence.read(path), path):
                    output.text(line)


def _show_profile(run: Run, results: Sequence[Result], how: How) -> None:
    from envbuild.cli import profiling
    from envbuild.pipeline import brought
    from envbuild.pipeline.profiling import keep

    (result,) = results
    if result.ending.code:
        documents(run, results, how)
        return
    measured = brought.measurement(result)
    profiling.show(measured, keep(measured, result.name, run.out), as_json=how.json, quiet=how.quiet)
    if not how.quiet:
        output.narrate(f"measured on {result.ending.node} (job {result.ending.job})")


def _show_compare(run: Run, results: Sequence[Result], how: How) -> None:
    from envbuild.cli import comparison
    from envbuild.pipeline import brought

    (result,) = results
    found = brought.comparison(result)
    if found is None:
        documents(run, results, how)
        return
    base, candidate = sides = brought.sides(result)
    paths = [str(path) for path in brought.keep_sides(run.id, *sides)]
    if how.json:
        schema, body = document(result)
        output.document(schema.removeprefix("envbuild.").removesuffix("/1"), **body, run=run.id, measurements=paths)
        return
    comparison.show(found, base, candidate)
    if not how.quiet:
        output.narrate(f"launched in turns on {result.ending.node} (job {result.ending.job}); both: {' '.join(paths)}")


# How the results of a command are shown; one that is not named shows its tasks' own documents.
_SHOWN: dict[str, Callable[[Run, Sequence[Result], How], None]] = {
    "build": _show_build, "smoke": _show_smoke, "profile": _show_profile, "compare": _show_compare,
}  # fmt: skip
