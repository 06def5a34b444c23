"""Whether an image is as fast as its row requires before it is called ``validated``, as far as that is known.

Runs nothing. A row asks for it (``performance: {baseline: required}``); the project's baselines say against what; what
was launched (see ``versus``) lies beside the image's evidence. Every way to the name ``validated`` asks here.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import envbuild
from envbuild import evidence
from envbuild.engines import ImageInfo
from envbuild.errors import InputError
from envbuild.events import Note
from envbuild.evidence import Compared, Identity, PublicKey, Refused
from envbuild.evidence.record import printable
from envbuild.model import Environment, Performance
from envbuild.pipeline.performance_told import Standing, none, refused, required, told
from envbuild.pipeline.profile_made import hidden

if TYPE_CHECKING:
    from envbuild.pipeline.workbench import Workbench
    from envbuild.profile.baselines import Stored
    from envbuild.profile.document import Measurement


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Everything that is known of an image beside the baselines of its row."""

    standings: tuple[Standing, ...]

    @property
    def good(self) -> bool:
        """Whether it holds every baseline of one machine, and was seen to be slower on none.

        Being one of them itself is not enough there, or a measurement of the new image with other options would do.
        """
        whole = any(
            all(other.passed for other in self.standings if one_machine(each.stored, other.stored))
            for each in self.standings
        )
        return whole and not any(each.regressed for each in self.standings)


def folder_of(bench: Workbench) -> Path:
    """Where the project's baselines lie; below the working folder where the project is the packaged one."""
    from envbuild.profile.baselines import FOLDER

    return (Path.cwd() if bench.project.packaged else bench.project.root) / FOLDER


def baselines_of(bench: Workbench, row: str) -> list[Stored]:
    """The baselines of a row, of whatever machine, that can be launched again.

    A training of somebody's own, one over several nodes, or one that was read from a log, is a baseline for ``compare``
    alone.

    Raises:
        InputError: One that is called as the row's are cannot be read: it may be what stands in the way.
    """
    from envbuild.profile import baselines

    shelf = baselines.every(folder_of(bench))
    for each in shelf.broken:
        if _row_of(each.path, bench.matrix.environments) == row:
            raise each.error
        bench.tell_once(f"no baseline, and left out: {each.error.message}", level="warning")
    own = [each for each in shelf.stored if each.baseline.measurement.key.row == row]
    for one in own:
        made = one.baseline.measurement.origin.made
        if made is not None and (lacking := hidden(made)):
            bench.tell_once(
                f"{one.baseline.name} cannot be launched again: it was measured with {', '.join(lacking)}, and values "
                "of such variables are kept nowhere", level="warning",
            )  # fmt: skip
    return [one for one in own if _again(one.baseline.measurement)]


def _row_of(path: Path, rows: Iterable[str]) -> str | None:
    """The row whose baseline has such a name."""
    from envbuild.profile.baselines import word_of

    return max((row for row in rows if path.name.startswith(f"{word_of(row)}-")), key=len, default=None)


def _again(measured: Measurement) -> bool:
    made = measured.origin.made
    there = made is not None and made.image is not None and measured.key.image is not None
    return there and not (made and hidden(made)) and measured.key.nodes in (None, 1)


def one_machine(one: Stored, other: Stored) -> bool:
    """Whether two baselines are of one machine, as far as they tell.

    How many nodes, which of its devices, and what a team calls it are no part of that; nor is how much memory a kernel
    leaves.
    """
    from envbuild.profile import keys
    from envbuild.profile.document import Key

    ours, theirs = (
        Key(hardware=each.baseline.measurement.key.hardware.model_copy(update={"label": None})) for each in (one, other)
    )
    return not keys.differences(ours, theirs)


def digest_of(info: ImageInfo) -> str:
    """What a measurement calls an image."""
    return evidence.digest_of(info.id) or info.id


def known(bench: Workbench, row: str, asked: Performance, info: ImageInfo) -> Held:
    """What an image has shown beside each baseline of its row.

    With a signing key, what that key has not signed does not count, as with all evidence.

    Raises:
        InputError: A baseline cannot be read.
    """
    from envbuild.profile import baselines

    digest = digest_of(info)
    seen = {record.baseline: record for record in _seen(bench, row, digest, info)}
    standings = []
    for stored in baselines_of(bench, row):
        measured = stored.baseline.measurement
        record = seen.get(stored.baseline.name)
        if record is not None:
            current = record.measurement == baselines.digest_of(measured)
            record = record if current and _answers(record, asked) else None
        standings.append(Standing(stored=stored, record=record, own=measured.key.image == digest))
    return Held(standings=tuple(standings))


def _answers(record: Compared, asked: Performance) -> bool:
    """Whether a comparison answers what the row asks today: a pass that was as strict, a failure of just that."""
    if record.passed:
        return record.verdict == "baseline" or (record.delta <= asked.share and record.rounds >= asked.rounds)
    return (record.delta, record.rounds) == (asked.share, asked.rounds)


