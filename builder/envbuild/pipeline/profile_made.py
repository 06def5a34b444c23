"""How a training was started, as its measurement keeps it, and back again. Pure."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from envbuild.pipeline.gates import ALL
from envbuild.pipeline.profile_wish import Wish
from envbuild.profile.document import Delay, Made
from envbuild.site.urls import mask

HIDDEN = "***"
_SECRET = re.compile(r"token|passw|secret|credential|api[-_]?key|access[-_]?key", re.IGNORECASE)
_LONGEST = 400


def made_of(wish: Wish, ds_config: dict[str, Any], *, image: str | None = None, python: str | None = None) -> Made:
    """What a measurement says of its own start: without secrets, for others read it."""
    return Made(
        image=_line(image), python=_line(python), model=wish.model, length=wish.length, steps=wish.steps,
        warmup=wish.warmup, seed=wish.seed, ds_config=ds_config, env=tuple(_shown(each) for each in wish.env),
        slow_data=_delay(wish.slow_data), straggle=_delay(wish.straggle), checkpoint_every=wish.checkpoint_every,
        ranks=wish.ranks, threads=wish.threads, gpus=wish.gpus, disk=_line(str(wish.disk)) if wish.disk else None,
        timeout=wish.timeout,
    )  # fmt: skip


def wish_of(made: Made) -> Wish:
    """The same start again."""
    return Wish(
        model=made.model, length=made.length, steps=made.steps, warmup=made.warmup, seed=made.seed,
        ds_config=made.ds_config, env=made.env, slow_data=_waited(made.slow_data), straggle=_waited(made.straggle),
        checkpoint_every=made.checkpoint_every, ranks=made.ranks, threads=made.threads, gpus=made.gpus or ALL,
        disk=Path(made.disk) if made.disk else None, timeout=made.timeout or Wish().timeout,
    )  # fmt: skip


def _shown(setting: str) -> str:
    name, _, value = setting.partition("=")
    hidden = _SECRET.search(name) or len(setting) > _LONGEST or not value.isprintable() or mask(value) != value
    return f"{name[:_LONGEST]}={HIDDEN if hidden else value}"


def _line(text: str | None) -> str | None:
    return "".join(letter if letter.isprintable() else "?" for letter in text)[:500] if text is not None else None


def _delay(wait: tuple[float, int | None]) -> Delay | None:
    return Delay(milliseconds=wait[0], rank=wait[1]) if wait[0] else None


def _waited(delay: Delay | None) -> tuple[float, int | None]:
    return (delay.milliseconds, delay.rank) if delay is not None else (0.0, None)
