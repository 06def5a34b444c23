"""What tune has found, as a document, and what to measure after it."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from envbuild.sizing.ladder import FILLED, Rung
from envbuild.sizing.part import Need
from envbuild.sizing.settings import ACCELERATE, DEEPSPEED, HF_TRAINER
from envbuild.sizing.setup import Place

if TYPE_CHECKING:
    from envbuild.pipeline.tuning import Tuned
    from envbuild.sizing.tuning import Answer


def as_dict(tuned: Tuned) -> dict[str, Any]:
    """The answer for ``--json``."""
    answer = tuned.answer
    question, chosen = answer.question, answer.chosen
    machine = question.machine
    made: dict[str, Any] = {
        "model": {
            "name": question.shape.name, "family": question.shape.family, "parameters": question.shape.parameters,
            "used_parameters": question.shape.used_parameters, "guessed": question.shape.guessed,
        },
        "machine": {
            "gpu": machine.card.name, "gpu_bytes": machine.card.memory, "gpus": machine.gpus, "nodes": machine.nodes,
            "ram_bytes": machine.ram, "nvme_bytes_a_second": machine.nvme, "network_bytes_a_second": machine.network,
        },
        "deepspeed": tuned.deepspeed, "schema_of": tuned.schema_of, "notes": list(tuned.notes),
        "target": question.target.value, "dtype": question.dtype.value, "sequence": question.sequence,
        "fits": chosen is not None, "filled": FILLED,
        "rungs": [_rung(rung) for rung in answer.rungs],
        "chosen": _rung(chosen) if chosen else None,
        "without_force": answer.free.id if answer.free else None,
        "advice": [
            {"subject": each.subject, "text": each.text, "command": each.command, "source": each.source,
             "verified": each.verified}
            for each in tuned.advice
        ],
        "changes": [{"what": each.what, "rung": each.rung.id} for each in answer.changes],
    }  # fmt: skip
    if chosen is None:
        return made
    setup = chosen.setup
    return made | {
        "why": list(answer.why),
        "batch": {
            "micro_batch": setup.micro_batch, "accumulation": setup.accumulation, "world": machine.world,
            "global_batch": answer.global_batch, "tokens": answer.global_batch * question.sequence,
        },
        "loading": [_need(need) for need in answer.loading],
        "copies": _need(answer.copies), "times": _need(answer.times),
        "config": tuned.config,
        "settings": [
            {"path": each.path, "value": each.value, "why": each.why, "formula": each.formula, "source": each.source,
             "option": each.option}
            for each in tuned.settings
        ],
        "measure": [{"command": command, "what": what} for command, what in measure(tuned)],
    }  # fmt: skip


def _rung(rung: Rung) -> dict[str, Any]:
    return {
        "id": rung.id, "name": rung.name, "fits": rung.fits, "why": list(rung.why), "gpu": _need(rung.gpu),
        "host": _need(rung.host), "loading": _need(rung.loading), "nvme": _need(rung.nvme) if rung.nvme else None,
    }  # fmt: skip


def _need(need: Need) -> dict[str, Any]:
    return {
        "name": need.name, "unit": need.unit, "total": need.total,
        "parts": [
            {"name": part.name, "value": part.value, "formula": part.formula, "numbers": part.numbers,
             "basis": part.basis.value}
            for part in need.parts
        ],
    }  # fmt: skip


# As the launchers start a training on one node.
_LAUNCHED = {
    DEEPSPEED: "deepspeed --num_gpus {gpus} train.py --deepspeed_config {file}",
    HF_TRAINER: "deepspeed --num_gpus {gpus} train.py --deepspeed {file}",
    ACCELERATE: "accelerate launch --use_deepspeed --deepspeed_config_file {file} --num_processes {gpus} train.py",
}


def measure(tuned: Tuned) -> tuple[tuple[str, str], ...]:
    """What to measure next: commands, and what each tells."""
    wish, answer = tuned.wish, tuned.answer
    assert answer.chosen is not None
    row = wish.row or "ENV"
    file = "ds_config.json"
    reads = f" --row {wish.row}" if wish.row else f" --deepspeed {wish.deepspeed}" if wish.deepspeed else ""
    machine = answer.question.machine
    nodes = f" --nodes {machine.nodes}" if machine.nodes > 1 else ""
    on = f"--gpu {machine.card.name} --gpus {machine.gpus}{nodes}"
    found = [
        (
            f"envbuild lint {file} --with {wish.launcher}{reads} {on}",
            "after every change that you make to it",
        ),
        (f"envbuild doctor{_share(answer)} --gpus {wish.gpus}", "is the host memory there, and what else stops it"),
        (f"envbuild profile {row} -- {_LAUNCHED[wish.launcher].format(gpus=wish.gpus, file=file)}",
            "your own training, step by step: its parts, and the memory of GPU and host, against the tables above"),
        ("nvidia-smi topo -m", "how the GPUs of a node are linked: NV is NVLink, PIX to SYS is PCIe and further"),
    ]  # fmt: skip
    if wish.gpus == 1:
        found.pop()
    if answer.chosen.nvme is not None:
        path = shlex.quote(wish.nvme_path or "/local_nvme")
        found.insert(2, (f"envbuild doctor --nvme {path} --bench", "how fast the drive is, against --nvme"))
    return tuple(found)


def _share(answer: Answer) -> str:
    """The parameters that doctor is to look for room for: what one node offloads of them."""
    assert answer.chosen is not None
    if answer.chosen.setup.optimizer_place is Place.GPU:
        return ""
    return f" --params {answer.question.shape.parameters / answer.question.machine.nodes / 1e9:.3g}b"