def _seen(bench: Workbench, row: str, digest: str, info: ImageInfo) -> Iterator[Compared]:
    key = bench.signing_key
    for record, path in evidence.compared(digest):
        if record.environment == row and record.image.diff_ids == info.diff_ids:
            try:
                yield record if key is None else evidence.compared_by(path, [key.public])[0]
            except Refused:
                continue


def files_of(row: str, info: ImageInfo) -> tuple[Path, ...]:
    """The files of all that an image has shown as a row."""
    return tuple(path for record, path in evidence.compared(digest_of(info)) if record.environment == row)


def require(bench: Workbench, env: Environment, info: ImageInfo, ref: str, *, again: str) -> None:
    """Go on to the name ``validated`` only with an image that is known to be fast enough. Launches nothing.

    An image that is the baseline itself is: that is written down beside its evidence, with the reason of its promotion.

    Args:
        again: What `envbuild smoke` and `envbuild promote` are to be told to go on with it.

    Raises:
        GateError: It is not known, or known not to be (exit 5).
    """
    if env.performance is None:
        return
    held = known(bench, env.name, env.performance, info)
    if not held.good:
        raise refused(env, held.standings, folder_of(bench), ref, again=again)
    settle(bench, env, info, held.standings)


def foresee(bench: Workbench, env: Environment) -> None:
    """Say before a long build that its image will not be called ``validated`` yet; it stops nothing.

    Raises:
        InputError: A baseline cannot be read.
    """
    if env.performance is not None and not baselines_of(bench, env.name):
        told = none(env, folder_of(bench))
        message = f"the row requires {required(env.performance)}, and {told}: the image will not be called validated"
        bench.sink(Note(message=message, level="warning"))


def settle(bench: Workbench, env: Environment, info: ImageInfo, standings: Iterable[Standing]) -> None:
    """Write down that an image is a baseline itself, where that was not done yet: others read only what is written."""
    from envbuild.profile import baselines

    asked = env.performance
    for each in standings:
        if not each.own or asked is None or (each.record is not None and each.record.verdict == "baseline"):
            continue
        made = each.stored.baseline
        last = made.history[-1]
        now = datetime.datetime.now(datetime.timezone.utc)
        record = Compared(
            schema="envbuild.performance/1", environment=env.name, image=identity(info), baseline=made.name,
            measurement=baselines.digest_of(made.measurement), base_image=digest_of(info),
            key=key_of(each.stored), verdict="baseline", reason=last.reason, delta=asked.share, rounds=asked.rounds,
            seconds=last.step_seconds, base_seconds=last.step_seconds, envbuild=envbuild.__version__, started=last.at,
            finished=now,
        )  # fmt: skip
        evidence.save_compared(record, key=bench.signing_key)


def identity(info: ImageInfo) -> Identity:
    """The image, as its evidence names it."""
    return Identity(config_digest=digest_of(info), diff_ids=info.diff_ids)


def key_of(stored: Stored) -> dict[str, object]:
    """What a baseline is of, without the image and the versions that follow from it."""
    key = stored.baseline.measurement.key.model_dump(mode="json", exclude_none=True)
    return {name: value for name, value in key.items() if name not in ("image", "deepspeed", "torch", "nccl", "probe")}


def believed(
    env: Environment, image: Identity, paths: Iterable[Path], keys: Sequence[PublicKey]
) -> tuple[tuple[tuple[Compared, Path], ...], str]:
    """What trusted keys have signed of an image's speed, of each baseline the newest; and why that is not what the row
    requires, which is empty where it is.

    Whose baselines they were is the signer's to know: another project may have others, or none.
    """
    newest: dict[str, tuple[Compared, Path]] = {}
    doubts = []
    for path in paths:
        try:
            record, _ = evidence.compared_by(path, keys)
        except Refused as refusal:
            doubts.append(printable(refusal.reason))
            continue
        if record.environment != env.name or record.image != image:
            doubts.append("a comparison is of another image or row")
        elif record.baseline not in newest or newest[record.baseline][0].finished < record.finished:
            newest[record.baseline] = record, path
    found, asked = tuple(newest.values()), env.performance
    if asked is None:
        return found, ""
    slower = [told(each) for each, _ in found if each.verdict == "regressed"]
    if not slower and any(each.passed and _answers(each, asked) for each, _ in found):
        return found, ""
    others = slower or [told(each) for each, _ in found] or list(dict.fromkeys(doubts))
    return found, "; ".join(others or ["nobody has signed a comparison"])


def state(bench: Workbench, env: Environment, info: ImageInfo) -> list[str]:
    """What is known of an image, a line for each baseline; for ``show``."""
    if env.performance is None:
        return []
    try:
        held = known(bench, env.name, env.performance, info)
    except InputError as error:
        return [error.message]
    lines = []
    for each in held.standings:
        name = each.stored.baseline.name
        own = f"it is the baseline {name}: {each.stored.baseline.history[-1].reason}"
        lines.append(own if each.own else told(each.record) if each.record else f"not compared with {name} yet")
    return lines or [none(env, folder_of(bench))]
