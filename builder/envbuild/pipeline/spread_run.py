"""A training that is measured over several nodes: what the first of them does."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import envbuild
from envbuild import evidence, process, store
from envbuild.errors import EnvbuildError
from envbuild.events import PhaseDone, PhaseStarted, Sink, StepLine
from envbuild.judge.outcome import Outcome
from envbuild.pipeline import collective
from envbuild.pipeline.gathered import Gathered, gather
from envbuild.pipeline.host import cpu_name
from envbuild.pipeline.measured import About, read_lines
from envbuild.pipeline.prepare import FindingsError
from envbuild.pipeline.profile_told import Told
from envbuild.pipeline.profile_wish import MODELS, profiler_hash
from envbuild.pipeline.profiling import measurement
from envbuild.pipeline.spread import SAID, Spread
from envbuild.pipeline.workbench import Workbench
from envbuild.profile.document import Hardware, Measurement

_LOOK, _PATIENCE = 0.5, 30.0


def carry_out(bench: Workbench, spread: Spread, folder: Path) -> Measurement:
    """Let the nodes add, then train and measure; on the first of them.

    Args:
        folder: A folder that every node sees, of this attempt alone.

    Raises:
        FindingsError: They do not add right, so that nothing was measured (exit 5).
        GateError: The training did not come to its end (exit 5).
        EngineError: The ranks cannot be started.
    """
    bench.sink(PhaseStarted(phase="all-reduce", detail=f"{spread.world} ranks on {spread.nodes} nodes"))
    began = time.monotonic()
    expected = collective.Expected(world=spread.world, nodes=spread.nodes, seed=spread.seed)
    found, _ = collective.carry_out(folder, spread.check, expected, timeout=spread.patience)
    if found:
        raise FindingsError(
            f"{spread.image}: the nodes do not add right, so that nothing was measured", tuple(found), exit_code=5
        )  # fmt: skip
    bench.sink(PhaseDone(phase="all-reduce", seconds=time.monotonic() - began))
    said = store.make_folder(folder / SAID)
    detail = f"{spread.image}: {spread.made.model}, {', '.join(spread.passes)}, on {spread.nodes} nodes"
    with Told(bench.sink, detail) as heard:
        outcome = _train(spread, folder, heard)
    lines = _collected(said, spread.world, patience=_PATIENCE if outcome.exit_code == 0 else 0.0)
    missing = [rank for rank, own in lines.items() if not _whole(own)]
    if outcome.exit_code == 0 and missing:
        words = f"no figures of rank {', '.join(map(str, missing))}: not every node sees {said} alike"
        outcome = dataclasses.replace(outcome, exit_code=1)
        lines = {rank: [*own, {"kind": "end", "error": words}] for rank, own in lines.items()}
    gathered = gather({rank: own for rank, own in lines.items() if own})
    return measurement(bench, spread.image, outcome, gathered.lines, _about(bench, spread, gathered))


def _collected(said: Path, world: int, *, patience: float) -> dict[int, list[dict[str, Any]]]:
    """The lines of every rank; on a network file system the last of them appear later than they are written."""
    until = time.monotonic() + patience
    while True:
        found = {rank: read_lines(_text(said / f"{rank}.json")) for rank in range(world)}
        if all(map(_whole, found.values())) or time.monotonic() >= until:
            return found
        time.sleep(_LOOK)


def _whole(lines: list[dict[str, Any]]) -> bool:
    return any(line["kind"] == "end" for line in lines)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _train(spread: Spread, folder: Path, heard: Sink) -> Outcome:
    began, late, code = time.monotonic(), False, 137
    told: list[str] = []
    with _following(folder / SAID / "0.txt", heard):
        try:
            code = process.stream(spread.train, on_line=told.append, cwd=folder, timeout=spread.timeout)
        except process.TimedOut:
            late = True
    code = code if code >= 0 else 128 - code
    # What a rank's container said, where it said no more than that; the profiler's own progress is none of it.
    words = [
        line
        for path in sorted((folder / SAID).glob("*.txt"))
        for line in _text(path).splitlines()
        if line.strip() and not line.startswith(("envbuild: ", "slurmstepd"))
    ]
    return Outcome(exit_code=code, stdout="", stderr="\n".join(words or told), oom_killed=False, timed_out=late,
                   seconds=time.monotonic() - began)  # fmt: skip


@contextlib.contextmanager
def _following(path: Path, heard: Sink) -> Iterator[None]:
    """Tell what the first rank says of its progress while the block runs."""
    over = threading.Event()

    def follow() -> None:
        place = 0
        while not over.wait(_LOOK):
            with contextlib.suppress(OSError):
                data = path.read_bytes()
                whole = data.rfind(b"\n") + 1
                for line in data[place:whole].decode(errors="replace").splitlines():
                    heard(StepLine(key="profiler", text=line))
                place = max(place, whole)

    thread = threading.Thread(target=follow, name="follower", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(5.0)


def _about(bench: Workbench, spread: Spread, gathered: Gathered) -> About:
    """What the lines do not say; the first node speaks for the others, which a cluster asks for alike."""
    made = spread.made
    tokens = made.length or MODELS[made.model]
    devices = [line.get("device") for line in gathered.lines if line["kind"] == "rank"]
    gpus = [str(each["name"]) for each in devices if isinstance(each, dict) and each.get("name")]
    around: Any = next((line["surroundings"] for line in gathered.lines if line["kind"] == "launch"), {})
    hardware = Hardware(
        cpu=cpu_name(), cpus=os.cpu_count(), memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        gpus=tuple(dict.fromkeys(gpus)) if spread.accelerator == "cuda" else (),
        driver=around.get("nvidia_driver") if spread.accelerator == "cuda" else None, label=spread.label,
    )  # fmt: skip
    return About(
        accelerator=spread.accelerator, hardware=hardware, probe=profiler_hash(), envbuild=envbuild.__version__,
        image=_identity(bench, spread), row=spread.row, model=f"{made.model}, {tokens} tokens", tokens=tokens,
        seed=made.seed, micro_batch=spread.micro_batch, accumulation=spread.accumulation, made=made,
        nodes=gathered.nodes, notes=(*spread.notes, *gathered.notes),
    )  # fmt: skip


def _identity(bench: Workbench, spread: Spread) -> str | None:
    """Which image it was, as this node's engine says; pyxis, enroot and apptainer have nobody to ask."""
    if spread.container not in ("docker", "podman"):
        return None
    found: str | None = None
    try:
        if spread.container == bench.engine.kind:
            info = bench.engine.image(spread.image)
            found = info.id if info is not None else None
        else:
            argv = (spread.container, "image", "inspect", "--format", "{{.Id}}", spread.image)
            done = process.run(argv, timeout=60)
            found = json.loads(f'"{done.stdout.strip()}"') if done.returncode == 0 else None
    except (EnvbuildError, ValueError):
        return None
    return (evidence.digest_of(found) or found) if found else None
