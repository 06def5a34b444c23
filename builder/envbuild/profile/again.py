"""The command line that measures a training again, as it was measured, with what a user wants to be different in it.

Of a training that envbuild did not start itself there is none: what is to be changed is then said in words.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from envbuild.collector import secrets
from envbuild.profile.document import Delay, Made, Measurement
from envbuild.profile.usual import LOUD, whole

Pairs = tuple[tuple[str, str], ...]

# Seconds that profile gives a training by itself.
_LIMIT = 1800.0
# Options of profile that go with one node.
ONE_NODE = frozenset({"--checkpoint-every", "--disk"})
_WHY = {
    "command": "it is a training of your own",
    "log": "it was read from a log", "comms-log": "it was read from a log",
    "trace": "it was read from a trace", "nsys": "it was read from a trace",
    "probe": "the measurement does not say what it was started with",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """How a training is started again.

    Attributes:
        of: The image, or ``--python`` and the interpreter; empty where envbuild cannot start it.
        options: What else is said, where it is not what ``profile`` does by itself.
        spread: The same of a training over several nodes.
        why: Why it cannot be started.
    """

    of: tuple[str, ...] = ()
    options: Pairs = ()
    spread: tuple[str, ...] = ()
    why: str = ""

    def command(self, changes: Pairs) -> str | None:
        """The same training with changes: a command line, or None where there is none."""
        if not self.of:
            return None
        new = {_place(each) for each in changes}
        if ("--env", "OMP_NUM_THREADS") in new:
            new.add(("--threads", ""))
        spread = () if any(name in ONE_NODE for name, _ in changes) else self.spread
        kept = [each for each in self.options if _place(each) not in new]
        words = [shlex.join(("envbuild", "profile", *self.of, *spread)), *map(_words, (*kept, *changes)), "--json"]
        return " ".join(words)


def start_of(measured: Measurement, target: str | None = None) -> Start:
    """How the training that was measured is started again.

    Args:
        target: An image that is to train in place of the one that was measured, or of what envbuild cannot start.
    """
    key, made = measured.key, measured.origin.made
    if target is None and (made is None or (made.image is None and made.python is None)):
        return Start(why=_WHY[measured.origin.kind])
    of: tuple[str, ...] = (target or (made.image if made else None) or "",)
    if made is not None and target is None and made.image is None:
        of = ("--python", made.python or "", *(("--accelerator", key.accelerator) if key.accelerator else ()))
    options = list(options_of(made or stand_in(measured), key.accelerator or "cpu"))
    if made is not None and key.hardware.label is not None:
        options.append(("--label", key.hardware.label))
    if made is not None and target is None and made.image is not None and key.row is not None:
        # Other names of an image do not say which row it is, and it may not say so itself.
        named = made.image == key.row or f"envbuild/{key.row}:" in made.image
        options += [] if named else [("--row", key.row)]
    spread: tuple[str, ...] = ()
    if (key.nodes or 1) > 1:
        own = (key.world_size or 0) // (key.nodes or 1)
        # On GPUs a node has one for each, which the cluster is asked for.
        each = ("--ranks-per-node", str(own)) if key.accelerator == "cpu" and own > 1 else ()
        spread = ("--executor", "slurm", "--nodes", str(key.nodes), *each)
    return Start(of=of, options=tuple(options), spread=spread)


def in_turns(base: Measurement, candidate: Measurement) -> tuple[str | None, str]:
    """The command line that launches what two measurements are of in turns; None, and why, where there is none."""
    sides, starts = (base, candidate), [start_of(side) for side in (base, candidate)]
    for start in starts:
        if start.why:
            return None, f"; compare cannot do that: {start.why}"
    made = [side.origin.made or Made() for side in sides]
    if not all(each.image for each in made):
        return None, "; compare does that with images, and one side is an interpreter"
    if any((side.key.nodes or 1) > 1 for side in sides):
        return None, "; compare does that on one node, and they were measured on several"
    said = [dict.fromkeys(each for each in start.options if each[0] not in _OF_ONE_SIDE) for start in starts]
    if said[0] != said[1]:
        other = [each for each in (*said[0], *said[1]) if not (each in said[0] and each in said[1])]
        return None, f"; they were started differently ({_line(other)}), so measure one of them as the other was"
    if unknown := [each for each in said[0] if each[0] not in _COMPARED]:
        return None, f"; compare does not take {_line(unknown)}: measure both by profile, in turns"
    accelerator = base.key.accelerator or "cpu"
    ours, theirs = [whole(accelerator) if each.ds_config is None else each.ds_config for each in made]
    pairs = [each for each in said[0] if each[0] not in ("--steps", "--warmup")]
    pairs += [(name, str(count)) for name, count in _counted(made[0])]
    pairs += [("--set", f"{path}={value}") for path, value in differing(whole(accelerator), ours)]
    more = [("--candidate-set", f"{path}={value}") for path, value in differing(ours, theirs)]
    pairs += [*more, ("--differs", "config")] if more else []
    images = shlex.join(each.image or "" for each in made)
    return " ".join(("envbuild compare", images, *map(_words, pairs), "--rounds 10")), ":"


# What a comparison is not told: its sides differ in it, or it follows from the image and the host.
_OF_ONE_SIDE = frozenset({"--set", "--row", "--label"})
_COMPARED = frozenset({"--model", "--seq", "--steps", "--warmup", "--ranks", "--threads", "--env", "--timeout"})
# Fewer steps than these tell little of an image; they are what compare does by itself.
_STEPS, _WARMUP = 40, 5


def _counted(made: Made) -> Iterator[tuple[str, int]]:
    if made.steps > _STEPS:
        yield "--steps", made.steps
    if made.warmup > _WARMUP:
        yield "--warmup", made.warmup


def _line(pairs: Iterable[tuple[str, str]]) -> str:
    return ", ".join(map(" ".join, pairs))


def stand_in(measured: Measurement) -> Made:
    """What trains in place of a training that envbuild cannot start: a model of its own, with a log's ds_config."""
    config = measured.config if measured.origin.kind == "log" else None
    if config is None:
        return Made()
    left_out = {*LOUD, "train_batch_size", "steps_per_print"}
    return Made(ds_config={name: each for name, each in secrets.config(config).items() if name not in left_out})


