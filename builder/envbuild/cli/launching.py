"""compare, where its sides are images: both are launched in turns first."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from envbuild.cli import lines, output, wishing
from envbuild.cli import options as opt
from envbuild.cli.profiling import models

if TYPE_CHECKING:
    from envbuild.pipeline.profile_wish import Wish
    from envbuild.profile.document import Measurement

RoundsOption = Annotated[
    int, typer.Option("--rounds", min=1, max=1000, help="With images: rounds of two launches; 10 decide.")
]
ModelOption = Annotated[
    str, typer.Option("--model", metavar="tiny|mini|small|base|large|1b|7b", autocompletion=models, help="With images.")
]
ConfigOption = Annotated[
    Path | None, typer.Option("--ds-config", metavar="FILE", help="With images: what both of them train with.")
]
SettingsOption = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="With images: of the ds_config, on both sides.")
]
CandidateSettingsOption = Annotated[
    list[str] | None,
    typer.Option("--candidate-set", metavar="KEY=VALUE", help="The candidate's alone; needs --differs config."),
]
StepsOption = Annotated[int, typer.Option("--steps", min=1, max=100000, help="With images: steps that count.")]
WarmupOption = Annotated[int, typer.Option("--warmup", min=0, max=100000, help="With images: steps before them.")]
LengthOption = Annotated[
    int | None, typer.Option("--seq", metavar="TOKENS", min=2, max=1 << 20, help="With images: length of a sequence.")
]
RanksOption = Annotated[
    int | None, typer.Option("--ranks", min=1, max=1024, help="With images: processes of each side.")
]
ThreadsOption = Annotated[
    int | None, typer.Option("--threads", min=1, max=1024, help="With images: OpenMP threads of each rank.")
]
VariablesOption = Annotated[
    list[str] | None, typer.Option("--env", metavar="NAME[=VALUE]", help="With images: a variable for all ranks.")
]
FreshOption = Annotated[
    bool, typer.Option("--fresh", help="With images: begin again, where a session was not finished.")
]
LimitOption = Annotated[
    float, typer.Option("--timeout", callback=opt.seconds, help="With images: limit of a launch, in seconds.")
]


def are_images(candidate: str) -> bool:
    """Whether what is judged is an image, and no file."""
    return not candidate.endswith(".json") and not Path(candidate).exists()


def wishes(
    *, candidate_settings: list[str] | None, settings: list[str] | None, ds_config: Path | None, env: list[str] | None,
    declared: bool, **wished: Any,
) -> tuple[Wish, Wish]:  # fmt: skip
    """What both sides train.

    Args:
        declared: Whether the ds_configs may differ.

    Raises:
        InputError: No such model or variable, a ds_config that cannot be read, or two of them undeclared.
    """
    from envbuild import store
    from envbuild.errors import InputError
    from envbuild.pipeline.profile_wish import MODELS, Wish

    if wished["model"] not in MODELS:
        raise InputError(f"--model: '{wished['model']}' is none", hint=f"Say one of {', '.join(MODELS)}.")
    if candidate_settings and not declared:
        raise InputError(
            "--candidate-set makes the ds_configs differ, and nothing says that they may",
            hint="Say --differs config, too.",
        )
    variables = wishing.variables(env)
    given = store.read_json(ds_config) if ds_config else None
    both = tuple(settings or ())
    base, candidate = (
        Wish(passes=("timing",), ds_config=given, settings=(*both, *more), env=variables, **wished)
        for more in ((), tuple(candidate_settings or ()))
    )
    return base, candidate


def launched(
    base: str, candidate: str, wanted: tuple[Wish, Wish], *, project: Path | None, host: str | None,
    engine: str | None, rounds: int, fresh: bool, dry_run: bool, json: bool,
) -> tuple[Measurement, Measurement] | None:  # fmt: skip
    """Both sides' measurements; None where only the plan was wanted, which is printed."""
    from envbuild.pipeline import profiling, sessions

    with opt.narrated(project, host, engine, verbose=False, quiet=False) as bench:
        sides = [
            sessions.Side(subject=profiling.subject(bench, reference, None, wish), wish=wish)
            for reference, wish in zip((base, candidate), wanted, strict=True)
        ]
        session = sessions.session_of(sides[0], sides[1], rounds, fresh=fresh)
        if dry_run:
            plan = [
                profiling.foreseen(bench, side.subject, sessions.passes(side.wish, position))
                for position in session.left()
                for side in (sides[sessions.side_of(position)],)
            ]
            _plan(plan, json=json)
            return None
        measured = sessions.launch(bench, session)
        if (folder := lines.own_folder()) is not None:
            from envbuild.pipeline import brought

            brought.leave(folder, *measured)
        output.narrate(f"launches: {session.folder}")
    return measured


def told(base: Measurement, candidate: Measurement) -> None:
    """What was launched was told: the same question is a new one. Killed before that, it is told again and not made."""
    from envbuild.pipeline import sessions

    for name in {each.turn.session for side in (base, candidate) for each in side.launches if each.turn is not None}:
        sessions.finish(name)


def _plan(argv: Sequence[tuple[str, ...]], *, json: bool) -> None:
    if json:
        output.document("compare", plan={"argv": [list(each) for each in argv]})
        return
    for each in argv:
        output.text(shlex.join(each))
