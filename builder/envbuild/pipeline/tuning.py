"""tune: from names, sizes and a DeepSpeed release to a ds_config, with everything it rests on."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from envbuild import dsschema, store
from envbuild.errors import InputError
from envbuild.matrix.merge import near
from envbuild.pipeline.linting import size
from envbuild.pipeline.workbench import Workbench
from envbuild.sizing import cards, hf, known, tuning
from envbuild.sizing.advice import Able, Advice, advice, stuck
from envbuild.sizing.ladder import gib
from envbuild.sizing.settings import DEEPSPEED, LAUNCHERS, Setting, document, settings
from envbuild.sizing.setup import Dtype, Machine
from envbuild.sizing.shape import Shape
from envbuild.sizing.tuning import OFFLOADS, Answer, Question, Target

_NUMBER = r"([0-9]{1,12}(?:\.[0-9]{1,6})?)\s*"
_RATE = re.compile(_NUMBER + r"(?:([KMGTkmgt])([Ii]?)(B|b|[Bb]its?)(?:/[Ss]|[Pp][Ss])?)?")
_POWERS = {"k": 1, "m": 2, "g": 3, "t": 4}
_BF16_SINCE = 8.0
# deepspeed/runtime/zero/stage_1_and_2.py: 0.8.3 refuses fp32 gradients with reduce_scatter, 0.12.3 takes them.
_SCATTERS_FP32 = "0.9.0"
# The first of the releases that were read whose launcher has --bind_cores_to_rank, and that has z3_leaf_module.py.
_BINDS, _LEAVES = "0.9.2", "0.13.1"
# deepspeed/runtime/engine.py: up to 0.17.0 bf16 without ZeRO went to BF16_Optimizer, which keeps fp32 gradients.
_FLAT_BF16 = "0.17.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What the command line says, as it was typed."""

    model: str | None = None
    params: str | None = None
    model_config: Path | None = None
    gpu: str
    gpus: int
    nodes: int = 1
    ram: str
    nvme: str | None = None
    nvme_path: str | None = None
    sequence: int = 4096
    micro_batch: int | None = None
    global_batch: int | None = None
    dtype: str | None = None
    recompute: bool = True
    stage: int | None = None
    offload: str | None = None
    row: str | None = None
    deepspeed: str | None = None
    launcher: str = DEEPSPEED
    link: str | None = None
    network: str | None = None
    target: str = "throughput"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuned:
    """The answer in full.

    Attributes:
        deepspeed: The release whose keys are written, ``schema_of`` the one that was read for it.
        settings: None of them where nothing fits.
        notes: What a reader should know first.
    """

    wish: Wish
    answer: Answer
    deepspeed: str
    schema_of: str
    settings: tuple[Setting, ...]
    advice: tuple[Advice, ...]
    notes: tuple[str, ...]

    @property
    def config(self) -> dict[str, Any]:
        """The ds_config."""
        return document(self.settings)

    @property
    def text(self) -> str:
        """The ds_config as its file has it: in the order of the explanation."""
        return json.dumps(self.config, indent=2, allow_nan=False) + "\n"


def tune(bench: Workbench, wish: Wish) -> Tuned:
    """The answer.

    Raises:
        InputError: Something that was typed is unknown or contradicts something else.
    """
    shape = _shape(bench, wish)
    card = cards.find(bench.facts, wish.gpu)
    if wish.link is not None:
        card = replace(card, link=speed(wish.link, "--link"), bus="the link of --link")
    machine = Machine(
        card=card, gpus=wish.gpus, nodes=wish.nodes, ram=size(wish.ram, "--ram"),
        nvme=speed(wish.nvme, "--nvme") if wish.nvme is not None else None,
        network=bits(wish.network, "--network") if wish.network is not None else None,
    )  # fmt: skip
    dtype, notes = _dtype(wish, card)
    question = Question(
        shape=shape, machine=machine, dtype=dtype, sequence=wish.sequence, recompute=wish.recompute,
        micro_batch=wish.micro_batch, global_batch=wish.global_batch, stage=wish.stage,
        offload=_word(wish.offload, OFFLOADS, "--offload") if wish.offload is not None else None,
        target=Target(_word(wish.target, [each.value for each in Target], "--target")),
    )  # fmt: skip
    launcher = _word(wish.launcher, LAUNCHERS, "--with")
    version, row_notes = _version(bench, wish, card)
    schema = dsschema.for_version(version)
    path = _mounted(wish.nvme_path)
    others = [cards.find(bench.facts, name) for name in cards.names(bench.facts)]
    answer = tuning.tune(question, others)
    made: tuple[Setting, ...] = ()
    if answer.chosen is not None:
        made = settings(
            answer, launcher, path, _knower(schema), scatters_fp32=_since(version, _SCATTERS_FP32),
        )  # fmt: skip
    able = Able(binds_cores=_since(version, _BINDS), leaf_modules=_since(version, _LEAVES))
    return Tuned(
        wish=wish, answer=answer, deepspeed=version, schema_of=schema.measured, settings=made,
        advice=advice(answer, launcher, able) if answer.chosen is not None else stuck(answer),
        notes=(*shape.notes, *notes, *row_notes, *_about(question, wish, version), *_flat(answer, version)),
    )  # fmt: skip


