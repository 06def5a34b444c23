"""What the images are worth: the wait for a first step, and layers that another DeepSpeed leaves alone."""

from __future__ import annotations

import dataclasses
import json
import re
import time
from pathlib import Path

import yaml
from commands import ENVBUILD
from figures import Answer, Ratio
from staging import BUILD_SECONDS, Staged, must, stage

from envbuild import process
from envbuild.engines import Mount, run_argv
from envbuild.errors import EngineError
from envbuild.events import Event, StepDone
from envbuild.pipeline.prepare import prepare
from envbuild.pipeline.runs import running
from envbuild.pipeline.smoking import smoke_spec
from envbuild.pipeline.workbench import Workbench

_HERE = Path(__file__).resolve().parent
_PROGRAM = "/run/bench/train.py"
_DONE = re.compile(r"first step done, compiled (\d+)")
# "[wheels 2/3] RUN ..."; buildx may put the platform first.
_WHEELS_STEP = re.compile(r"\[(?:\S+ )?wheels (\d+)/\d+\] RUN ")
_TORCH_STEP = "source=requirements/torch.txt"
_STEP_SECONDS = 600.0


def first_step(bench: Workbench, staged: Staged, proven: str, folder: Path, rounds: int) -> Ratio:
    """From `docker run` to the end of the first training step, in the tagged image and in the naive one."""
    naive = "envbuild-bench/naive:latest"
    dockerfile = _HERE / "naive" / "Dockerfile"
    bench.engine.build(staged.request(naive, dockerfile=dockerfile), log=folder / "naive.log", timeout=BUILD_SECONDS)
    try:
        ours, reference, compiled = [], [], (0, 0)
        for _ in range(rounds):
            # Before and after: the naive image takes so long that the machine may be another one meanwhile.
            before = _until_step(bench, staged, proven)
            slow = _until_step(bench, staged, naive)
            after = _until_step(bench, staged, proven)
            ours.append((before[0] + after[0]) / 2)
            reference.append(slow[0])
            compiled = (max(before[1], after[1]), slow[1])
    finally:
        bench.engine.untag(naive)
    return Ratio(
        name="docker run to end of first step",
        ours=tuple(ours),
        reference=tuple(reference),
        against="the naive image (bench/naive/Dockerfile): same base, same wheels, same program, fresh container",
        limit=0.15,
        note=f"Ops compiled on the way: {compiled[0]} in ours, {compiled[1]} in the naive one. "
        "Two ranks under torchrun, the container as strict as for smoke.",
    )


def _until_step(bench: Workbench, staged: Staged, image: str) -> tuple[float, int]:
    """Seconds from starting `docker run` to the program's word, and the number of ops compiled for it."""
    argv = ("torchrun", "--nproc-per-node", "2", "--local-addr", "127.0.0.1", _PROGRAM)
    with running(bench) as run:
        spec = dataclasses.replace(
            smoke_spec(staged.target.env, image, argv, run),
            mounts=(Mount(source=_HERE / "train.py", target=_PROGRAM, read_only=True),),
        )
        # Without a network gloo finds no interface by the host's name; and the naive image names no user for uid 65532.
        spec = dataclasses.replace(spec, env=(*spec.env, ("GLOO_SOCKET_IFNAME", "lo"), ("USER", "bench")))
        line = run_argv(bench.engine.any_client(), bench.engine.endpoint, bench.engine.granted(spec))
        seen: list[tuple[float, int]] = []
        said: list[str] = []

        def on_line(text: str) -> None:
            said.append(text)
            if found := _DONE.search(text):
                seen.append((time.monotonic(), int(found[1])))

        began = time.monotonic()
        code = process.stream(line, on_line=on_line, timeout=_STEP_SECONDS)
    # What the program does after that line, taking the process group down, is not what is measured.
    if not seen:
        raise EngineError(f"the training step in {image} failed (exit {code}):\n" + "\n".join(said[-30:]))
    return seen[0][0] - began, seen[0][1]


def torch_stays(bench: Workbench, staged: Staged, other: str, folder: Path) -> Answer:
    """Whether a row that differs in its DeepSpeed alone takes torch's layer as it is.

    BuildKit says so (CACHED), and the layers of both builds say so: one that had been installed again
    would hold other times, and so have another digest.
    """
    first = _wheels(bench, staged, folder / "first.log")
    project = _other_project(staged, other, folder / "project")
    its = Workbench(project_folder=project, host=bench.engine.endpoint)
    must((ENVBUILD, "lock", staged.target.env.name, "--project", str(project)))
    second = _wheels(its, stage(its, prepare(its, staged.target.env.name), folder / "other"), folder / "second.log")
    same = 0
    while same < min(len(first.layers), len(second.layers)) and first.layers[same] == second.layers[same]:
        same += 1
    through_torch = len(first.layers) - first.steps_after_torch
    yes = second.torch == "cached" and same >= through_torch
    return Answer(
        name="another DeepSpeed leaves torch alone",
        yes=yes,
        against=f"the same row with DeepSpeed {other} (locked for this), built up to the stage `wheels`",
        note=f"BuildKit on torch's step: {second.torch.upper()}. Common layers: {same} of {len(first.layers)}, "
        f"torch's is number {through_torch}. Locks differ in: {_changes(staged, project)}.",
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Wheels:
    torch: str
    layers: tuple[str, ...]
    steps_after_torch: int


def _wheels(bench: Workbench, staged: Staged, log: Path) -> _Wheels:
    """Build up to the stage `wheels`: how torch's step went, and the layers."""
    tag = f"envbuild-bench/wheels:{staged.target.rendering.id8}"
    ended: dict[str, str] = {}

    def sink(event: Event) -> None:
        # A step's CACHED is its last word; an earlier DONE may belong to one part of it only.
        if isinstance(event, StepDone):
            ended[event.name] = event.status

    bench.engine.build(staged.request(tag, stage="wheels"), sink=sink, log=log, timeout=BUILD_SECONDS)
    info = bench.engine.image(tag)
    bench.engine.untag(tag)
    steps = {int(found[1]): name for name in ended if (found := _WHEELS_STEP.match(name))}
    torch = [number for number, name in steps.items() if _TORCH_STEP in name]
    if info is None or not torch:
        raise EngineError("the build output names no step that installs torch")
    return _Wheels(torch=ended[steps[torch[0]]], layers=info.diff_ids, steps_after_torch=max(steps) - torch[0])


def _other_project(staged: Staged, version: str, folder: Path) -> Path:
    """A project with the same row and another DeepSpeed."""
    document = yaml.safe_load((_HERE.parent / "matrix.yaml").read_text())
    name = staged.target.env.name
    row = document["environments"][name]
    row["deepspeed"] = {**row["deepspeed"], "version": version}
    folder.mkdir()
    (folder / "matrix.yaml").write_text(yaml.safe_dump({**document, "environments": {name: row}}))
    return folder


def _changes(staged: Staged, project: Path) -> str:
    before = {package.name: package.version for package in staged.target.lock.packages}
    after = json.loads((project / "images" / staged.target.env.name / "lock.json").read_text())
    now = {package["name"]: package["version"] for package in after["packages"]}
    return ", ".join(sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name))) or "none"
