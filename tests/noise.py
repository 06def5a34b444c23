"""Logs as they come: a failure among hundreds of lines of a healthy run, with prefixes, colours, bars and wraps."""

from __future__ import annotations

import random
import textwrap
from collections.abc import Callable

_LINES: tuple[Callable[[random.Random, int], str], ...] = (
    lambda dice, at: f"node{dice.randrange(4)}:{4000 + dice.randrange(99)}:{5000 + dice.randrange(99)} [{dice.randrange(8)}] NCCL INFO Channel {dice.randrange(16):02d}/0 : 0[1a000] -> 1[1b000] via P2P/IPC/read",
    lambda dice, at: f"{{'loss': {dice.random() * 9:.4f}, 'grad_norm': {dice.random():.5f}, 'learning_rate': 9.6e-06, 'epoch': {at / 250:.2f}}}",
    lambda dice, at: f"step {at} loss {dice.random() * 9:.4f} samples/sec={dice.random() * 99:.3f} memory=31 GB",
    lambda dice, at: "/data/env/lib/python3.10/site-packages/torch/utils/checkpoint.py:460: UserWarning: torch.utils.checkpoint: the use_reentrant parameter should be passed explicitly.",
    lambda dice, at: "  warnings.warn(",
    lambda dice, at: f"MemAllocated {dice.random() * 9:.2f} GB, CacheReserved {dice.random() * 9:.2f} GB",
    lambda dice, at: "[INFO] [real_accelerator.py:203:get_accelerator] Setting ds_accelerator to cuda (auto detect)",
    lambda dice, at: "[WARNING] [config_utils.py:69:_process_deprecated_field] Config parameter cpu_offload is deprecated use offload_optimizer instead",
    lambda dice, at: f"Loading checkpoint shards: {dice.randrange(100)}%|####      | {dice.randrange(4)}/4 [00:03<00:02,  1.2s/it]",
    lambda dice, at: "Special tokens have been added in the vocabulary, make sure the associated word embeddings are fine-tuned or trained.",
    lambda dice, at: f"total_params={dice.randrange(10**9)} world_size=8",
    lambda dice, at: "",
)  # fmt: skip
_PREFIXES: tuple[Callable[[random.Random], str], ...] = (
    lambda dice: "",
    lambda dice: f"[rank{dice.randrange(8)}]: ",
    lambda dice: f"[default{dice.randrange(8)}]:",
    lambda dice: f"[{dice.randrange(8)}]:",
    lambda dice: f" {dice.randrange(8)}: ",
    lambda dice: f"{dice.randrange(64)}: ",
    lambda dice: f"[1,{dice.randrange(8)}]<stderr>:",
    lambda dice: f"node{dice.randrange(8)}: ",
    lambda dice: f"worker-{dice.randrange(8)}: ",
    lambda dice: f"(RayTrainWorker pid={dice.randrange(9999)}, ip=10.0.0.{dice.randrange(9)}) ",
    lambda dice: f"Nov 30 10:00:{dice.randrange(60):02d} host{dice.randrange(8)} train[{dice.randrange(9999)}]: ",
    lambda dice: f"2026-11-30T10:00:{dice.randrange(60):02d}.123456789Z stderr F ",
    lambda dice: f"[2026-11-30 10:00:{dice.randrange(60):02d},123] ",
    lambda dice: f"2026-11-30 10:00:{dice.randrange(60):02d} ",
)
WIDTHS = (0, 80, 100, 120)


def noisy(text: str, seed: int, *, around: int = 250) -> bytes:
    """A failure's text among ``around`` lines on either side; the same for the same seed.

    One author writes the failure. How it is wrapped, coloured and prefixed is drawn: not at all, by the terminal after
    the prefix was put before it, or before (each part has it); at letters or at words.
    """
    dice = random.Random(seed)
    prefix = dice.choice(_PREFIXES)
    own = prefix(dice)
    width = dice.choice(WIDTHS)
    by_words = dice.random() < 0.25
    prefix_last = dice.random() < 0.5
    coloured = dice.random() < 0.4
    end = dice.choice(("\n", "\n", "\n", "\r\n"))
    made: list[str] = []

    def say(line: str, author: str, *, red: bool = False) -> None:
        if red and coloured:
            line = f"\x1b[31;1m{line}\x1b[0m"
        whole = line if prefix_last else author + line
        parts = [whole]
        if width:
            if by_words:
                # What a pager does: it breaks at blanks, and long words only where it has to.
                parts = textwrap.wrap(whole, width, drop_whitespace=True, break_on_hyphens=False) or [""]
            else:
                parts = [whole[at : at + width] for at in range(0, len(whole), width)] or [""]
        made.extend((author if prefix_last else "") + part + end for part in parts)

    for at in range(around):
        say(dice.choice(_LINES)(dice, at), prefix(dice))
    if dice.random() < 0.5:
        made.append("".join(f"\r {done}%|####| {done}/100 [00:01<00:02, 1.2it/s]" for done in range(0, 100, 7)) + end)
    for line in text.splitlines():
        say(line, own, red=True)
    for at in range(around, 2 * around):
        say(dice.choice(_LINES)(dice, at), prefix(dice))
    return "".join(made).encode()