def _since(version: str, first: str) -> bool:
    return dsschema.release(version) >= dsschema.release(first)


def _mounted(path: str | None) -> str:
    if path is None:
        return "/local_nvme"
    if not path.startswith("/") or not path.isprintable():
        raise InputError(
            f"--nvme-path: {path[:60]!r} is no absolute path", hint="Say where the drive is mounted: /local_nvme."
        )
    return path


def _flat(answer: Answer, version: str) -> Iterable[str]:
    """What older releases keep on a GPU beyond what is counted: with more GPUs their states, in shards, take less."""
    question, chosen = answer.question, answer.chosen
    alone = question.machine.world == 1 and question.dtype is Dtype.BF16 and not _since(version, _FLAT_BF16)
    if chosen is not None and chosen.setup.stage == 0 and alone:
        most = 4 * question.shape.parameters
        yield (
            f"without ZeRO DeepSpeed {version} keeps the gradients of bf16 in fp32 all the time: up to {gib(most)} "
            "more than is counted here while activations are kept; say --micro-batch where that is too much"
        )


def _knower(schema: dsschema.Schema) -> Any:
    def knows(path: str) -> bool:
        if schema.find(path) is not None:
            return True
        # Sections that are handed on as they are, such as an optimizer's params.
        parent = schema.find(path.rpartition(".")[0]) if "." in path else None
        return parent is not None and (parent.section is None or parent.section.extra != "forbid")

    return knows


def _shape(bench: Workbench, wish: Wish) -> Shape:
    given = [each for each in (wish.model, wish.params, wish.model_config) if each not in (None, "")]
    if len(given) != 1:
        what = "name a model" if not given else "MODEL, --params and --model-config each name the model: give one"
        raise InputError(what, hint="Such as: envbuild tune llama-2-7b, or --params 7b, or --model-config config.json.")
    if wish.model_config is not None:
        return hf.load(wish.model_config)
    if wish.model and _is_config(Path(wish.model)):
        return hf.load(Path(wish.model))
    option = "MODEL" if wish.model else "--params"
    return known.find(bench.facts, wish.model or wish.params or "", option)


def _is_config(path: Path) -> bool:
    """Whether a name is a file's, or a folder's with a model: outputs may well lie in a folder named like one."""
    try:
        return path.exists() and (not path.is_dir() or (path / "config.json").exists())
    except (OSError, ValueError):
        return False


def _dtype(wish: Wish, card: cards.Card) -> tuple[Dtype, tuple[str, ...]]:
    able = float(card.sm) >= _BF16_SINCE
    if wish.dtype is None:
        return (Dtype.BF16, ()) if able else (Dtype.FP16, (f"{card.title} has no bf16: fp16 is taken",))
    dtype = Dtype(_word(wish.dtype, [each.value for each in Dtype], "--dtype"))
    if dtype is Dtype.BF16 and not able:
        raise InputError(
            f"--dtype bf16: {card.title} (sm_{card.sm.replace('.', '')}) has none", hint="Say --dtype fp16."
        )
    return dtype, ()


