"""bottleneck: what holds a training back, and the experiments that tell whether it is so."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from envbuild.cli import measures, modes, output
from envbuild.cli import options as opt

if TYPE_CHECKING:
    from pathlib import Path

    from envbuild.pipeline.experimenting import Trial
    from envbuild.profile.bottleneck import Diagnosis
    from envbuild.profile.document import Measurement
    from envbuild.profile.experiments import Answer, Left
    from envbuild.profile.keys import Difference

_EXAMPLE = "Example: envbuild bottleneck M.json --baseline before.json, then envbuild bottleneck M.json --experiment"
_COLOURS = {"confirmed": "32", "not it": "36", "inconclusive": "33", "failed": "31"}


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("bottleneck", epilog=_EXAMPLE)(bottleneck)


def rules(ctx: typer.Context, incomplete: str) -> list[str]:
    """The rules, for shell completion."""
    from envbuild.profile.bottleneck import RULES

    return [name for name in (*dict(RULES), "compute") if name.startswith(incomplete)]


def bottleneck(
    ctx: typer.Context,
    measurement: measures.MeasurementArgument,
    base: Annotated[
        str | None,
        typer.Option(
            "--baseline", "-b", metavar="BASE", autocompletion=measures.names,
            help="What it was like before: a measurement, or the name of a baseline.",
        ),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(
            "--target", metavar="IMAGE", autocompletion=opt.rows_and_images,
            help="What the proposed commands run; else what was measured.",
        ),
    ] = None,
    experiment: Annotated[
        bool,
        typer.Option("--experiment", help="Run the proposed experiments: now and changed, in turns; then judge."),
    ] = False,
    rounds: Annotated[
        int, typer.Option("--rounds", min=1, max=1000, help="Of two launches each; 5 is the fewest that decide.")
    ] = 5,
    only: Annotated[
        list[str] | None,
        typer.Option(
            "--only", metavar="RULE", autocompletion=rules, help="Only this finding's experiments; may be given again."
        ),
    ] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Launch everything again, where there are launches already.")
    ] = False,
    folder: measures.FolderOption = None,
    project: opt.ProjectOption = None,
    host: opt.HostOption = None,
    engine: opt.EngineOption = None,
    dry_run: opt.DryRunOption = False,
    json: opt.JsonOption = False,
) -> None:  # fmt: skip
    """Name what holds a training back, with evidence, confidence, and the next experiment as a command line.

    Rules that lack their figures abstain and say what is missing: no finding is not the same as a fast training.
    --experiment launches the present configuration and each changed one in turns, and tells which of them it was. A
    run that was ended goes on where it was when the same is said again.

    Exit codes: 0 done, whatever was found, 2 usage or a file that cannot be read, 3 engine or disk, 5 there is no such
    image, or a training failed.
    """
    from envbuild.cli import comparison
    from envbuild.profile.bottleneck import diagnose

    modes.hold(ctx, "experiments" if experiment else "reading")
    modes.need(ctx, "folder", "base")

    found = measures.measured(measurement)
    before = measures.named(base, folder, project) if base is not None else None
    diagnosis = diagnose(found, before, target=target)
    if experiment:
        _experiment(
            found, _only(diagnosis, only), target=target, rounds=rounds, fresh=fresh, dry_run=dry_run, json=json,
            where=(project, host, engine),
        )  # fmt: skip
        return
    if json:
        output.document("bottleneck", **comparison.diagnosis_dict(diagnosis))
    else:
        comparison.show_diagnosis(diagnosis, found)
    if target is not None and found.origin.made is None and any(one.commands for one in diagnosis.found):
        output.narrate(f"note: the commands train a model of envbuild's own in {target}, not what was measured")


def _only(diagnosis: Diagnosis, names: list[str] | None) -> Diagnosis:
    from envbuild.errors import InputError
    from envbuild.profile.bottleneck import RULES

    known = (*dict(RULES), "compute")
    for name in names or ():
        if name not in known:
            raise InputError(f"--only: there is no rule '{name}'", hint=f"One of {', '.join(known)}.")
        if not any(one.rule == name for one in diagnosis.found):
            raise InputError(
                f"--only {name}: that was not found",
                hint="What was found, and what was not: envbuild bottleneck M.json",
            )
    found = tuple(one for one in diagnosis.found if not names or one.rule in names)
    return dataclasses.replace(diagnosis, found=found)


def _experiment(
    measured: Measurement, diagnosis: Diagnosis, *, target: str | None, rounds: int, fresh: bool, dry_run: bool,
    json: bool, where: tuple[Path | None, str | None, str | None],
) -> None:  # fmt: skip
    from envbuild.cli import comparison
    from envbuild.cli.failure import Concluded
    from envbuild.errors import GATE
    from envbuild.pipeline import experimenting

    project, host, engine = where
    answers: list[tuple[Trial, Answer]] = []
    with opt.narrated(project, host, engine, verbose=False, quiet=False) as bench:
        ready, left = experimenting.trials(bench, measured, diagnosis.found, target, rounds, fresh=fresh)
        least = experimenting.seconds(measured, ready)
        if dry_run:
            lines = [(trial, experimenting.foreseen(bench, trial)) for trial in ready]
            _plan(lines, left, least, json=json)
            return
        launches = sum(len(trial.session.left()) for trial in ready)
        if launches:
            output.narrate(f"{len(ready)} experiment(s), {launches} launch(es) to make, {_time(least)}")
        for trial in ready:
            output.narrate(f"{trial.experiment.rule}: {_changes(trial.experiment.changed)}")
            found = experimenting.run(bench, trial)
            answers.append((trial, found))
            output.narrate(f"{trial.experiment.rule}: {found.verdict}: {found.reason}")
    if json:
        body = [_as_dict(trial) | _answer(trial, found) for trial, found in answers]
        output.document(
            "bottleneck", **comparison.diagnosis_dict(diagnosis), experiments=body,
            left=[dataclasses.asdict(each) for each in left],
        )  # fmt: skip
    else:
        _show(answers, left)
    if any(found.verdict == "failed" for _, found in answers):
        raise Concluded(GATE)


def _plan(
    lines: Sequence[tuple[Trial, list[tuple[str, ...]]]], left: Sequence[Left], least: float | None, *, json: bool
) -> None:
    if json:
        body = [_as_dict(trial) | {"argv": [list(each) for each in argv]} for trial, argv in lines]
        plan = {"experiments": body, "left": [dataclasses.asdict(each) for each in left], "seconds_at_least": least}
        output.document("bottleneck", plan=plan)
        return
    for trial, argv in lines:
        output.text(f"# {trial.experiment.rule}: {_changes(trial.experiment.changed)}")
        for each in argv:
            output.text(shlex.join(each))
    _show_left(left)
    output.narrate(f"{sum(len(argv) for _, argv in lines)} launch(es), {_time(least)}")


def _show(answers: Sequence[tuple[Trial, Answer]], left: Sequence[Left]) -> None:
    if not answers:
        output.text("No experiment was run.")
    for trial, found in answers:
        head = f"{output.paint(found.verdict, _COLOURS[found.verdict])}: "
        output.paragraph(head, f"{found.reason} [{trial.experiment.rule}]")
        for each in trial.experiment.changed:
            kind = "ds_config" if each.aspect == "config" else each.aspect
            output.text(f"  {kind} {each.name}: {each.base} -> {each.candidate}")
        for cost in found.costs:
            output.text(f"  worse: {cost}")
        if found.verdict != "failed":
            output.text(
                f"  {found.rounds} round(s); envbuild compare {shlex.join(map(str, trial.files))} --differs config"
            )
    _show_left(left)


def _show_left(left: Sequence[Left]) -> None:
    for each in left:
        output.paragraph(f"not run [{each.rule}]: ", each.reason)
        output.text(f"  {each.command or each.change}")


def _as_dict(trial: Trial) -> dict[str, Any]:
    one = trial.experiment
    return {
        "rule": one.rule, "command": one.command, "share": one.share, "session": trial.session.name,
        "changed": [dataclasses.asdict(each) for each in one.changed],
    }  # fmt: skip


def _answer(trial: Trial, found: Answer) -> dict[str, Any]:
    made = found.verdict != "failed"
    base, candidate = (str(path) if made else None for path in trial.files)
    return {**dataclasses.asdict(found), "base": base, "candidate": candidate}


def _changes(changed: Sequence[Difference]) -> str:
    return ", ".join(f"{each.name} {each.base} -> {each.candidate}" for each in changed)


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "of a length that the measurement does not tell"
    return f"at least {seconds:.0f} s" if seconds < 90 else f"at least {seconds / 60:.0f} minutes"
