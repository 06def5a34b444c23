"""An all-reduce with a known answer over several nodes: what is launched in an image, and whether it came out right."""

from __future__ import annotations

import dataclasses
import datetime
import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envbuild import executors, process, store
from envbuild.errors import EngineError, InputError
from envbuild.executors import ranks, slurm
from envbuild.executors.ranks import Launch
from envbuild.model import Environment, Finding, Severity
from envbuild.pipeline import cluster
from envbuild.pipeline.names import names
from envbuild.pipeline.planned import Planned
from envbuild.pipeline.prepare import prepare
from envbuild.pipeline.sizes import parse_size
from envbuild.pipeline.workbench import Workbench
from envbuild.pipeline.works import Work

ELEMENTS, REPEAT = 65_536, 5
PYTHON = "/opt/venv/bin/python"
PROGRAM = "allreduce.py"
_SCHEMA = "envbuild.probe.allreduce/1"
_LINES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What the ranks' documents are held to."""

    world: int
    nodes: int
    seed: int


def plan(
    bench: Workbench,
    image: str,
    row: str | None,
    *,
    nodes: int,
    seed: int,
    timeout: float,
    program: tuple[str, ...],
    now: datetime.datetime,
) -> Planned:
    """A run of one job over several nodes. Writes nothing.

    Raises:
        InputError: It is not known which row the image is of, or the site's settings are not enough for it.
    """
    env = row_of_nodes(bench, image, row)
    planned = cluster.plan(
        bench, "smoke", [Work(name=image, row=env.name, argv=())], program=program, now=now
    )  # fmt: skip
    launch = launch_of(bench, env, image, planned.folder.path, nodes=nodes, seed=seed, timeout=timeout)
    argv = (
        "collective", "--json", f"--world={launch.world}", f"--nodes={nodes}", f"--seed={seed}",
        f"--timeout={timeout}", "--", *ranks.srun(launch, planned.folder.path / "rank.sh"),
    )  # fmt: skip
    return over_nodes(planned, launch, argv, files_of(launch))


def row_of_nodes(bench: Workbench, image: str, row: str | None) -> Environment:
    """The row that says what a node is asked for.

    Raises:
        InputError: It is not known which row the image is of.
    """
    if row is None:
        raise InputError(f"{image} does not say which row it is", hint="Say it: --row ENV")
    return bench.matrix.get(row)


def launch_of(
    bench: Workbench, env: Environment, image: str, folder: Path, *, nodes: int, seed: int, timeout: float,
    per_node: int | None = None,
) -> Launch:  # fmt: skip
    """How the ranks of an all-reduce are started: one for each GPU of a node; on the CPU one, or as many as are said.

    Raises:
        InputError: The site's settings are not enough for the row.
    """
    site = bench.site.slurm
    gpus = ranks.gpus_of(slurm.resources(site, env).gres) if env.accelerator == "cuda" else 0
    if image in bench.matrix.environments:
        # An engine on a node knows images by their names; a row's is what its current inputs build.
        image = names(env, prepare(bench, image, checked=False).rendering.id8, bench.site.registry.name).proven
    return Launch(
        container=site.container, image=image, inside=folder / "inside", nodes=nodes, per_node=per_node or gpus or 1,
        shm_bytes=parse_size(env.shm_size), gpus=bool(gpus), interface=site.interface,
        host=bench.site.engine.host,
        argv=rank_argv(ranks.PLACE, env.accelerator, seed=seed, timeout=timeout),
    )  # fmt: skip


def files_of(launch: Launch) -> tuple[tuple[str, str], ...]:
    """What its ranks need in the run's folder."""
    return ("rank.sh", ranks.rank(launch)), (f"inside/{PROGRAM}", program_text())


def over_nodes(planned: Planned, launch: Launch, argv: tuple[str, ...], files: tuple[tuple[str, str], ...]) -> Planned:
    """A run of one task that gets several nodes; ``argv`` is what envbuild does on the first of them."""
    (array,) = planned.run.submissions
    *head, script = array.argv
    asked = (*head, f"--nodes={launch.nodes}", f"--ntasks-per-node={launch.per_node}", script)
    tasks = tuple(task.model_copy(update={"argv": argv}) for task in planned.run.tasks)
    run = planned.run.model_copy(update={"tasks": tasks, "submissions": (array.model_copy(update={"argv": asked}),)})
    return dataclasses.replace(planned, run=run, files=files)


def program_text() -> str:
    """The program that each rank runs."""
    return (Path(executors.__file__).with_name("inside") / PROGRAM).read_text(encoding="utf-8")


