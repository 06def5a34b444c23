"""Many rows: what rows that differ in DeepSpeed alone cost together, on the disk and in time.

The rows stand on a name of the base that this run makes up. No cache of an earlier build goes by it, so that every
build of this run begins with none, and nobody else's cache is thrown away for it.
"""

from __future__ import annotations

import json
import re
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import yaml
from commands import ENVBUILD, ROOT
from figures import Ratio
from staging import BUILD_SECONDS, must, stage

from envbuild import base
from envbuild.engines.buildkit import PlainParser
from envbuild.errors import EngineError
from envbuild.events import StepDone
from envbuild.pipeline.prepare import prepare
from envbuild.pipeline.workbench import Workbench

ROW = "cpu"
# The C++ of the ops is the same in the first two, and in no other two neighbours from 0.18.9 to 0.19.8 (compared in the
# archives on PyPI). That all of them compile with the torch of the row was not tried: one that does not ends the run.
DEEPSPEED = ("0.19.0", "0.19.1", "0.19.8", "0.19.7", "0.19.6", "0.19.5", "0.19.4", "0.19.3")
# The two ops that training on the CPU cannot do without: a build takes minutes. Before 0.19.8 the second one has
# AVX-512 and does not ask the CPU: rows that claim less would be refused, rightly.
OPS, CPU = ["cpu_adam", "deepspeed_shm_comm"], "x86-64-v4"
# The limits are those of all eight.
DISK_LIMIT, TOGETHER_LIMIT, OPS_LIMIT = 0.35, 0.8, 0.5
_COMPILES = re.compile(r"\[(?:\S+ )?ops \d+/\d+\] RUN .*: compile ", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Built:
    """One build of all rows: wall time, and the seconds of each row's compiling step, in the order of the rows."""

    seconds: float
    ops: tuple[float, ...]
    images: tuple[str, ...]


def measures(bench: Workbench, folder: Path, count: int) -> list[Ratio]:
    """Disk, time of two at once, and the ops of a second release, for ``count`` rows."""
    names = [f"bench-{version.replace('.', '-')}" for version in DEEPSPEED[:count]]
    alone, together = folder / "alone", folder / "together"
    with _project(bench, alone, names) as first, _project(bench, together, names) as second:
        one = _build(first, alone, names, at_once=1)
        disk = _disk(first, alone, names, one)
        two = _build(second, together, names, at_once=2)
    return [
        disk,
        Ratio(
            name=f"{count} rows, -j 2", ours=(two.seconds,), reference=(one.seconds,),
            against="the same rows with -j 1; both begin without a cache of packages, layers or compiled files",
            limit=TOGETHER_LIMIT,
        ),
        Ratio(
            name="ops of a second DeepSpeed release", ours=one.ops[1:2], reference=one.ops[:1],
            against=f"the ops of the first one (DeepSpeed {DEEPSPEED[1]} after {DEEPSPEED[0]}, -j 1)", limit=OPS_LIMIT,
            note=f"Seconds of the compiling step, row by row: {', '.join(f'{each:.0f}' for each in one.ops)}.",
        ),
    ]  # fmt: skip


@contextmanager
def _project(bench: Workbench, folder: Path, names: list[str]) -> Iterator[Workbench]:
    """A project of these rows, with locks, on a base whose name nobody has used."""
    reference = f"envbuild-bench/base:{secrets.token_hex(6)}"
    env = bench.matrix.get(ROW)
    used = base.ensure(bench.engine, env, site=bench.site, apt=bench.apt_for(env), sink=bench.sink)
    bench.engine.tag(used.reference, reference)
    document = yaml.safe_load((ROOT / "matrix.yaml").read_text())
    row = document["environments"][ROW]
    rows = {
        name: {**row, "base": {"image": reference}, "cpu_baseline": CPU,
               "deepspeed": {"version": version, "ops": OPS}}
        for name, version in zip(names, DEEPSPEED, strict=False)
    }  # fmt: skip
    folder.mkdir(parents=True)
    (folder / "matrix.yaml").write_text(yaml.safe_dump({**document, "environments": rows}))
    must((ENVBUILD, "lock", *names, "--project", str(folder)))
    its = Workbench(project_folder=folder, host=bench.engine.endpoint)
    try:
        yield its
    finally:
        for name in names:
            for info in its.engine.images(f"envbuild/{name}:*"):
                for tag in info.repo_tags:
                    its.engine.untag(tag)
        its.engine.untag(reference)


def _build(bench: Workbench, folder: Path, names: list[str], *, at_once: int) -> _Built:
    home = folder / "home"
    began = time.monotonic()
    done = must(
        (ENVBUILD, "build", *names, "-j", str(at_once), "--json", "--project", str(folder)),
        env={"ENVBUILD_HOME": str(home), "DOCKER_HOST": bench.engine.endpoint},
    )
    seconds = time.monotonic() - began
    images = json.loads(done.stdout)["images"]
    logs = [next((home / "cache" / "logs").glob(f"{name}-*.log")) for name in names]
    return _Built(
        seconds=seconds, ops=tuple(map(_ops_seconds, logs)), images=tuple(str(image["id"]) for image in images)
    )


def _ops_seconds(log: Path) -> float:
    """How long the step that compiles took, as BuildKit says."""
    parser = PlainParser()
    ended = [
        event.seconds
        for line in log.read_text(errors="replace").splitlines()
        for event in parser.feed(line)
        if isinstance(event, StepDone) and event.status == "done" and _COMPILES.match(event.name)
    ]
    if not ended:
        raise EngineError(f"{log} names no step that compiles the ops")
    return ended[-1]


def _disk(bench: Workbench, folder: Path, names: list[str], built: _Built) -> Ratio:
    """What the images take together, against as many naive ones that share nothing."""
    staged = stage(bench, prepare(bench, names[0]), folder / "staged")
    naive = f"envbuild-bench/naive:{secrets.token_hex(4)}"
    dockerfile = Path(__file__).resolve().parent / "naive" / "Dockerfile"
    bench.engine.build(staged.request(naive, dockerfile=dockerfile), log=folder / "naive.log", timeout=BUILD_SECONDS)
    try:
        info = bench.engine.image(naive)
        alone = info.size if info else 0
    finally:
        bench.engine.untag(naive)
    infos = [info for info in map(bench.engine.image, built.images) if info is not None]
    common = _common_bytes(bench, infos[0].id, _common_layers([info.diff_ids for info in infos]))
    together = common + sum(info.size - common for info in infos)
    return Ratio(
        name=f"disk of {len(infos)} rows", ours=(float(together),), reference=(float(alone * len(infos)),),
        against="as many naive images (bench/naive/Dockerfile) that share nothing",
        limit=DISK_LIMIT if len(names) == len(DEEPSPEED) else 1.0, bytes=True,
        note=f"They have {common / 1e6:.0f} MB in common, of {infos[0].size / 1e6:.0f} MB each; a naive one has "
        f"{alone / 1e6:.0f} MB.",
    )  # fmt: skip


def _common_layers(layers: list[tuple[str, ...]]) -> int:
    """How many layers all of them begin with."""
    count = 0
    for each in zip(*layers, strict=False):
        if len(set(each)) > 1:
            break
        count += 1
    return count


def _common_bytes(bench: Workbench, image: str, layers: int) -> int:
    """The size of an image's first layers, as its history has them."""
    line = (bench.engine.any_client(), "--host", bench.engine.endpoint, "history", "--no-trunc", "--human=false")
    said = must((*line, "--format", "{{.Size}} {{.CreatedBy}}", image)).stdout.splitlines()
    # Newest first. What has no bytes is metadata, or an empty layer at the end, which is nobody's in common.
    sizes = [size for line in reversed(said) if (size := int(line.split()[0]))]
    return sum(sizes[:layers])
