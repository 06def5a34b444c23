"""What a runtime image weighs against the one that a tutorial leads to."""

from __future__ import annotations

import shutil
from pathlib import Path

from figures import Ratio
from staging import BUILD_SECONDS, Staged

from envbuild.errors import EngineError
from envbuild.pipeline.workbench import Workbench

_HERE = Path(__file__).resolve().parent
LIMITS = {"cpu": 0.75, "h200-cu130": 0.7}


def runtime_size(bench: Workbench, staged: Staged, proven: str, folder: Path) -> Ratio:
    """The proven image of a row against bench/naive/Tutorial.Dockerfile.

    Raises:
        EngineError: One of the two is not there, or the other one cannot be built.
    """
    row = staged.target.env.name
    naive = f"envbuild-bench/tutorial-{row}:latest"
    extra = staged.context / "bench"
    extra.mkdir(exist_ok=True)
    for source in (_HERE / "train.py", _HERE / "naive" / "serve.py"):
        shutil.copy(source, extra)
    dockerfile = _HERE / "naive" / "Tutorial.Dockerfile"
    bench.engine.build(staged.request(naive, dockerfile=dockerfile), log=folder / "tutorial.log", timeout=BUILD_SECONDS)
    try:
        ours, theirs = bench.engine.image(proven), bench.engine.image(naive)
    finally:
        bench.engine.untag(naive)
    if ours is None or theirs is None:
        raise EngineError(f"there is no image {proven if ours is None else naive}")
    return Ratio(
        name=f"size of {row}", ours=(float(ours.size),), reference=(float(theirs.size),), bytes=True,
        against="bench/naive/Tutorial.Dockerfile: same base, same wheels, with compilers, package lists, pip's cache "
        "and what the first step compiled left in it",
        limit=LIMITS[row],
    )  # fmt: skip
