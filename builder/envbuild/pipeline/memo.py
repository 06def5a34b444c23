"""Whether an image has to be smoked again, and why: evidence is reused for exactly what it is evidence of."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from envbuild.engines import ImageInfo
from envbuild.evidence import Evidence, PublicKey, every, signed_by
from envbuild.model import Environment, Level
from envbuild.pipeline.gates import Decision


@dataclass(frozen=True, slots=True, kw_only=True)
class Memo:
    """What is known already. ``record`` is None when it has to be run; ``reason`` says why, or why not."""

    reason: str
    record: Evidence | None = None
    path: Path | None = None


def remembered(
    info: ImageInfo,
    env: Environment,
    decision: Decision,
    *,
    claims: dict[str, str],
    suite: str,
    long_seconds: float | None = None,
    force: bool = False,
    key: PublicKey | None = None,
) -> Memo:
    """The evidence that a smoke would only repeat, or why there is none.

    It has to be of the same image, claims, suite, level, GPU model and driver; and of a run that was as long, where a
    long one is asked for. A long run counts as a normal one too. With a signing ``key`` it has to be signed by it: a
    signature says that its owner's machine saw this, so it is not put to what was seen before.
    """
    if force:
        return Memo(reason="runs again: --force")
    if decision.unseen:
        return Memo(reason="runs: which GPU and driver the engine's host has is seen in the container only")
    known = [(record, path) for record, path in every(info.id, info.diff_ids) if record.environment == env.name]
    if not known:
        return Memo(reason="runs: there is no evidence of this image yet")
    left = [each for each in known if each[0].suite == suite]
    if not left:
        return Memo(reason=f"runs: the suite changed from {known[0][0].suite[:12]} to {suite[:12]}")
    known, left = left, [each for each in left if each[0].claims == claims]
    if not left:
        return Memo(reason=f"runs: the row claims something else now ({_changes(known[0][0].claims, claims)})")
    known, left = left, [each for each in left if each[0].level is decision.level]
    if not left:
        best = max((record.level for record, _ in known), key=lambda level: level.rank)
        return Memo(reason=f"runs: so far level {best.value} was seen, this run shows {decision.level.value}")
    known, left = left, [each for each in left if each[0].seen_on == decision.seen_on]
    if not left:
        return Memo(reason=f"runs: {_other_device(known[0][0], decision)}")
    known, left = left, [each for each in left if (each[0].long_seconds or 0.0) >= (long_seconds or 0.0)]
    if not left:
        length = known[0][0].long_seconds
        return Memo(reason=f"runs: the evidence is of a {f'run of {length:.0f} s' if length else 'short run'}")
    left = [each for each in left if key is None or signed_by(each[1], [key]).signed]
    if not left:
        return Memo(reason="runs: the evidence is not signed by the key that is to sign it")
    record, path = left[0]
    return Memo(
        reason=f"evidence of {record.finished:%Y-%m-%d %H:%M} UTC for this image, suite, {_what(record)}; "
        "not run again (--force runs it)",
        record=record,
        path=path,
    )


def _what(record: Evidence) -> str:
    if record.level.rank < Level.GPU_MIG.rank:
        return f"level {record.level.value}"
    return f"level {record.level.value}, GPU ({_models(record)}) and driver ({record.host.driver})"


def _other_device(record: Evidence, decision: Decision) -> str:
    models = ", ".join(sorted({str(gpu["name"]) for gpu in decision.gpus}))
    if _models(record) != models:
        return f"the GPU changed from {_models(record) or 'unknown'} to {models}"
    return f"the driver changed from {record.host.driver or 'unknown'} to {decision.driver}"


def _models(record: Evidence) -> str:
    return ", ".join(sorted({str(gpu.get("name", "")) for gpu in record.host.gpus}))


def _changes(before: dict[str, str], now: dict[str, str]) -> str:
    names = sorted(name for name in {*before, *now} if before.get(name) != now.get(name))
    return ", ".join(f"{name} {before.get(name, 'nothing')} -> {now.get(name, 'nothing')}" for name in names)
