"""An image against the baselines of its row: launched in turns with their images, and what came of it written down.

Two measurements of different times decide nothing about times, so a baseline's file alone is not enough: its image is
launched, too. Both sides train what the baseline trained.
"""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Callable, Sequence

import envbuild
from envbuild import evidence, store
from envbuild.engines import ImageInfo
from envbuild.events import Note
from envbuild.evidence import Compared
from envbuild.model import Environment
from envbuild.pipeline import performance, profiling, sessions
from envbuild.pipeline.names import is_reference
from envbuild.pipeline.performance_told import Standing, Why, accepting, first, mending, refused, told
from envbuild.pipeline.profile_made import wish_of
from envbuild.pipeline.profile_wish import Wish
from envbuild.pipeline.turns import measuring
from envbuild.pipeline.workbench import Workbench
from envbuild.profile import baselines, comparing, files, keys
from envbuild.profile.baselines import Stored
from envbuild.profile.comparing import Comparison
from envbuild.profile.document import Key, Measurement
from envbuild.profile.keys import Difference

Measure = Callable[[Workbench, profiling.Subject, Wish], Measurement]
# What a launch has to have at least for its median to count; see docs/profile.md.
STEPS, WARMUP = 40, 5


def hold(
    bench: Workbench, env: Environment, info: ImageInfo, ref: str, *, again: str, force: bool = False,
    measure: Measure | None = None,
) -> tuple[Compared, ...]:  # fmt: skip
    """Hold an image to what its row requires of its speed: compare it with what it was not compared with yet.

    What was compared once is not launched again, whatever came of it: repeating until it passes would make any image
    pass.

    Args:
        again: What `envbuild smoke` and `envbuild promote` are to be told to go on with it.
        force: Compare again.
        measure: What launches.

    Returns:
        What counts for it, a comparison for each baseline; none where the row requires none.

    Raises:
        GateError: It is not as fast, or that cannot be decided here (exit 5); a training failed (exit 5).
        EngineError: The engine or the disk failed.
    """
    asked = env.performance
    if asked is None:
        return ()
    held = performance.known(bench, env.name, asked, info)
    why: list[Why] = []
    if held.standings and (force or not held.good):
        here, apart = _here(bench, env, info, held.standings)
        todo = [each for each in here if not each.own and (force or each.record is None)]
        if not here and not held.good:
            why.append((_elsewhere(env, apart), first(again)))
        elif todo:
            with measuring(bench):
                for each in todo:
                    why += _compare(bench, env, info, ref, each.stored, again, measure or profiling.profile_image)
            held = performance.known(bench, env.name, asked, info)
    if not held.good:
        raise refused(env, held.standings, performance.folder_of(bench), ref, again=again, why=why)
    performance.settle(bench, env, info, held.standings)
    held = performance.known(bench, env.name, asked, info)
    return tuple(each.record for each in held.standings if each.record is not None)


def _here(
    bench: Workbench, env: Environment, info: ImageInfo, standings: Sequence[Standing]
) -> tuple[list[Standing], list[tuple[Standing, list[Difference]]]]:
    """The baselines of this machine; and the others, with what is another there."""
    here, others = [], []
    for each in standings:
        measured = each.stored.baseline.measurement
        assert measured.origin.made is not None
        wish = wish_of(measured.origin.made)
        subject = profiling.subject(bench, info.id, env.name, dataclasses.replace(wish, ds_config=None, disk=None))
        assert subject.decision.device is not None
        key = Key(
            hardware=profiling.hardware_of(bench, subject, measured.key.hardware.label),
            accelerator=subject.decision.device.accelerator,
        )
        apart = [one for one in keys.differences(measured.key, key) if one.aspect in ("hardware", "accelerator")]
        if apart:
            others.append((each, apart))
        else:
            here.append(each)
    return here, others


def _elsewhere(env: Environment, others: Sequence[tuple[Standing, list[Difference]]]) -> str:
    each, apart = min(others, key=lambda pair: len(pair[1]))
    what = ", ".join(f"{one.name} {one.base}, here {one.candidate}" for one in apart)
    return f"no baseline of {env.name} is of this machine; {each.stored.baseline.name} is of another: {what}"