def _version(bench: Workbench, wish: Wish, card: cards.Card) -> tuple[str, tuple[str, ...]]:
    if wish.row is not None and wish.deepspeed is not None:
        raise InputError("--row and --deepspeed each say which DeepSpeed it is: give one")
    if wish.row is not None:
        row = bench.matrix.get(wish.row)
        if row.accelerator == "cpu":
            raise InputError(
                f"--row {row.name} trains on the CPU, and uses no GPU", hint="Name a row with CUDA, or --deepspeed V."
            )
        if card.gpu not in row.gpus:
            return row.deepspeed.version, (f"row {row.name} is made for {', '.join(row.gpus)}, not for {card.title}",)
        return row.deepspeed.version, ()
    if wish.deepspeed is not None:
        return dsschema.known(wish.deepspeed), ()
    return dsschema.NEWEST, ()


def _about(question: Question, wish: Wish, version: str) -> Iterable[str]:
    machine, shape = question.machine, question.shape
    if machine.card.mark != "verified":
        yield f"the figures of {machine.card.title} are {machine.card.mark}: {machine.card.source}"
    if shape.positions is not None and question.sequence > shape.positions:
        yield (
            f"the model has positions for {shape.positions:,} tokens, and --seq says {question.sequence:,}: its rotary "
            "embedding has to be stretched"
        )
    if question.dtype is Dtype.FP32:
        yield (
            "the time in fp32 counts on TF32, which torch uses only when it is told to, and which GPUs before sm_80 "
            "lack: torch.set_float32_matmul_precision('high')"
        )
    if dsschema.release(version) < dsschema.release(dsschema.NEWEST):
        yield f"memory is computed as DeepSpeed {dsschema.NEWEST} allocates it; only the keys are those of {version}"
    if dsschema.release(version) > dsschema.release(dsschema.NEWEST):
        yield f"DeepSpeed {version} was not read: its keys are taken to be those of {dsschema.NEWEST}"
    if wish.nvme_path is not None and wish.nvme is None:
        yield "--nvme-path without --nvme: the NVMe is used only where its speed is given too"
    if wish.network is not None and wish.nodes == 1:
        yield "--network has no part in it: there is one node"


def _word(word: str, known_words: Iterable[str], option: str) -> str:
    words = list(known_words)
    if word in words:
        return word
    raise InputError(f"{option}: there is no {word[:40]!r}{near(word, words)}", hint=f"Say {', '.join(words)}.")


def speed(text: str, option: str) -> float:
    """Bytes a second of ``7GB/s``, of ``56Gb/s``, or of ``7``, which are GB/s.

    Raises:
        InputError: It is no speed.
    """
    return _rate(text, option, "B", "Say GB a second, such as 7 or 7GB/s.")


def bits(text: str, option: str) -> float:
    """Bytes a second of ``400Gb/s``, of ``50GB/s``, or of ``400``, which are Gb/s.

    Raises:
        InputError: It is no speed.
    """
    return _rate(text, option, "b", "Say Gb a second, such as 400 or 400Gb/s.")


def _rate(text: str, option: str, usual: str, hint: str) -> float:
    """A b is a bit and a B is a byte; where all is written small (``7gb/s``), and without a unit, what is usual."""
    match = _RATE.fullmatch(text.strip())
    unit, binary, what = (match[2] or "g", match[3], match[4] or usual) if match else ("g", "", usual)
    small = what == "b" and unit.islower()
    bit = (usual if small else what[0]) == "b" or len(what) > 1
    count = float(match[1]) * (1024 if binary else 1000) ** _POWERS[unit.lower()] / (8 if bit else 1) if match else 0
    if not 1e6 <= count <= 1e13:
        raise InputError(f"{option}: {text[:40]!r} is no speed", hint=hint)
    return count


def write(path: Path, tuned: Tuned, *, force: bool) -> None:
    """Write the ds_config, atomically.

    Raises:
        InputError: There is a file already, and nobody said that it may go.
        EngineError: It cannot be written.
    """
    if str(path) == "-":
        raise InputError("-o -: the answer goes to stdout", hint="Name a file, or take config of --json.")
    if not force and (path.is_file() or path.is_symlink()) and not path.is_dir():
        raise InputError(f"{path} is there already", hint="Name another file, or say --force to write over it.")
    store.write_where_asked(path, tuned.text)
