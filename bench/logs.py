"""How long `envbuild diagnose` reads a large log, against `grep -F` with as many literals; and its peak of memory."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path

from commands import ENVBUILD, ROOT
from figures import Answer, Measure, Ratio

from envbuild import project
from envbuild.diagnose import load
from envbuild.errors import EngineError

# Bytes of log, and how far a process may grow.
SIZE = 1 << 30
_MOST_MEMORY = 200 << 20
_LINES = (
    "[2026-11-30 10:{0:02d}:{1:02d},{2:03d}] [INFO] [logging.py:96:log_dist] [Rank 0] step={3}, lr=[1e-05], mom=[(0.9, 0.999)]",
    "[rank{4}]: {{'loss': {5:.4f}, 'grad_norm': {6:.5f}, 'learning_rate': 9.6e-06, 'epoch': {7:.2f}}}",
    "node{4}:1234:5678 [{4}] NCCL INFO Channel {1:02d}/0 : 0[1a000] -> 1[1b000] via P2P/IPC/read",
    "/data/env/lib/python3.10/site-packages/torch/nn/parallel/distributed.py:{2}: UserWarning: find_unused_parameters=True was specified in the constructor of DistributedDataParallel, and no unused parameters were found in the forward pass",
    " {0}%|####      | {3}/10000 [01:02<03:04,  1.2s/it]",
    "epoch {0} step {3} loss {5:.4f} samples/sec={6:.3f} time={7:.2f} memory={1} GB allocated, reserved, cached",
)  # fmt: skip
_CAUSE = "[rank3]: ImportError: /opt/conda/lib/libstdc++.so.6: version `GLIBCXX_3.4.30' not found (required by /data/ops/cpu_adam.so)"


def diagnose(folder: Path, rounds: int) -> list[Measure]:
    """Time against grep, and peak memory, for one log of a gibibyte with a known cause near its end."""
    log, literals = folder / "train.log", folder / "literals"
    _write(log)
    known = load(project.find(ROOT, ROOT).signatures).literals
    # grep takes one literal a line.
    literals.write_bytes(b"\n".join(each for each in known if b"\n" not in each) + b"\n")
    grep = ("grep", "-c", "-F", "-f", str(literals), str(log))
    ours: list[float] = []
    reference: list[float] = []
    peak = 0
    for turn in range(rounds + 1):
        spent, _ = _run(grep)
        mine, memory = _run((ENVBUILD, "diagnose", "--quiet", str(log)))
        peak = max(peak, memory)
        if turn:  # the first one warms the cache
            reference.append(spent)
            ours.append(mine)
    return [
        Ratio(
            name="envbuild diagnose, 1 GiB of log",
            ours=tuple(ours),
            reference=tuple(reference),
            against=f"LC_ALL=C grep -c -F -f with the same {len(known)} literals, on a warm cache",
            limit=2.0,
            note=f"Peak of memory: {peak >> 20} MiB.",
        ),
        Answer(
            name="envbuild diagnose in less than 200 MiB",
            yes=peak < _MOST_MEMORY,
            against="the resident set of the process",
            note=f"Peak: {peak >> 20} MiB.",
        ),
    ]


def _write(path: Path) -> None:
    dice = random.Random(5)
    lines = [
        dice.choice(_LINES).format(
            dice.randrange(60), dice.randrange(60), dice.randrange(1000), dice.randrange(10**6), dice.randrange(8),
            dice.random() * 9, dice.random() * 99, dice.random() * 3,
        )
        for _ in range(20_000)
    ]  # fmt: skip
    written = 0
    with path.open("w") as file:
        while written < SIZE:
            dice.shuffle(lines)
            written += file.write("\n".join(lines) + "\n")
        file.write(_CAUSE + "\n")


def _run(argv: tuple[str, ...]) -> tuple[float, int]:
    """Seconds, and the peak of the resident set in bytes."""
    began = time.monotonic()
    # Into a pipe: grep that writes to /dev/null stops at the first line that it finds.
    child = subprocess.Popen(
        argv, cwd=ROOT, env={**os.environ, "LC_ALL": "C"}, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert child.stdout is not None
    with child.stdout as output:
        output.read()
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    spent = time.monotonic() - began
    if child.returncode != 1 and argv[0] == ENVBUILD or child.returncode not in (0, 1):
        raise EngineError(f"{' '.join(argv)} ended with exit code {child.returncode}")
    return spent, usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
