"""What follows from measurements: compare, baseline."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from envbuild.cli import cluster, launching, modes, output, sending
from envbuild.cli import options as opt

if TYPE_CHECKING:
    from envbuild.profile.baselines import Stored
    from envbuild.profile.document import Measurement

baseline = typer.Typer(
    no_args_is_help=True,
    help="Keep measurements that later ones are compared with: files of the project, for git.",
    epilog='Example: envbuild baseline add M.json --reason "first of torch 2.13", then envbuild compare NAME M2.json',
)

MeasurementArgument = Annotated[
    Path, typer.Argument(metavar="M.json", help="A measurement: what envbuild profile --json prints.")
]
FolderOption = Annotated[
    Path | None, typer.Option("--baselines", metavar="DIR", help="Their folder; baselines/ of the project without it.")
]
ReasonOption = Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why this one counts from now on.")]


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    app.command(
        "compare",
        epilog="Example: envbuild compare before.json after.json · envbuild compare cpu team/train:2 · "
        "envbuild compare h100-cu121 h100-cu124 --executor slurm",
    )(compare)
    baseline.command("add", epilog='Example: envbuild baseline add M.json --reason "first of torch 2.13"')(add)
    baseline.command("show", epilog="Example: envbuild baseline show cpu-tiny --json")(show)
    baseline.command("promote", epilog='Example: envbuild baseline promote M.json --reason "faster all-gather"')(
        promote
    )
    app.add_typer(baseline, name="baseline")


def aspects(incomplete: str) -> list[str]:
    """In what two measurements may differ, for shell completion."""
    from envbuild.profile.keys import ASPECTS

    return [name for name in ASPECTS if name.startswith(incomplete)]


def names(ctx: typer.Context, incomplete: str) -> list[str]:
    """Baselines of the project, for shell completion."""
    from envbuild.profile import baselines

    def known(bench: object) -> list[str]:
        return [each.baseline.name for each in baselines.every(folder_of(None, ctx.params.get("project"))).stored]

    return opt.completed(ctx, incomplete, known)


def compare(
    ctx: typer.Context,
    base: Annotated[
        str,
        typer.Argument(metavar="BASE", help="A measurement, a baseline's name, or an image.", autocompletion=names),
    ],
    candidate: Annotated[
        str, typer.Argument(metavar="CANDIDATE", help="What is judged: a measurement, or an image.")
    ],
    delta: Annotated[str, typer.Option("--delta", metavar="SHARE", help="The change that matters: 5% or 0.05.")] = "5%",
    differs: Annotated[
        list[str] | None,
        typer.Option(
            "--differs", metavar="WHAT", autocompletion=aspects,
            help="In what else than the image they may differ: config, model, probe, hardware, world, accelerator.",
        ),
    ] = None,
    structural: Annotated[
        bool, typer.Option("--structural", help="Only exact figures and losses, no times: for CI.")
    ] = False,
    folder: FolderOption = None,
    project: opt.ProjectOption = None,
    rounds: launching.RoundsOption = 10,
    model: launching.ModelOption = "tiny",
    ds_config: launching.ConfigOption = None,
    settings: launching.SettingsOption = None,
    candidate_settings: launching.CandidateSettingsOption = None,
    steps: launching.StepsOption = 40,
    warmup: launching.WarmupOption = 5,
    seq: launching.LengthOption = None,
    ranks: launching.RanksOption = None,
    threads: launching.ThreadsOption = None,
    env: launching.VariablesOption = None,
    timeout: launching.LimitOption = 1800,
    fresh: launching.FreshOption = False,
    executor: opt.ExecutorOption = None,
    detach: opt.DetachOption = False,
    host: opt.HostOption = None,
    engine: opt.EngineOption = None,
    dry_run: opt.DryRunOption = False,
    json: opt.JsonOption = False,
) -> None:  # fmt: skip
    """Tell whether one measurement is worse than another: exact figures, losses of the same seed, and step times.

    Exact figures (collectives and their bytes, host memory per parameter, a checkpoint's bytes, parity, devices) are
    the same on every machine, so every difference counts. Step times are judged by launches that were made in turns, by
    the ranks of their ratios; where the noise would hide the change that was asked for, the answer is `inconclusive`.
    Images are launched first, in turns; a session that was killed goes on where it was when the same is said again.
    With --executor slurm all launches are made by one job on one node, whose engine has to have both images.

    Exit codes: 0 same or faster, 1 regressed, 2 incomparable, 5 inconclusive.
    """
    from envbuild.cli import comparison
    from envbuild.profile import comparing

    asked = comparing.Asked(
        delta=comparison.share(delta), differs=comparison.aspects(differs or []), times=not structural
    )
    if launching.are_images(candidate):
        wanted = launching.wishes(
            candidate_settings=candidate_settings, settings=settings, ds_config=ds_config, model=model, steps=steps,
            warmup=warmup, length=seq, ranks=ranks, threads=threads, env=env, timeout=timeout,
            declared="config" in asked.differs,
        )  # fmt: skip
        bench = opt.workbench_with(project, host, {"engine.kind": engine, "executor.kind": executor})
        if cluster.on_cluster(bench, detach=detach):
            modes.hold(ctx, "slurm")
            how = cluster.How(json=json, dry_run=dry_run, detach=detach)
            sending.compare(bench, ctx, base, candidate, wanted, how)
            return
        modes.hold(ctx, "images")
        sides = launching.launched(
            base, candidate, wanted, project=project, host=host, engine=engine, rounds=rounds, fresh=fresh,
            dry_run=dry_run, json=json,
        )  # fmt: skip
    else:
        modes.hold(ctx, "files")
        sides = named(base, folder, project), measured(Path(candidate))
    if sides is None:
        return
    found = comparing.compare(*sides, asked)
    output.document("compare", comparison=comparison.as_dict(found, asked)) if json else comparison.show(found, *sides)
    if launching.are_images(candidate):
        launching.told(*sides)
    raise typer.Exit(comparison.EXIT_CODES[found.verdict])


def add(
    measurement: MeasurementArgument,
    reason: ReasonOption,
    folder: FolderOption = None,
    project: opt.ProjectOption = None,
    dry_run: opt.DryRunOption = False,
    json: opt.JsonOption = False,
) -> None:
    """Make a measurement the first baseline of its key: row, ds_config, model, hardware, ranks."""
    _keep(measurement, reason, folder_of(folder, project), first=True, dry_run=dry_run, json=json)


def promote(
    measurement: MeasurementArgument,
    reason: ReasonOption,
    folder: FolderOption = None,
    project: opt.ProjectOption = None,
    dry_run: opt.DryRunOption = False,
    json: opt.JsonOption = False,
) -> None:
    """Put a measurement in the place of the baseline of its key; what was before stays in the history.

    So it goes on behind an update of envbuild, too: another probe has measured it than the one before.
    """
    _keep(measurement, reason, folder_of(folder, project), first=False, dry_run=dry_run, json=json)


def show(
    name: Annotated[
        str | None,
        typer.Argument(metavar="[NAME]", help="One of them, or the start of its name.", autocompletion=names),
    ] = None,
    folder: FolderOption = None,
    project: opt.ProjectOption = None,
    json: opt.JsonOption = False,
) -> None:
    """Show the baselines, or one of them with its history."""
    from envbuild.cli import comparison
    from envbuild.profile import baselines

    place = folder_of(folder, project)
    shelf = baselines.every(place) if name is None else baselines.Shelf(stored=(baselines.find(place, name),))
    found = shelf.stored
    for each in shelf.broken:
        output.narrate(f"warning: {each.error.message}")
    if json:
        output.document("baseline", baselines=[_as_dict(each) for each in found])
        return
    if name is not None:
        comparison.show_baseline(found[0])
        return
    output.table(
        ("NAME", "STEP", "PROMOTED", "TIMES", "REASON"),
        [
            (
                each.baseline.name, comparison.step_of(each.baseline.measurement),
                str(each.baseline.history[-1].at.date()), str(len(each.baseline.history)),
                each.baseline.history[-1].reason,
            )
            for each in found
        ],
    )  # fmt: skip
    if not found:
        output.narrate(f"no baselines in {place}; the first one: envbuild baseline add M.json --reason TEXT")


def _keep(file: Path, reason: str, place: Path, *, first: bool, dry_run: bool, json: bool) -> None:
    from envbuild.errors import InputError
    from envbuild.profile import baselines

    found = measured(file)
    with contextlib.nullcontext() if dry_run else baselines.changing(place):
        known = baselines.fitting(place, found.key)
        if first and known is not None:
            raise InputError(
                f"there is a baseline of this key: {known.path}",
                hint=f"envbuild baseline promote {file} --reason TEXT replaces it and keeps its history.",
            )
        if not first and known is None:
            raise InputError(
                f"there is no baseline of this key yet in {place}",
                hint=f"The first one: envbuild baseline add {file} --reason TEXT",
            )
        _write(place, known, found, reason, dry_run=dry_run, json=json)


def _write(place: Path, known: Stored | None, found: Measurement, reason: str, *, dry_run: bool, json: bool) -> None:
    import datetime

    from envbuild.profile import baselines

    made = baselines.promoted(
        known.baseline if known else None, found, reason=reason, now=datetime.datetime.now(datetime.timezone.utc)
    )
    path = known.path if known else place / f"{made.name}.json"
    if dry_run:
        plan = {
            "write": str(path),
            "reason": made.history[-1].reason,
            "replaces": known.baseline.name if known else None,
        }
        output.document("baseline", plan=plan) if json else output.plan(plan)
        return
    baselines.write(place, made, over=path)
    if json:
        output.document("baseline", baselines=[{"name": made.name, "file": str(path)}])
    else:
        output.text(str(path))
        output.narrate("commit it: a baseline counts for those who have the file")


def _as_dict(each: Stored) -> dict[str, object]:
    from envbuild.profile import baselines

    return {"file": str(each.path), **baselines.as_dict(each.baseline)}


def folder_of(folder: Path | None, project: Path | None) -> Path:
    """Where baselines lie: what was said, or the project's; beside the current folder's work where there is none."""
    if folder is not None:
        return folder
    from envbuild.pipeline.performance import folder_of as of_project

    return of_project(opt.workbench(project))


def measured(path: Path) -> Measurement:
    """The measurement in a file."""
    from envbuild.profile import files

    return files.read(path)


def named(name: str, folder: Path | None, project: Path | None) -> Measurement:
    """A measurement by its file, or by the name of a baseline; a baseline's own file is one, too."""
    from envbuild.profile import baselines

    path = Path(name)
    place = folder_of(folder, project)
    if path.suffix != ".json" and not path.exists():
        return baselines.find(place, name).baseline.measurement
    if path.resolve().parent == place.resolve():
        return baselines.read(path).baseline.measurement
    return measured(path)
