"""What is known of an image's speed beside its row's baselines, for people; and why that is not enough."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from envbuild import store
from envbuild.errors import GateError
from envbuild.evidence import Compared
from envbuild.model import Environment, Performance

if TYPE_CHECKING:
    from envbuild.profile.baselines import Stored

# Why something was not passed, and what to do about it.
Why = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """One baseline of a row, and what an image has shown beside it.

    Attributes:
        record: What counts today: of this very measurement, and as strict as the row asks; None where there is none.
        own: It is the baseline of this very image.
    """

    stored: Stored
    record: Compared | None
    own: bool

    @property
    def passed(self) -> bool:
        """Whether there is no regression against it."""
        return self.own or (self.record is not None and self.record.passed)

    @property
    def regressed(self) -> bool:
        """Whether there is one."""
        return not self.own and self.record is not None and self.record.verdict == "regressed"


def required(asked: Performance) -> str:
    """What a row asks for, in words."""
    return f"no regression against a baseline (delta {asked.delta}, {asked.rounds} rounds)"


def told(record: Compared) -> str:
    """A comparison for people: what it says against which baseline, and what it could have seen."""
    if record.verdict == "baseline":
        return f"it is the baseline {record.baseline}: {record.reason}"
    words = []
    if record.ratio is not None:
        bounds = f" ({record.low:.3f} to {record.high:.3f})" if record.low and record.high else ""
        words.append(f"ratio {record.ratio:.3f}{bounds} in {record.rounds} rounds")
    words.append(f"delta {record.delta:.1%}")
    if record.ratio is not None:
        seen = "none" if record.detectable is None else f"{record.detectable:.1%}"
        words.append(f"minimum detectable effect {seen}")
    if record.attempt > 1:
        words.append(f"attempt {record.attempt}")
    return f"{record.verdict} against {record.baseline}: {', '.join(words)}; {record.reason}"


def refused(
    env: Environment, standings: Sequence[Standing], folder: Path, ref: str, *, again: str, why: Sequence[Why] = ()
) -> GateError:
    """The error that says why an image is not called ``validated``, with the commands that mend it.

    Args:
        folder: Where the baselines lie.
        why: What came of the attempt to compare it: the reason, and what to do about it.
    """
    reasons = list(why)
    if not reasons and not standings:
        reasons = [(none(env, folder), first(again))]
    for each in standings if not reasons else ():
        if each.record is not None and not each.passed:
            reasons.append((told(each.record), mending(each.record, again)))
    if not reasons:
        names = ", ".join(each.stored.baseline.name for each in standings if not each.passed)
        reasons = [(f"it was not compared with {names} yet", f"Compare it: envbuild smoke {again}")]
    asked = env.performance
    assert asked is not None
    return GateError(
        "\n  ".join(
            (
                f"{ref} is not called validated: the row {env.name} requires {required(asked)}",
                *(one for one, _ in reasons),
            )
        ),
        hint="\n".join(dict.fromkeys(todo for _, todo in reasons)),
    )


def none(env: Environment, folder: Path) -> str:
    """That a row has no baseline."""
    return f"there is no baseline of {env.name} in {folder} that can be launched again"


def first(again: str) -> str:
    """How a row gets the first baseline of a machine."""
    return (
        f"Make this image the first: envbuild profile {again} --steps 40 -o baseline.json, then envbuild baseline add "
        f'baseline.json --reason "first of this machine", then envbuild promote {again}'
    )


def launched(record: Compared) -> tuple[Path, Path] | None:
    """What the launches of a comparison came to, of the baseline's image and of this one; None where it is not here."""
    if record.session is None:
        return None
    base, own = (store.home() / "sessions" / record.session / f"{side}.json" for side in ("base", "candidate"))
    return (base, own) if base.is_file() and own.is_file() else None


def mending(record: Compared, again: str, measured: Path | None = None) -> str:
    """What to do about a comparison that was not passed.

    Args:
        measured: The image's own measurement, where it was launched alone.
    """
    from envbuild.profile import comparing

    sides = launched(record)
    file, before = measured or (sides[1] if sides is not None else None), ""
    if file is None:
        model = str(record.key.get("model", "tiny")).partition(",")[0]
        file, before = Path("M.json"), f"envbuild profile {again} --model {model} --steps 40 -o M.json, then "
    accept = accepting(file, again, before)
    if record.verdict == "inconclusive":
        return (
            f"Compare it again on a quiet host: envbuild smoke {again} --force. Or write more rounds, or a larger "
            f"delta, into the row's performance. Or take it as the new baseline: {accept}"
        )
    if record.verdict == "incomparable" and comparing.WRONG in record.reason:
        return (
            f"The training is wrong, or cannot be checked: by how much, stands under parity in {file}. Measure a "
            f"baseline whose parity passes, and promote that; then envbuild smoke {again}"
        )
    if record.verdict == "incomparable":
        return (
            f'Take it as a baseline of its own: {before}envbuild baseline add {file} --reason "why"; remove '
            f"{record.baseline}.json from the baselines; then envbuild promote {again}"
        )
    look = f"What holds it back: envbuild bottleneck {file} --baseline {sides[0]}. " if sides is not None else ""
    return f"{look}If it is to be so: {accept}"


def accepting(measured: Path, again: str, before: str = "") -> str:
    """How an image becomes the new baseline, whatever it has shown."""
    return f'{before}envbuild baseline promote {measured} --reason "why", then envbuild promote {again}'
