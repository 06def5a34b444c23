"""How long a user waits for the command line: `--help`, and `build` of a row that is up to date."""

from __future__ import annotations

import json
import statistics
import sys
import time
from pathlib import Path

from figures import Ratio
from staging import Staged, docker_build, must

from envbuild.errors import EngineError
from envbuild.pipeline.workbench import Workbench

ROOT = Path(__file__).resolve().parent.parent
ENVBUILD = str(Path(sys.executable).with_name("envbuild"))
HELP = (ENVBUILD, "--help")
# These commands take tenths of a second: a round is the median of some, taken in turn.
_TURNS = 9


def help_time(rounds: int) -> Ratio:
    """`envbuild --help` against typer's own floor."""
    floor = (sys.executable, str(Path(__file__).with_name("two_commands.py")), "--help")
    ours, reference = _in_turn(rounds, HELP, floor)
    return Ratio(
        name="envbuild --help",
        ours=tuple(ours),
        reference=tuple(reference),
        against="--help of a two-command typer program in the same environment",
        limit=1.5,
    )


def up_to_date(bench: Workbench, staged: Staged, tag: str, rounds: int) -> Ratio:
    """`envbuild build` with nothing to do against a `docker build` with nothing to do, plus `envbuild --help`."""
    build = (ENVBUILD, "build", staged.target.env.name)
    said = json.loads(must((*build, "--json"), cwd=ROOT).stdout)
    if said["images"][0]["status"] != "up to date":
        raise EngineError(f"{' '.join(build)} was not up to date: {said['images'][0]['status']}")
    ours, docker, floor = _in_turn(rounds, build, docker_build(bench, staged.request(tag)), HELP)
    return Ratio(
        name="envbuild build, up to date",
        ours=tuple(ours),
        reference=tuple(one + other for one, other in zip(docker, floor, strict=True)),
        against="a fully cached docker build of the same Dockerfile and context, plus envbuild --help",
        limit=1.0,
        note=f"docker build alone: {statistics.median(docker):.3f} s.",
    )


def _in_turn(rounds: int, *commands: tuple[str, ...]) -> list[list[float]]:
    """Seconds of each command, round by round; the commands alternate, and the first turn of all is not counted."""
    for command in commands:
        must(command, cwd=ROOT)
    medians: list[list[float]] = [[] for _ in commands]
    for _ in range(rounds):
        seconds: list[list[float]] = [[] for _ in commands]
        for _ in range(_TURNS):
            for place, command in enumerate(commands):
                began = time.monotonic()
                must(command, cwd=ROOT)
                seconds[place].append(time.monotonic() - began)
        for place, values in enumerate(seconds):
            medians[place].append(statistics.median(values))
    return medians