def _compare(
    bench: Workbench, env: Environment, info: ImageInfo, ref: str, stored: Stored, again: str, measure: Measure
) -> list[Why]:
    """Compare an image with one baseline and write down what came of it; why that is no pass."""
    asked, measured, name = env.performance, stored.baseline.measurement, stored.baseline.name
    made = measured.origin.made
    assert asked is not None and made is not None and made.image is not None
    wish = dataclasses.replace(_enough(wish_of(made)), passes=("timing",), label=measured.key.hardware.label)
    own = dataclasses.replace(profiling.subject(bench, info.id, env.name, wish), ref=ref)
    there, started = _image(bench, measured.key.image, made.image), datetime.datetime.now(datetime.timezone.utc)
    if there is None:
        bench.sink(Note(message=f"{made.image}, the image of {name}, is not on this engine: {ref} is launched alone"))
        alone = measure(bench, own, dataclasses.replace(wish, passes=("timing", "parity")))
        return _beside_the_file(bench, env, info, stored, alone, again, started)
    base = dataclasses.replace(profiling.subject(bench, there.id, env.name, wish), ref=made.image)
    pair = sessions.Side(subject=base, wish=wish), sessions.Side(subject=own, wish=wish)
    session = sessions.session_of(*pair, asked.rounds)
    written = evidence.compared(performance.digest_of(info))
    if not session.left() and any(each.session == session.name for each, _ in written):
        # Written down, and killed before that was noted: to compare again is to launch again.
        sessions.finish(session.name)
        session = sessions.session_of(*pair, asked.rounds)
    bench.sink(Note(message=f"comparing {ref} with {name}: {len(session.left())} launches, in turns with its image"))
    sides = sessions.launch(bench, session, measure)
    for called, side in zip(sessions.SIDES, sides, strict=True):
        store.write_json(session.folder / f"{called}.json", files.document(side))
    found = comparing.compare(*sides, comparing.Asked(delta=asked.share))
    record = _record(env, info, stored, found, _moved(stored, sides[0]), started)
    record = record.model_copy(update={"session": session.name})
    evidence.save_compared(record, key=bench.signing_key)
    sessions.finish(session.name)
    bench.sink(Note(message=told(record), level="info" if record.passed else "warning"))
    return [] if record.passed else [(told(record), mending(record, again))]


def _enough(wish: Wish) -> Wish:
    """The baseline's own training, with as many steps as a launch needs: whoever measured it may have taken fewer."""
    steps, warmup = max(STEPS, wish.steps), max(WARMUP, wish.warmup)
    longer = (steps + warmup) / (wish.steps + wish.warmup)
    return dataclasses.replace(wish, steps=steps, warmup=warmup, timeout=wish.timeout * longer)


def _beside_the_file(
    bench: Workbench, env: Environment, info: ImageInfo, stored: Stored, alone: Measurement, again: str,
    started: datetime.datetime,
) -> list[Why]:  # fmt: skip
    """What an image shows beside a baseline's file: worse exact figures are a regression, times decide nothing."""
    asked, name = env.performance, stored.baseline.name
    assert asked is not None
    path = store.home() / "measurements" / f"{env.name}-{started:%Y%m%dT%H%M%S}.json"
    store.write_json(path, files.document(alone))
    found = comparing.compare(stored.baseline.measurement, alone, comparing.Asked(delta=asked.share))
    if found.verdict == "regressed":
        record = _record(env, info, stored, found, (), started)
        evidence.save_compared(record, key=bench.signing_key)
        return [(told(record), mending(record, again, path))]
    made, digest = stored.baseline.measurement.origin.made, (stored.baseline.measurement.key.image or "")[:19]
    image = made.image if made is not None else None
    said = f"the image of {name} is not on this engine ({image}, {digest}), and times of two sessions decide nothing"
    back = f"Bring it back, such as by: envbuild pull --image-only {image}, then envbuild smoke {again}"
    return [(said, f"{back}. Or take this one as the new baseline: {accepting(path, again)}")]


def _image(bench: Workbench, digest: str | None, name: str) -> ImageInfo | None:
    """A baseline's image: by its name where that is still its own, else whatever the engine has with that digest."""
    for ref in (name, digest or ""):
        info = bench.engine.image(ref) if is_reference(ref) else None
        if info is not None and performance.digest_of(info) == digest:
            return info
    return next((info for info in bench.engine.every_image() if performance.digest_of(info) == digest), None)


def _moved(stored: Stored, base: Measurement) -> list[Difference]:
    """Where the baseline's image, launched again, trains something else than what was stored."""
    found = keys.differences(stored.baseline.measurement.key, base.key)
    return [each for each in found if each.aspect not in ("image", "probe")]


def _record(
    env: Environment, info: ImageInfo, stored: Stored, found: Comparison, moved: Sequence[Difference],
    started: datetime.datetime,
) -> Compared:  # fmt: skip
    asked, measured = env.performance, stored.baseline.measurement
    assert asked is not None and measured.key.image is not None
    verdict, reason = found.verdict, found.reason
    if moved:
        what = ", ".join(f"{each.name} {each.base[:40]}, now {each.candidate[:40]}" for each in moved)
        verdict, reason = "incomparable", f"its image trains something else than when it was measured: {what}"
    digest = baselines.digest_of(measured)
    before = [
        each.attempt
        for each, _ in evidence.compared(performance.digest_of(info))
        if (each.baseline, each.measurement, each.environment) == (stored.baseline.name, digest, env.name)
    ]
    timing = found.timing
    judged = timing.judgement if timing is not None else None
    base, candidate = (timing.base, timing.candidate) if timing is not None else (None, None)
    return Compared(
        schema="envbuild.performance/1", environment=env.name, image=performance.identity(info),
        baseline=stored.baseline.name, measurement=digest, base_image=measured.key.image,
        key=performance.key_of(stored), verdict=verdict, reason="".join(filter(str.isprintable, reason))[:500],
        delta=asked.share, rounds=asked.rounds,
        ratio=judged.ratio if judged else None, low=judged.low if judged else None,
        high=judged.high if judged else None, detectable=judged.detectable if judged else None,
        base_seconds=base.median if base else None, seconds=candidate.median if candidate else None,
        attempt=max(before, default=0) + 1, envbuild=envbuild.__version__, started=started,
        finished=datetime.datetime.now(datetime.timezone.utc),
    )  # fmt: skip


__all__ = ["Measure", "hold"]
