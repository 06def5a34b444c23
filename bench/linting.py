"""What a lint of one file costs: next to importing typer and pydantic, which any such program has to."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from commands import ENVBUILD
from figures import Ratio

# `import pydantic` alone imports next to nothing of it; whoever uses it, as typer does for every option, needs these.
IMPORTS = "import typer; from pydantic import BaseModel, TypeAdapter"
_TURNS = 9
CONFIG = {
    "train_micro_batch_size_per_gpu": 1,
    "gradient_accumulation_steps": 8,
    "gradient_clipping": 1.0,
    "bf16": {"enabled": True},
    "optimizer": {"type": "AdamW", "params": {"lr": 2e-5, "betas": [0.9, 0.95], "weight_decay": 0.1}},
    "zero_optimization": {
        "stage": 3,
        "overlap_comm": True,
        "contiguous_gradients": True,
        "reduce_bucket_size": 5e8,
        "sub_group_size": 1e9,
        "stage3_max_live_parameters": 1e9,
        "stage3_gather_fp16_weights_on_model_save": True,
        "offload_optimizer": {"device": "cpu", "pin_memory": True},
        "offload_param": {"device": "cpu", "pin_memory": True},
    },
    "zero_optimisation": {},
}


def linting(scratch: Path, rounds: int) -> Ratio:
    """Whole processes, in turn; the floor is two imports and nothing else."""
    path = scratch / "ds_config.json"
    path.write_text(json.dumps(CONFIG, indent=2))
    # Both sides find their modules compiled, as an installed program does.
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    env["PYTHONPYCACHEPREFIX"] = str(scratch / "compiled")
    commands = {
        "ours": (ENVBUILD, "lint", str(path)),
        "floor": (sys.executable, "-c", IMPORTS),
        "bare": (sys.executable, "-c", "import typer, pydantic"),
    }
    medians: dict[str, list[float]] = {name: [] for name in commands}
    for command in commands.values():
        _seconds(command, env)
    for _ in range(rounds):
        seconds: dict[str, list[float]] = {name: [] for name in commands}
        for _ in range(_TURNS):
            for name, command in commands.items():
                seconds[name].append(_seconds(command, env))
        for name, values in seconds.items():
            medians[name].append(statistics.median(values))
    bare = statistics.median(one / other for one, other in zip(medians["ours"], medians["bare"], strict=True))
    return Ratio(
        name="envbuild lint, one file",
        ours=tuple(medians["ours"]),
        reference=tuple(medians["floor"]),
        against=f"a process that does `{IMPORTS}` and ends",
        limit=2.0,
        note=f"Against `import typer, pydantic`, which leaves pydantic's core unread: {bare:.2f}.",
    )


def _seconds(command: tuple[str, ...], env: dict[str, str]) -> float:
    began = time.monotonic()
    done = subprocess.run(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    # A finding is what the file is there for.
    assert done.returncode in (0, 1), command
    return time.monotonic() - began