def options_of(made: Made, accelerator: str) -> Iterator[tuple[str, str]]:
    """What ``profile`` has to be told to train the same; what it does by itself is not said."""
    usual = Made()
    said: dict[str, Any] = {
        "--model": made.model if made.model != usual.model else None, "--seq": made.length,
        "--steps": made.steps if made.steps != usual.steps else None,
        "--warmup": made.warmup if made.warmup != usual.warmup else None,
        "--seed": made.seed if made.seed != usual.seed else None,
        "--ranks": made.ranks, "--threads": made.threads,
        "--gpus": ",".join(made.gpus) if made.gpus not in ((), ("all",)) else None,
        "--data": f"slow:{_delay(made.slow_data)}" if made.slow_data else None,
        "--straggle": _delay(made.straggle) if made.straggle else None,
        "--checkpoint-every": made.checkpoint_every, "--disk": made.disk,
        "--timeout": f"{made.timeout:g}" if made.timeout not in (None, _LIMIT) else None,
    }  # fmt: skip
    yield from ((name, str(value)) for name, value in said.items() if value is not None)
    yield from (("--env", each) for each in made.env)
    for path, value in settings(made, accelerator):
        yield "--set", f"{path}={value}"


def settings(made: Made, accelerator: str) -> list[tuple[str, str]]:
    """Where its ds_config is another one than the usual: dotted names and values, as ``--set`` takes them."""
    if made.ds_config is None:
        return []
    found = list(differing(whole(accelerator), made.ds_config))
    # A log's ds_config does not have what is filled in without being said.
    found = [each for each in found if each != ("steps_per_print", "null")]
    return [each for each in found if not (made.disk and each[0].endswith(".nvme_path"))]


def differing(
    base: Mapping[str, Any], wanted: Mapping[str, Any], before: tuple[str, ...] = ()
) -> Iterator[tuple[str, str]]:
    """The settings that make the one ds_config from the other; ``null`` takes a name out of it."""
    for name in [*wanted, *(each for each in base if each not in wanted)]:
        ours, theirs, path = base.get(name), wanted.get(name), (*before, name)
        if ours == theirs and type(ours) is type(theirs):
            continue
        # Names that --set cannot say are given with the section that they are in.
        if isinstance(theirs, Mapping) and theirs and not any(set(".=").intersection(each) for each in theirs):
            yield from differing(ours if isinstance(ours, Mapping) else {}, theirs, path)
        else:
            yield ".".join(path), _value(theirs)


def _value(value: Any) -> str:
    """As ``--set`` reads it back: JSON, or a word that is none."""
    if isinstance(value, str):
        try:
            json.loads(value)
        except ValueError:
            return value
    return json.dumps(value)


def _delay(wait: Delay) -> str:
    return f"{wait.milliseconds:g}" + (f"@{wait.rank}" if wait.rank is not None else "")


def _place(pair: tuple[str, str]) -> tuple[str, str]:
    """What an option is about: two of one place are not said both."""
    name, value = pair
    return name, value.partition("=")[0] if name in ("--set", "--env") else ""


def _words(pair: tuple[str, str]) -> str:
    name, value = pair
    variable, equals, hidden = value.partition("=")
    if name == "--env" and equals and hidden == secrets.SECRET:
        # Kept nowhere: it comes from the shell that the line is pasted into.
        return shlex.join((name, variable))
    return shlex.join(pair)
