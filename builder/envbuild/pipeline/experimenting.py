"""The experiments that findings propose: the present configuration and the changed one, launched in turns."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from envbuild import evidence, store
from envbuild.errors import GateError, InputError
from envbuild.events import Note
from envbuild.pipeline import profiling, sessions
from envbuild.pipeline.gpus import HostGpus
from envbuild.pipeline.gpus import read as read_gpus
from envbuild.pipeline.host import cpu_name
from envbuild.pipeline.profile_made import hidden, made_of, wish_of
from envbuild.pipeline.profile_wish import Wish
from envbuild.pipeline.sessions import Session, Side
from envbuild.pipeline.workbench import Workbench
from envbuild.profile import experiments, files
from envbuild.profile.again import stand_in
from envbuild.profile.document import Measurement
from envbuild.profile.experiments import Answer, Change, Experiment, Left
from envbuild.profile.view import Found

Measure = Callable[[Workbench, profiling.Subject, Wish], Measurement]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """An experiment, and the session of launches that answers it."""

    experiment: Experiment
    session: Session

    @property
    def files(self) -> tuple[Path, Path]:
        """Where both sides' measurements are written."""
        return self.session.folder / "base.json", self.session.folder / "candidate.json"


def trials(
    bench: Workbench, measured: Measurement, found: Sequence[Found], target: str | None, rounds: int, *, fresh: bool
) -> tuple[tuple[Trial, ...], tuple[Left, ...]]:
    """What is to be run, and what is left to the user.

    Args:
        target: The image that the user named; without it the one that was measured.
        fresh: Measure anew, where there are launches already.

    Raises:
        InputError: The measurement does not say what it was made with, and no image was named.
        GateError: There is no such image, or it cannot be measured here (exit 5).
    """
    if not any(one.proposals for one in found):
        return (), ()
    obstacle = _obstacle(bench, measured, target)
    if obstacle is not None:
        return (), experiments.choose(measured, found, None, obstacle=obstacle)[1]
    made = measured.origin.made
    if made is None and target is None:
        raise InputError(
            "the measurement does not say which image and which options it was made with",
            hint="Name what is to be trained: --target IMAGE. Or measure again: envbuild profile IMAGE -o M.json",
        )
    wish = dataclasses.replace(_wish(measured), passes=("timing",))
    base = profiling.subject(bench, target or (made.image if made else None) or "", None, wish)
    _told(bench, measured, base, target)
    present = made or made_of(wish, base.config.values, image=base.ref)
    chosen, left = experiments.choose(measured, found, present)
    ready: list[Trial] = []
    for each in chosen:
        changed = _changed(wish, each.change)
        try:
            other = profiling.subject(bench, base.ref, base.env.name, changed)
        except InputError as error:
            change = ", ".join(f"{one.name} {one.base} -> {one.candidate}" for one in each.changed)
            left = (*left, Left(rule=each.rule, command=each.command, change=change, reason=error.message))
            continue
        sides = Side(subject=base, wish=wish), Side(subject=other, wish=changed)
        ready.append(Trial(experiment=each, session=_session(sides, rounds, fresh=fresh)))
    return tuple(ready), left


def run(bench: Workbench, trial: Trial, measure: Measure = profiling.profile_image) -> Answer:
    """Launch what is left of it, write both measurements, and judge.

    A training that fails is an answer, too: ``failed``, with its last words.

    Raises:
        EngineError: The engine or the disk failed.
    """
    try:
        sides = sessions.launch(bench, trial.session, measure)
    except GateError as error:
        return Answer(verdict="failed", reason=error.message)
    for path, side in zip(trial.files, sides, strict=True):
        store.write_json(path, files.document(side))
    sessions.finish(trial.session.name)
    return experiments.answer(trial.experiment, *sides)


def seconds(measured: Measurement, ready: Sequence[Trial]) -> float | None:
    """What the launches that are left take at least; None where the measurement does not tell."""
    each = experiments.launch_seconds(measured)
    return each * sum(len(trial.session.left()) for trial in ready) if each is not None else None


def foreseen(bench: Workbench, trial: Trial) -> list[tuple[str, ...]]:
    """The command line of each launch that is left, in order."""
    found = []
    for position in trial.session.left():
        side = trial.session.sides[sessions.side_of(position)]
        found.append(profiling.foreseen(bench, side.subject, sessions.passes(side.wish, position)))
    return found


def _obstacle(bench: Workbench, measured: Measurement, target: str | None) -> str | None:
    """Why nothing of it can be run here; a target that was named is the user's own word for "here"."""
    key, made = measured.key, measured.origin.made
    if (key.nodes or 1) > 1:
        return f"it was measured on {key.nodes} nodes"
    if key.accelerator == "cuda" and bench.engine.local and not isinstance(read_gpus(), HostGpus):
        return "it was measured on GPUs, and here is none"
    if made is not None and (lacking := hidden(made)):
        return f"it was measured with {', '.join(lacking)}, and values of such variables are kept nowhere"
    if target is not None:
        return None
    if measured.origin.kind == "command":
        return "it is a training of your own: make the change in it, and measure it again (or name --target IMAGE)"
    if made is not None and made.image is None:
        return f"it was measured under {made.python}, in no image (or name --target IMAGE)"
    if made is not None and bench.engine.local and key.hardware.cpu not in (None, cpu_name()):
        return f"it was measured on another host ({key.hardware.cpu}); --target IMAGE runs it here all the same"
    return None


def _wish(measured: Measurement) -> Wish:
    """The present configuration; of what envbuild cannot start, a model of our own that stands in for it."""
    return wish_of(measured.origin.made or stand_in(measured))


def _told(bench: Workbench, measured: Measurement, base: profiling.Subject, target: str | None) -> None:
    if measured.origin.made is None:
        bench.sink(Note(message=f"what runs is the model tiny in {base.ref}, not the training that was measured"))
    digest = evidence.digest_of(base.info.id) or base.info.id
    if target is None and measured.key.image not in (None, digest):
        bench.sink(Note(message=f"{base.ref} is another image now than the one that was measured"))


def _changed(wish: Wish, change: Change) -> Wish:
    return dataclasses.replace(
        wish,
        settings=(*wish.settings, *change.settings),
        env=(*wish.env, *change.env),
        slow_data=(0.0, None) if change.data is not None else wish.slow_data,
        threads=change.threads or wish.threads,
        checkpoint_every=change.checkpoint_every or wish.checkpoint_every,
    )


def _session(sides: tuple[Side, Side], rounds: int, *, fresh: bool) -> Session:
    """The session that goes on; the last one that is complete, where nothing new is wanted."""
    new = sessions.session_of(*sides, rounds, fresh=fresh)
    stem, _, number = new.name.rpartition("-")
    if fresh or new.folder.is_dir() or number == "0":
        return new
    name = f"{stem}-{int(number) - 1}"
    return dataclasses.replace(new, name=name, folder=new.folder.with_name(name))
