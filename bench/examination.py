"""How long `envbuild doctor` takes: it has to import torch and DeepSpeed, and may take that long again for the rest."""

from __future__ import annotations

import dataclasses
import statistics
import time

from commands import ENVBUILD, ROOT
from figures import Ratio
from staging import must

from envbuild import process
from envbuild.engines import run_argv
from envbuild.errors import EngineError
from envbuild.pipeline.prepare import Target
from envbuild.pipeline.runs import running
from envbuild.pipeline.smoking import smoke_spec
from envbuild.pipeline.workbench import Workbench

_IMPORT = ("python", "-I", "-c", "import torch, deepspeed")
_IMPORT_SECONDS = 300.0
# Imports take seconds: a round is the median of some, taken in turn.
_TURNS = 3


def doctor_time(bench: Workbench, target: Target, proven: str, rounds: int) -> Ratio:
    """`envbuild doctor --image` against the imports alone, in the same image, each in a fresh container."""
    _doctor(proven), _imports(bench, target, proven)  # the first turn of all reads the image from disk
    ours, reference = [], []
    for _ in range(rounds):
        both = [(_doctor(proven), _imports(bench, target, proven)) for _ in range(_TURNS)]
        ours.append(statistics.median(one for one, _ in both))
        reference.append(statistics.median(other for _, other in both))
    return Ratio(
        name="envbuild doctor of an image",
        ours=tuple(ours),
        reference=tuple(reference),
        against='docker run of the same image: python -c "import torch, deepspeed"',
        limit=2.0,
        note="doctor imports both too, in a container of its own, and takes as long again for all the rest at most.",
    )


def _doctor(image: str) -> float:
    began = time.monotonic()
    must((ENVBUILD, "doctor", "--image", image, "--quiet"), cwd=ROOT)
    return time.monotonic() - began


def _imports(bench: Workbench, target: Target, image: str) -> float:
    with running(bench) as run:
        spec = smoke_spec(target.env, image, _IMPORT, run)
        spec = dataclasses.replace(spec, env=(*spec.env, ("USER", "bench")))
        line = run_argv(bench.engine.any_client(), bench.engine.endpoint, bench.engine.granted(spec))
        began = time.monotonic()
        code = process.stream(line, on_line=lambda text: None, timeout=_IMPORT_SECONDS)
        seconds = time.monotonic() - began
    if code != 0:
        raise EngineError(f"torch and DeepSpeed cannot be imported in {image} (exit {code})")
    return seconds