def rank_argv(place: str, accelerator: str, *, seed: int, timeout: float) -> tuple[str, ...]:
    """Its command line in an image, in which it lies at ``place``."""
    return (
        PYTHON, "-I", f"{place}/{PROGRAM}", "--accelerator", accelerator, "--seed", str(seed),
        "--elements", str(ELEMENTS), "--repeat", str(REPEAT), "--timeout", str(int(timeout)),
    )  # fmt: skip


def carry_out(folder: Path, argv: Sequence[str], expected: Expected, *, timeout: float) -> tuple[list[Finding], Any]:
    """Start the ranks and hear them out; returns what is wrong, and the ranks' own documents.

    Args:
        folder: A folder that every node sees; ``ranks/`` in it gets a file for each rank.

    Raises:
        EngineError: They cannot be started.
    """
    said_by = store.make_folder(folder / "ranks")
    # srun says itself which task ended how; that matters where a rank left no document.
    said: list[str] = []
    try:
        code = process.stream(argv, on_line=said.append, cwd=folder, timeout=timeout)
    except process.TimedOut as error:
        raise EngineError(f"the ranks did not end within {timeout:.0f} s: {_ends(said_by)}") from error
    documents = [each for number in range(expected.world) if (each := _document(said_by / f"{number}.json"))]
    if code != 0 and len(documents) < expected.world:
        text = _ends(said_by) or " ".join(said[-_LINES:])
        return [_finding(f"srun ended with exit code {code}; {text}", f"All they said: {said_by}/*.txt")], documents
    return judge(documents, expected), documents


def judge(documents: Sequence[Mapping[str, Any]], expected: Expected) -> list[Finding]:
    """What is wrong with the sums that the ranks printed. A figure that is missing is wrong."""
    found = []
    missing = sorted(set(range(expected.world)) - {each.get("rank") for each in documents})
    if missing:
        ranks = ", ".join(map(str, missing))
        found.append(_finding(f"no figures of rank {ranks} (of {expected.world})", _NETWORK))
    nodes = {each.get("node") for each in documents} - {"", None}
    if not missing and len(nodes) != expected.nodes:
        names = ", ".join(sorted(map(str, nodes))) or "none"
        found.append(_finding(f"the ranks ran on {names}, not on {expected.nodes} nodes", _NETWORK))
    right = (expected.world, *answer(expected))
    wrong = [each for each in documents if (each.get("world"), each.get("values"), each.get("total")) != right]
    found += [
        _finding(
            f"rank {each.get('rank')} on {each.get('node')} got {each.get('total')} for the sum of all elements, which "
            f"is {right[-1]}", _WRONG,
        )
        for each in wrong
    ]  # fmt: skip
    return found


def answer(expected: Expected) -> tuple[list[float], float]:
    """What the sums are: some elements, and all of them together."""

    def element(place: int) -> int:
        return sum((place * (rank + 1) + expected.seed) % 1009 for rank in range(expected.world))

    return [float(element(number * 7919 % ELEMENTS)) for number in range(16)], float(sum(map(element, range(ELEMENTS))))


def summary(documents: Sequence[Mapping[str, Any]]) -> str:
    """The figures in a line."""
    first = documents[0]
    slowest = max(statistics.median(each["seconds"][1:] or each["seconds"]) for each in documents)
    joined = max(each["joined_seconds"] for each in documents)
    nodes = len({each["node"] for each in documents})
    return (
        f"{len(documents)} ranks on {nodes} nodes over {first['backend']}: the sums are right; joined in "
        f"{joined:.2f} s, {first['bytes'] / 1024:.0f} KiB in {slowest * 1000:.2f} ms"
    )


_WRONG = "The collective is wrong: another NCCL, driver or network plug-in than elsewhere. Do not train on these nodes."
_NETWORK = "Nodes have to reach one another: [slurm] interface names the network interface; a firewall may be between."


def _finding(message: str, fix: str) -> Finding:
    return Finding(
        rule="gate.collective", severity=Severity.ERROR, subject="all-reduce", message=message, fix=fix,
        source="an all-reduce over the nodes",
    )  # fmt: skip


def _document(path: Path) -> dict[str, Any] | None:
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        return None
    for line in reversed(lines):
        try:
            document = json.loads(line)
        except ValueError:
            continue
        if isinstance(document, dict) and document.get("schema") == _SCHEMA:
            return document
    return None


def _ends(said_by: Path) -> str:
    told = []
    for path in sorted(said_by.glob("*.txt")):
        text = path.read_text(errors="replace")
        # Slurm's own word about it comes last, and says nothing of why.
        lines = [line for line in text.splitlines() if line.strip() and not line.startswith("slurmstepd")]
        told += [f"rank {path.stem}: {' / '.join(lines[-_LINES:])}"] if lines else []
    return "; ".join(told[:4])
