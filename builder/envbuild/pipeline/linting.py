"""What a configuration is linted for: the row or the flags, joined into a context; and files, read and mended."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from envbuild import dsschema
from envbuild.dsconfig.context import DEEPSPEED, HF_TRAINER, LAUNCHERS, Context, Gpu, Model, Row
from envbuild.dsconfig.document import Document, Member, Node
from envbuild.dsconfig.linting import FLAWS, MOST
from envbuild.dsconfig.rules import RULES
from envbuild.dsconfig.view import AUTO
from envbuild.dsschema import Key, Section
from envbuild.errors import InputError

if TYPE_CHECKING:
    from envbuild.model import Environment
    from envbuild.pipeline.workbench import Workbench

CRASHED, MORE = "lint.crashed", "lint.more"
_SIZE = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,6})?)\s*([KMGT])(i?)B?", re.IGNORECASE)
_POWERS = {"k": 1, "m": 2, "g": 3, "t": 4}


class Wish(NamedTuple):
    """What the flags say.

    Attributes:
        params: A number of parameters (7b), or a model's name.
        model_config: A Hugging Face config.json.
    """

    row: str | None = None
    deepspeed: str | None = None
    launcher: str | None = None
    gpu: str | None = None
    gpus: int | None = None
    nodes: int = 1
    ram: str | None = None
    params: str | None = None
    model_config: Path | None = None


def context(wish: Wish, bench: Workbench | None) -> Context:
    """The context of every file of one run; ``bench`` is needed for rows, GPUs and models alone.

    Raises:
        InputError: No such row, GPU, model or release.
    """
    env = bench.matrix.get(wish.row) if bench is not None and wish.row is not None else None
    version = wish.deepspeed
    if version is None:
        version = env.deepspeed.version if env else dsschema.NEWEST
    dsschema.known(version)
    if wish.launcher is not None and wish.launcher not in LAUNCHERS:
        raise InputError(f"--with: '{wish.launcher}' is no launcher", hint=f"Say {', '.join(LAUNCHERS)}.")
    assumed = []
    if wish.deepspeed is None and env is None:
        assumed.append(f"DeepSpeed {version}, the newest that was read (--deepspeed V or --row ENV names another)")
    schema = dsschema.for_version(version)
    if not schema.exact:
        assumed.append(f"DeepSpeed {version} has the schema of {schema.measured}, the nearest lower one that was read")
    return Context(
        deepspeed=version, launcher=wish.launcher or DEEPSPEED, torch=env.torch.version if env else None,
        gpu=_gpu(wish, env, bench), gpus=wish.gpus, nodes=wish.nodes, model=_model(wish, bench),
        ram_bytes=None if wish.ram is None else size(wish.ram), row=_row(env) if env else None, assumed=tuple(assumed),
    )  # fmt: skip


def for_file(document: Document, base: Context, wish: Wish) -> Context:
    """The context of one file: who reads it is seen from what is left to be filled in, where nobody says."""
    if wish.launcher is not None or document.root is None:
        return base
    auto = _auto(document, base.deepspeed)
    if auto is None:
        return replace(base, assumed=(*base.assumed, "DeepSpeed itself reads the file (--with names another)"))
    said = f'Hugging Face Trainer fills in what is "auto", as in line {auto.place.line} (--with deepspeed: nobody does)'
    return replace(base, launcher=HF_TRAINER, assumed=(*base.assumed, said))


def _auto(document: Document, version: str) -> Member | None:
    """The first "auto" that nobody but Hugging Face understands."""
    assert document.root is not None
    todo: list[tuple[Node, Section | None]] = [(document.root, dsschema.for_version(version).root)]
    while todo:
        node, section = todo.pop(0)
        for member in node.members:
            key = section.find(member.key) if section else None
            if key is not None and (key.default == AUTO or AUTO in key.allowed or _own(key)):
                continue
            if member.node.value == AUTO:
                return member
            todo.append((member.node, key.section if key else None))
    return None


def _own(key: Key) -> bool:
    """Whether a section is handed on as it is: "auto" has a meaning of its own in such, as in that of pipelines."""
    return key.section is not None and key.section.extra == "open"


def titles() -> dict[str, str]:
    """Every rule's id with what it holds a file to."""
    own = {f"json.{kind}": title for kind, title in FLAWS.items()}
    ours = {CRASHED: "no rule of envbuild's own fails", MORE: f"no rule has more than {MOST} findings"}
    return own | {rule.id: rule.title for rule in RULES} | ours


def chosen(only: Sequence[str], ignored: Sequence[str]) -> frozenset[str]:
    """The rules that count. A family's name, such as ``json``, stands for all of it.

    Raises:
        InputError: No such rule.
    """
    known = titles()
    wanted = _named(only, known, "--rule") if only else set(known)
    return frozenset(wanted - _named(ignored, known, "--ignore"))


def _named(words: Sequence[str], known: dict[str, str], option: str) -> set[str]:
    found: set[str] = set()
    for word in words:
        some = {name for name in known if name == word or name.startswith(f"{word}.")}
        if not some:
            import difflib

            close = difflib.get_close_matches(word, known, 1)
            hint = f"Did you mean {close[0]}?" if close else "envbuild lint --rules lists them."
            raise InputError(f"{option}: there is no rule '{word}'", hint=hint)
        found |= some
    return found


def size(text: str, option: str = "--ram") -> int:
    """Bytes of ``512GiB``, ``1.5TiB`` or ``512GB``.

    Raises:
        InputError: It is no size.
    """
    match = _SIZE.fullmatch(text.strip())
    count = float(match[1]) * (1024 if match[3] else 1000) ** _POWERS[match[2].lower()] if match else 0
    if not 1 <= count <= 1 << 60:
        raise InputError(f"{option}: '{text[:40]}' is no size", hint="Say it like 512GiB or 1TiB.")
    return int(count)


def _gpu(wish: Wish, env: Environment | None, bench: Workbench | None) -> Gpu | None:
    if bench is None:
        return None
    if wish.gpu is not None:
        from envbuild.sizing import cards

        card = cards.find(bench.facts, wish.gpu)
        return Gpu(name=card.title, sm=_sm(card.sm), memory_bytes=card.memory)
    if env is None or not env.gpus:
        return None
    # The row has to do on every one of its GPUs: the oldest decides. How much memory they have it does not say.
    oldest = min((bench.facts.gpus[name] for name in env.gpus), key=lambda gpu: _sm(gpu.sm))
    return Gpu(name=oldest.name, sm=_sm(oldest.sm))


def _sm(text: str) -> int:
    major, _, minor = text.partition(".")
    return int(major) * 10 + int(minor or 0)


def _model(wish: Wish, bench: Workbench | None) -> Model | None:
    if wish.model_config is not None:
        from envbuild.sizing import hf

        shape = hf.load(wish.model_config)
    elif wish.params is not None and bench is not None:
        from envbuild.sizing import known

        shape = known.find(bench.facts, wish.params)
    else:
        return None
    return Model(parameters=shape.parameters, shape=shape)


def _row(env: Environment) -> Row:
    from envbuild.pipeline.sizes import parse_size

    return Row(
        name=env.name, accelerator=env.accelerator, ops=env.deepspeed.ops, shm_bytes=parse_size(env.shm_size),
        memlock_bytes=None if env.memlock == "unlimited" else parse_size(env.memlock),
    )  # fmt: skip
