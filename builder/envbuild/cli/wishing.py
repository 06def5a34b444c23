"""What the options of profile come to."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from envbuild.pipeline.profile_wish import Wish

_LONGEST = 200


def need_image(image: str | None, words: list[str], *, python: str | None, reads: bool) -> None:
    """Only what trains in an image goes to a cluster.

    Raises:
        InputError: Something else was asked for.
    """
    from envbuild.errors import InputError

    if reads:
        raise InputError("--from reads files, which runs here", hint="Leave --executor and --detach out.")
    if words:
        raise InputError(
            "a training of your own is started by a job of your own, and not by --executor slurm",
            hint=f"Put it into your job's script: envbuild profile -o m.json -- {shlex.join(words)}",
        )
    if python is not None or image is None:
        raise InputError(
            "--executor slurm measures an image; an interpreter is measured where it is", hint="envbuild profile ENV"
        )


def split(image: str | None, words: list[str]) -> tuple[str | None, list[str]]:
    """The image, and the command: what stands behind -- is the command, whatever it looks like."""
    from envbuild.errors import InputError

    behind = sys.argv[sys.argv.index("--") + 1 :] if "--" in sys.argv else []
    if not behind and words:
        raise InputError(
            f"'{words[0]}' follows the image without --", hint=f"envbuild profile {image} -- {shlex.join(words)}"
        )
    if not behind:
        return image, []
    before = [*([image] if image is not None else []), *words][: -len(behind)]
    if len(before) > 1:
        raise InputError(f"'{before[1]}' is one image too many", hint=f"envbuild profile {before[0]} -- ...")
    return (before[0] if before else None), behind


def wish(**said: Any) -> Wish:
    """What the options come to."""
    from envbuild import store
    from envbuild.errors import InputError
    from envbuild.pipeline.profile_wish import MODELS, PASSES, Wish

    passes, path = said.pop("passes") or ["timing", "comms"], said.pop("ds_config")
    for name in passes:
        if name not in PASSES:
            raise InputError(f"--pass: '{name}' is none", hint=f"Say {', '.join(PASSES[:-1])} or {PASSES[-1]}.")
    if said["model"] not in MODELS:
        raise InputError(f"--model: '{said['model']}' is none", hint=f"Say one of {', '.join(MODELS)}.")
    if (label := said["label"]) is not None and (not label.strip() or not label.isprintable() or len(label) > _LONGEST):
        raise InputError(
            f"--label: {label[:60]!r} is no name", hint=f"Say one printable line of at most {_LONGEST} letters."
        )
    said["env"], said["settings"] = variables(said["env"]), tuple(said["settings"] or ())
    return Wish(passes=tuple(dict.fromkeys(passes)), ds_config=store.read_json(path) if path else None, **said)


def variables(settings: Iterable[str] | None) -> tuple[str, ...]:
    """``--env``, each with its value: of one that is only named, this program's own.

    Raises:
        InputError: One is no variable, or there is none of that name.
    """
    from envbuild import VALUES_VARIABLE, own_variables
    from envbuild.errors import InputError

    # On a node: what was said where the run was submitted.
    known = {**os.environ, **json.loads(os.environ.get(VALUES_VARIABLE, "{}"))}
    own_variables.add(VALUES_VARIABLE)
    found = []
    for setting in settings or ():
        name, equals, _ = setting.partition("=")
        if not name:
            raise InputError(f"--env {setting}: it is not NAME=VALUE", hint="Or NAME alone, for what it is here.")
        if not (name.isascii() and name.isidentifier()):
            raise InputError(f"--env {name[:60]!r}: no variable can be called so", hint="Say NAME=VALUE.")
        if name.startswith("ENVBUILD_"):
            raise InputError(f"--env {name}: such names are envbuild's own; it sets them itself", hint="Leave it out.")
        if not equals and name not in known:
            raise InputError(
                f"--env {name}: there is no such variable here", hint=f"Say --env {name}=VALUE, or: export {name}=VALUE"
            )
        found.append(setting if equals else f"{name}={known[name]}")
    return tuple(found)


def slow(text: str) -> tuple[float, int | None]:
    """``--data``, understood."""
    from envbuild.errors import InputError

    if text == "synthetic":
        return 0.0, None
    kind, _, rest = text.partition(":")
    if kind != "slow" or not rest:
        raise InputError(f"--data {text}: it is none", hint="Say synthetic, slow:50 or slow:50@1 (milliseconds@rank).")
    return delay("--data slow:", rest)


def delay(option: str, text: str | None) -> tuple[float, int | None]:
    """``50`` or ``50@1``: milliseconds, and the one rank that they are for."""
    import re

    from envbuild.errors import InputError

    if text is None:
        return 0.0, None
    found = re.fullmatch(r"(\d{1,6}(?:\.\d{1,3})?)(?:@(\d{1,4}))?", text)
    if found is None:
        raise InputError(f"{option} {text}: it is none", hint="Say milliseconds, and @ a rank: 50 or 50@1.")
    return float(found[1]), int(found[2]) if found[2] else None
