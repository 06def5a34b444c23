"""A training that is measured over several nodes: what is submitted."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from envbuild.errors import InputError
from envbuild.executors import ranks, values
from envbuild.judge.suite import probes_folder
from envbuild.model import Frozen, Line
from envbuild.pipeline import cluster, collective
from envbuild.pipeline.gates import ALL
from envbuild.pipeline.planned import Planned
from envbuild.pipeline.profile_made import made_of
from envbuild.pipeline.profile_wish import PROBES, Pass, Wish, argv_of, given, nvml_file, profiler_folder
from envbuild.pipeline.training_config import training_config
from envbuild.pipeline.workbench import Workbench
from envbuild.pipeline.works import Work
from envbuild.profile.document import Made

_FILE, _SCRIPT = "spread.json", "train.sh"
# What the ranks say lies there, in the folder of the attempt.
SAID = "said"
# Away from the all-reduce's ports, which may not be free again at once, and from those that the kernel gives away.
_PORTS = 10000
# Most that nodes may take until they have added; a training has its own limit.
_CHECK_SECONDS = 600.0


class Spread(Frozen):
    """What the first node has to know: how ranks are started, and what they train.

    Attributes:
        patience, timeout: Seconds for the all-reduce, and for the training.
        check, train: The lines that start the ranks of the all-reduce, and those that are measured.
        made: With what it is started, as the measurement keeps it.
        notes: What was changed in the ds_config.
    """

    image: str
    row: str
    container: str
    accelerator: Literal["cpu", "cuda"]
    world: int
    nodes: int
    seed: int
    patience: float
    timeout: float
    check: tuple[str, ...]
    train: tuple[str, ...]
    passes: tuple[Pass, ...]
    made: Made
    micro_batch: int
    accumulation: int
    label: Line | None = None
    notes: tuple[str, ...] = ()


def plan(
    bench: Workbench,
    image: str,
    row: str | None,
    wish: Wish,
    *,
    nodes: int,
    per_node: int | None,
    seed: int,
    program: tuple[str, ...],
    now: datetime.datetime,
    out: Path | None = None,
) -> Planned:
    """A run of one job over several nodes. Writes nothing.

    Raises:
        InputError: It is not known which row the image is of, the site's settings are not enough for it, or such a
            training cannot be measured over several nodes.
    """
    env = collective.row_of_nodes(bench, image, row)
    _need_spreadable(wish, env.accelerator, per_node)
    config = training_config(
        wish.ds_config, accelerator=env.accelerator, settings=wish.settings, micro_batch=wish.micro_batch, disk="/tmp",
    )  # fmt: skip
    if config.swaps:
        raise InputError(
            "an offload to a disk is measured on one node", hint="Leave --nodes out, or offload to the cpu."
        )
    planned = cluster.plan(
        bench, "profile", [Work(name=image, row=env.name, argv=(), values=given(wish))], program=program, now=now,
        out=out,
    )  # fmt: skip
    folder = planned.folder.path
    limit = min(wish.timeout, _CHECK_SECONDS)
    check = collective.launch_of(bench, env, image, folder, nodes=nodes, seed=seed, timeout=limit, per_node=per_node)
    nvml = nvml_file() if env.accelerator == "cuda" else None
    argv = argv_of(
        wish, config, env.accelerator, check.world, python=collective.PYTHON, place=f"{ranks.PLACE}/profiler",
        probes=f"{ranks.PLACE}/probes", nvml=f"{ranks.PLACE}/pynvml.py" if nvml else "",
    )  # fmt: skip
    named = values.path_of(folder, 0) if wish.env else None
    train = ranks.again(check, (*argv, "--join", str(check.per_node)), said=SAID, ports=_PORTS, values=named)
    spread = Spread(
        image=check.image, row=env.name, container=check.container, accelerator=env.accelerator, world=check.world,
        nodes=nodes, seed=seed, patience=limit, timeout=wish.timeout, check=ranks.srun(check, folder / "rank.sh"),
        train=ranks.srun(train, folder / _SCRIPT), passes=wish.passes,
        made=made_of(wish, config.values, image=check.image),
        micro_batch=config.values["train_micro_batch_size_per_gpu"],
        accumulation=config.values["gradient_accumulation_steps"], label=wish.label, notes=config.notes,
    )  # fmt: skip
    files = (
        *collective.files_of(check),
        (_SCRIPT, ranks.rank(train)),
        *((f"inside/{name}", text) for name, text in _programs(nvml)),
        (_FILE, spread.model_dump_json(indent=2) + "\n"),
    )
    return collective.over_nodes(planned, check, ("spread", "--json", *_flags(bench), str(folder / _FILE)), files)


def _need_spreadable(wish: Wish, accelerator: str, per_node: int | None) -> None:
    if wish.ranks is not None:
        raise InputError("--ranks is of one node", hint="With --nodes say --ranks-per-node; a GPU has one rank anyway.")
    if per_node is not None and accelerator == "cuda":
        raise InputError(
            "--ranks-per-node is for the CPU", hint="On GPUs there is one rank for each that [slurm.gpus] asks for."
        )
    if wish.gpus != ALL:
        raise InputError("--gpus is of one node", hint="How many a node gives is said by [slurm.gpus].")
    if wish.checkpoint_every or wish.disk:
        name = "--checkpoint-every" if wish.checkpoint_every else "--disk"
        raise InputError(
            f"{name} is measured on one node: the ranks' containers share no folder", hint="Leave --nodes out."
        )


def _flags(bench: Workbench) -> tuple[str, ...]:
    own = None if bench.project.packaged else bench.project.root.resolve()
    return (f"--project={own}",) if own is not None else ()


def _programs(nvml: Path | None) -> Iterator[tuple[str, str]]:
    """What a rank runs, by its place in the folder that its container sees."""
    for path in sorted(profiler_folder().glob("*.py")):
        yield f"profiler/{path.name}", path.read_text(encoding="utf-8")
    for name in PROBES:
        yield f"probes/{name}", (probes_folder() / name).read_text(encoding="utf-8")
    if nvml is not None:
        yield "pynvml.py", nvml.read_text(encoding="utf-8")


def read(path: Path) -> Spread:
    """What a run's folder says.

    Raises:
        InputError: It says nothing of the kind.
    """
    try:
        return Spread.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        raise InputError(f"{path}: not the plan of a run over several nodes: {error}") from error
