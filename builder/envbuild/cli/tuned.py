"""What tune has found, as text."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

from envbuild.cli import output

if TYPE_CHECKING:
    from envbuild.pipeline.tuning import Tuned
    from envbuild.sizing.ladder import Rung
    from envbuild.sizing.part import Need, Part
    from envbuild.sizing.tuning import Answer

_GIB = 1 << 30


def show(tuned: Tuned, *, explain: bool) -> None:
    """Print the answer."""
    answer = tuned.answer
    _asked(tuned)
    _ladder(answer)
    if answer.chosen is None:
        _nothing(answer)
        for each in tuned.advice:
            output.paragraph(f"  {each.subject}: ", each.text)
        if explain:
            # Of the rungs that fail, the last that was asked for and that this machine has.
            asked, stage = answer.question, answer.question.stage
            there = [rung for rung in answer.rungs if rung.nvme is None or asked.machine.nvme]
            rung = [rung for rung in there if stage is None or rung.setup.stage == stage][-1]
            _explained(rung.name, [rung.gpu, rung.host, rung.loading, *([rung.nvme] if rung.nvme else [])])
        return
    _chosen(answer, answer.chosen)
    _file(tuned)
    _predicted(tuned)
    _beside(tuned)
    if explain:
        chosen = answer.chosen
        needs = [chosen.gpu, chosen.host, *answer.loading, *([chosen.nvme] if chosen.nvme else [])]
        _explained(chosen.name, [*needs, answer.copies, answer.times])


def _head(words: str) -> None:
    output.text()
    output.text(output.paint(words, "1"))


def _asked(tuned: Tuned) -> None:
    question = tuned.answer.question
    shape, machine = question.shape, question.machine
    used = f", {shape.used_parameters / 1e9:,.3g}B of them for each token" if shape.experts else ""
    output.paragraph("Model:    ", f"{shape.name}: {shape.parameters / 1e9:,.4g}B parameters{used}, {shape.layers} "
                     f"layers of width {shape.hidden:,}")  # fmt: skip
    nodes = f"{machine.nodes} nodes of " if machine.nodes > 1 else ""
    ram = f", {_gib(machine.ram)} GiB of host memory" if machine.ram else ""
    ram += " on each node" if machine.ram and machine.nodes > 1 else ""
    output.paragraph(
        "Machine:  ", f"{nodes}{machine.gpus} x {machine.card.title} ({_gib(machine.card.memory)} GiB){ram}"
    )
    how = "activations recomputed" if question.recompute else "activations kept"
    output.paragraph("Training: ", f"{question.dtype.value}, sequences of {question.sequence:,} tokens, {how}, Adam; "
                     f"DeepSpeed {tuned.deepspeed}")  # fmt: skip
    for note in tuned.notes:
        output.paragraph("Note:     ", note)


def _ladder(answer: Answer) -> None:
    question = answer.question
    _head(f"GiB at a micro-batch of {answer.rungs[0].setup.micro_batch}")
    rows = []
    for rung in answer.rungs:
        taken = answer.chosen is not None and rung.id == answer.chosen.id
        fits = "yes" if rung.fits else "no"
        name = rung.name.replace("optimizer and parameters", "both")
        taking = (_gib(rung.gpu.total), _gib(rung.host.total), _gib(rung.loading.total))
        rows.append((name, *taking, f"{fits}, taken" if taken else fits))
    output.table(("RUNG", "EACH GPU", "HOST", "LOADING", "FITS"), rows)
    has = question.machine
    limit = f"{_gib(0.9 * has.card.memory)} GiB of each GPU"
    if has.ram:
        limit += f" and {_gib(0.9 * has.ram)} GiB of each node: 90 % of both"
    output.paragraph("", f"There is room for {limit}.")
    refused = [rung for rung in answer.rungs if not rung.fits]
    if answer.chosen is not None:
        chosen = answer.chosen.id
        before = [rung.id for rung in answer.rungs]
        refused = [rung for rung in refused if before.index(rung.id) < before.index(chosen)]
    for rung in refused:
        output.paragraph(f"  {rung.name}: ", "; ".join(rung.why))


def _nothing(answer: Answer) -> None:
    _head("Nothing fits." if not answer.question.forced else "What was asked for does not fit.")
    if answer.free is not None:
        output.paragraph("", f"Without --stage and --offload {answer.free.name} would fit.")
        return
    if not answer.changes:
        output.paragraph(
            "", "No single change makes it fit: not more host memory, GPUs or nodes, nor shorter sequences."
        )
        return
    which = "Without --stage and --offload each" if answer.question.forced else "Each"
    output.paragraph("", f"{which} of these alone would make it fit (computed, not guessed):")
    for change in answer.changes:
        output.paragraph("  - ", f"{change.what}: {change.rung.name}, {_gib(change.rung.gpu.total)} GiB on each GPU, "
                         f"{_gib(max(change.rung.host.total, change.rung.loading.total))} GiB of host")  # fmt: skip


def _chosen(answer: Answer, chosen: Rung) -> None:
    _head(f"Taken: {chosen.name}")
    for why in answer.why:
        output.paragraph("  ", why)
    setup, world = chosen.setup, answer.question.machine.world
    tokens = answer.global_batch * setup.sequence
    output.paragraph("  ", f"a step is {setup.micro_batch} x {setup.accumulation} x {world} = {answer.global_batch:,} "
                     f"sequences, {tokens:,} tokens")  # fmt: skip
    machine = answer.question.machine
    host = f"{_gib(chosen.host.total)} GiB in each host" if chosen.host.total else "nothing in the host"
    if machine.ram and chosen.host.total:
        host += f" ({chosen.host.total / machine.ram:.0%})"
    filled = chosen.gpu.total / machine.card.memory
    output.paragraph("  ", f"{_gib(chosen.gpu.total)} GiB on each GPU ({filled:.0%}), {host}")
    if chosen.nvme is not None:
        output.paragraph("  ", f"{_gib(chosen.nvme.total)} GiB on the NVMe of each node")
    for need in answer.loading:
        dies = machine.ram is not None and need.total > machine.ram
        output.paragraph("  ", f"{need.name}: a peak of {_gib(need.total)} GiB in each host" + (
            f", more than it has ({_gib(machine.ram)}): it would die" if dies and machine.ram else ""))  # fmt: skip


def _file(tuned: Tuned) -> None:
    _head("ds_config")
    width = max(len(each.path) + len(json.dumps(each.value)) for each in tuned.settings) + 3
    for each in tuned.settings:
        said = f"{each.path}: {json.dumps(each.value)}"
        formula = f"{each.formula}: " if each.formula else ""
        option = f" (say {each.option})" if each.option else ""
        before = f"  {output.paint(said, '36')}"
        if output.width() < width + 50:
            output.text(before)
            output.paragraph("      ", f"{formula}{each.why}{option}")
        else:
            output.paragraph(f"  {said.ljust(width)}", f"{formula}{each.why}{option}")
    output.text()
    output.result(tuned.text)


def _predicted(tuned: Tuned) -> None:
    answer = tuned.answer
    _head("Predicted for a step (nothing was run; --explain shows what is assumed)")
    moved: dict[str, float] = {}
    for part in answer.copies.parts:
        moved[part.name] = moved.get(part.name, 0.0) + part.value
    output.table(
        ("WHAT ONE RANK MOVES", "GIB"), [(name, f"{value / _GIB:,.2f}") for name, value in moved.items()]
    ) if moved else output.text("  no copies: one GPU, and nothing is offloaded")
    output.text()
    times = answer.times
    output.table(("PART", "SECONDS"), [(part.name, _seconds(part.value)) for part in times.parts])
    most = max(part.value for part in times.parts)
    tokens = answer.global_batch * answer.question.sequence
    if len(times.parts) == 1:
        output.paragraph("", f"{tokens / most:,.0f} tokens a second on all GPUs.{_unsaid(answer)}")
        return
    output.paragraph("", f"A step takes {_seconds(most)} s where all of it overlaps, {_seconds(times.total)} s where "
                     f"nothing does: {tokens / times.total:,.0f} to {tokens / most:,.0f} tokens a second on all GPUs."
                     f"{_unsaid(answer)}")  # fmt: skip


def _unsaid(answer: Answer) -> str:
    """What the sum leaves out."""
    machine = answer.question.machine
    if machine.nodes > 1 and not machine.network:
        return " The collectives are not in it: --network says how fast they are."
    return " Collectives between the GPUs of a node are not in it." if machine.gpus > 1 else ""


def _beside(tuned: Tuned) -> None:
    from envbuild.pipeline.tuned import measure

    _head("What goes with it")
    for each in tuned.advice:
        unsure = "" if each.verified else "; not verified"
        output.paragraph(f"  {each.subject}: ", f"{each.text} ({each.source}{unsure})")
        if each.command:
            output.text(f"      {each.command}")
    _head("What to measure next")
    for command, what in measure(tuned):
        output.text(f"  {command}")
        output.paragraph("      ", what)


def _explained(name: str, needs: list[Need]) -> None:
    from envbuild.sizing.part import LETTERS

    _head(f"Every formula: {name}")
    for need in needs:
        if not need.parts:
            continue
        output.text()
        output.text(output.paint(f"{need.name}: {_amount(need.total, need.unit)}", "1"))
        for part in need.parts:
            output.paragraph("  ", " = ".join(_formula(part, need.unit)))
    output.text()
    for letter, what in LETTERS.items():
        output.text(f"  {letter}  {what}")
    output.paragraph("  ", "read: follows from DeepSpeed's source. measured: a run on the CPU accelerator agrees. "
                     "assumed: a rule of thumb, to be replaced by a measurement.")  # fmt: skip


def _formula(part: Part, unit: str) -> Iterator[str]:
    yield f"{part.name} ({part.basis.value})"
    yield part.formula
    if part.numbers != part.formula:
        yield part.numbers
    yield _amount(part.value, unit)


def _amount(value: float, unit: str) -> str:
    if unit == "seconds":
        return f"{_seconds(value)} s"
    return f"{value / _GIB:,.2f} GiB" if value >= _GIB / 10 else f"{value / (1 << 20):,.1f} MiB"


def _seconds(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _gib(value: float) -> str:
    shown = value / _GIB
    return f"{shown:,.0f}" if shown >= 1000 or shown == round(shown) else f"{shown:,.1f}"
