"""What a measurement is asked for, and the command line of the programs that measure."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import envbuild
from envbuild import VALUES_VARIABLE
from envbuild.collector.secrets import SECRET as HIDDEN
from envbuild.errors import EngineError, InputError
from envbuild.judge.suite import probes_folder
from envbuild.pipeline.gates import ALL
from envbuild.pipeline.training_config import TrainingConfig

Pass = Literal["timing", "comms", "trace", "parity"]
PASSES: tuple[Pass, ...] = ("timing", "comms", "trace", "parity")
# Tokens of a sequence, by the name of the model: profiler/models.py has the rest.
MODELS = {"tiny": 64, "mini": 64, "small": 128, "base": 256, "large": 512, "1b": 1024, "7b": 2048}
# Of the proof's programs, those that the profiler loads.
PROBES = ("common.py", "surroundings.py", "zero3.py", "zero3_seen.py", "zero3_watch.py")
_LEAST_SECONDS = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What is to be measured, and how.

    Attributes:
        ds_config: The user's, parsed; None is ZeRO-3 with both offloads.
        settings: ``key.key=value`` for the ds_config.
        env: ``NAME=VALUE`` for the ranks.
        length: Tokens of a sequence; None is the model's own.
        slow_data: Milliseconds that each micro-batch is waited for, and the one rank that waits.
        straggle: Milliseconds that each forward pass takes longer, and the one rank whose.
        label: What the team calls this kind of machine.
        disk: Folder of this host for checkpoints and swapped states.
        unobserved: Whole steps only: measures what measuring costs.
    """

    passes: tuple[Pass, ...] = ("timing", "comms")
    model: str = "tiny"
    length: int | None = None
    steps: int = 20
    warmup: int = 5
    micro_batch: int | None = None
    ds_config: Any = None
    settings: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    slow_data: tuple[float, int | None] = (0.0, None)
    straggle: tuple[float, int | None] = (0.0, None)
    checkpoint_every: int | None = None
    seed: int = 1
    ranks: int | None = None
    threads: int | None = None
    gpus: tuple[str, ...] = ALL
    timeout: float = 1800.0
    label: str | None = None
    disk: Path | None = None
    unobserved: bool = False


def profiler_folder() -> Path:
    """The folder with the programs that measure.

    Raises:
        EngineError: The package is not installed as files.
    """
    folder = Path(envbuild.__file__).parent / "profiler"
    if not (folder / "launch.py").is_file():
        raise EngineError(
            f"the profiler is not where it belongs: {folder}",
            hint="Install envbuild as files (pip, pipx); it cannot run from a zip archive.",
        )
    return folder


@functools.cache
def profiler_hash() -> str:
    """SHA-256 (hex) over the programs that measure: what another one measured is compared where that is declared."""
    digest = hashlib.sha256()
    paths = [*sorted(profiler_folder().rglob("*.py")), *(probes_folder() / name for name in PROBES)]
    for path in paths:
        content = path.read_bytes()
        digest.update(f"{path.name} {len(content)}\n".encode() + content)
    return digest.hexdigest()


def argv_of(
    wish: Wish, config: TrainingConfig, accelerator: str, ranks: int, *, python: str, place: str, probes: str, nvml: str
) -> tuple[str, ...]:
    """The command line of the profiler.

    Args:
        place, probes: The folders of its programs and of the proof's, as it sees them.
        nvml: ``pynvml.py``, as it sees it; empty where there is none.
    """
    argv = [python, "-I", f"{place}/launch.py", "--probes", probes, "--config", json.dumps(config.values)]
    argv += ["--passes", ",".join(wish.passes), "--model", wish.model, "--accelerator", accelerator]
    argv += ["--ranks", str(wish.ranks or ranks), "--steps", str(wish.steps), "--warmup", str(wish.warmup)]
    argv += ["--seed", str(wish.seed), "--timeout", f"{max(_LEAST_SECONDS, wish.timeout - 20):g}"]
    numbers = {"--length": wish.length, "--checkpoint-every": wish.checkpoint_every, "--threads": wish.threads}
    for name, number in numbers.items():
        if number is not None:
            argv += [name, str(number)]
    for name, who, (milliseconds, rank) in (
        ("--slow-data", "--slow-rank", wish.slow_data), ("--straggle", "--straggler", wish.straggle),
    ):  # fmt: skip
        if milliseconds:
            _need_rank(name, rank, wish.ranks or ranks)
            argv += [name, f"{milliseconds:g}", who, str(-1 if rank is None else rank)]
    for setting in wish.env:
        argv += ["--env", setting.partition("=")[0]]
    if nvml:
        argv += ["--nvml", nvml]
    if wish.unobserved:
        argv.append("--unobserved")
    return tuple(argv)


def given(wish: Wish) -> dict[str, str]:
    """The variables for the ranks."""
    return dict(each.partition("=")[::2] for each in wish.env)


def values_of(wish: Wish) -> tuple[tuple[str, str], ...]:
    """The variable that brings the values of ``wish.env`` to the profiler, whose command line has their names."""
    return ((VALUES_VARIABLE, json.dumps(given(wish))),) if wish.env else ()


def told(argv: Iterable[str]) -> tuple[str, ...]:
    """A command line for people: a variable whose value is not on it has ``***``."""
    found: list[str] = []
    for word in argv:
        found.append(f"{word}={HIDDEN}" if found and found[-1] == "--env" and "=" not in word else word)
    return tuple(found)


def _need_rank(name: str, rank: int | None, ranks: int) -> None:
    """That the rank that is to wait is there; how many there are is not always known before (0)."""
    if rank is not None and ranks and rank >= ranks:
        option = {"--slow-data": "--data slow"}.get(name, name)
        raise InputError(
            f"{option}: there is no rank {rank}",
            hint=f"There are {ranks}, from 0 to {ranks - 1}; --ranks says how many.",
        )


def nvml_file() -> Path | None:
    """NVML's bindings as one file of pure Python, for an image that has none; None where they are not here."""
    import importlib.util

    found = importlib.util.find_spec("pynvml")
    return Path(found.origin) if found is not None and found.origin else None
