"""Which rung, which micro-batch, how much accumulation: the question, and the answer with everything it rests on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

from envbuild.errors import InputError
from envbuild.sizing import batch, changes, copies, host, ladder
from envbuild.sizing.cards import Card
from envbuild.sizing.changes import Change
from envbuild.sizing.ladder import FILLED, Rung
from envbuild.sizing.part import Need
from envbuild.sizing.setup import Dtype, Machine, Place, Setup
from envbuild.sizing.shape import Shape
from envbuild.sizing.trust import trustworthy

# A GPU that has so many tokens to work on at a time gains nothing from more; and as many tokens a step as the large
# published runs have. Rules of thumb.
MOST_TOKENS = 65_536
MOST_TOKENS_A_STEP = 4 << 20
# ``fit`` is content with a rung that leaves half of everything free.
ROOMY = 0.5
# A step that does more work hides more of what is done once a step; less than this for twice the work is not worth it.
GAIN = 0.03


class Target(str, Enum):
    """What is wanted most."""

    THROUGHPUT = "throughput"
    FIT = "fit"


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is to be trained, where, and what is given.

    Attributes:
        micro_batch: Sequences that one GPU takes at a time; None where it is to be found.
        global_batch: Sequences of one optimizer step on all GPUs; None where it is free.
        stage: A ZeRO stage that has to be taken.
        offload: What has to be offloaded: one of OFFLOADS.
    """

    shape: Shape
    machine: Machine
    dtype: Dtype = Dtype.BF16
    sequence: int = 4096
    recompute: bool = True
    micro_batch: int | None = None
    global_batch: int | None = None
    stage: int | None = None
    offload: str | None = None
    target: Target = Target.THROUGHPUT

    @property
    def forced(self) -> bool:
        """Whether the rung was not left to be found."""
        return self.stage is not None or self.offload is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What is to be done, and what it rests on.

    Attributes:
        rungs: What was looked at, with the smallest batch that was allowed.
        chosen: The rung that is taken, with its batch; None where nothing fits.
        free: The rung that would be taken if none were forced; None where that fits neither, or none was forced.
        why: Why this rung, why this micro-batch, why this accumulation; one sentence each.
        changes: What would make it fit where nothing does.
    """

    question: Question
    rungs: tuple[Rung, ...]
    chosen: Rung | None
    free: Rung | None
    why: tuple[str, ...]
    changes: tuple[Change, ...]

    @property
    def loading(self) -> tuple[Need, ...]:
        """The peaks on one node while loading: with zero.Init, where the stage knows it, and without."""
        assert self.chosen is not None
        shape, machine, setup = self.question.shape, self.question.machine, self.chosen.setup
        without = host.loading(shape, setup, machine, zero_init=False)
        return (self.chosen.loading, without) if setup.stage == 3 else (without,)

    @property
    def copies(self) -> Need:
        """What one rank moves in a step."""
        assert self.chosen is not None
        return copies.per_step(self.question.shape, self.chosen.setup, self.question.machine)

    @property
    def times(self) -> Need:
        """The parts of a step's time."""
        assert self.chosen is not None
        return copies.times(self.question.shape, self.chosen.setup, self.question.machine)

    @property
    def global_batch(self) -> int:
        """Sequences of one optimizer step on all GPUs."""
        assert self.chosen is not None
        return self.chosen.setup.micro_batch * self.chosen.setup.accumulation * self.question.machine.world


def tune(question: Question, cards: Sequence[Card] = ()) -> Answer:
    """The answer.

    Args:
        cards: GPUs that may be proposed where nothing fits.

    Raises:
        InputError: The batch sizes contradict one another, or a forced rung is none.
    """
    machine, shape = question.machine, question.shape
    per_gpu = _per_gpu(question)
    wanted = ladder.tuned(
        shape,
        Setup(
            stage=0, dtype=question.dtype, micro_batch=question.micro_batch or 1, sequence=question.sequence,
            recompute=question.recompute,
        ),
    )  # fmt: skip
    wanted, rungs = _climbed(question, wanted)
    found, why = _choose(rungs, question)
    free = None
    if question.forced:
        free = found
        forced = _forced(rungs, question, wanted)
        rungs = rungs if forced in rungs else (*rungs, forced)
        found, why = (forced if forced.fits else None), f"{forced.name} because it was asked for"
    if found is None:
        tried = () if free is not None else changes.smallest(shape, machine, wanted, cards)
        # NVMe comes last here, too.
        kept = tuple(sorted(tried, key=lambda each: each.rung.id == "nvme"))
        return Answer(question=question, rungs=rungs, chosen=None, free=free, why=(), changes=kept)
    chosen, told = _filled(found, question, per_gpu)
    return Answer(question=question, rungs=rungs, chosen=chosen, free=free, why=(why, *told), changes=())


def _climbed(question: Question, wanted: Setup) -> tuple[Setup, tuple[Rung, ...]]:
    """The ladder with as many live layers as fit: three, and where nothing fits without NVMe two, or the one that
    computes (one block of experts can be larger than all the rest)."""
    shape, machine = question.shape, question.machine
    found = []
    for layers in (3, 2, 1):
        setup = replace(wanted, max_live=max(1, layers * shape.layer))
        rungs = tuple(trustworthy(rung, shape, machine) for rung in ladder.climb(shape, machine, setup))
        found.append((setup, rungs))
        if any(rung.fits and rung.id != "nvme" for rung in rungs):
            return found[-1]
    return found[0]


def _choose(rungs: tuple[Rung, ...], question: Question) -> tuple[Rung | None, str]:
    fitting = [rung for rung in rungs if rung.fits]
    if not fitting:
        return None, ""
    if question.target is Target.THROUGHPUT:
        first = fitting[0]
        later = "; those after it are slower" if first is not rungs[-1] else ""
        return first, f"{first.name}: the first rung that fits {FILLED:.0%} of GPU and host{later}"
    roomy = next((rung for rung in fitting if share(rung, question.machine) <= ROOMY), None)
    if roomy is not None:
        return roomy, f"{roomy.name}: the first rung that leaves {1 - ROOMY:.0%} of GPU and host free (--target fit)"
    best = min(fitting, key=lambda rung: share(rung, question.machine))
    return best, f"{best.name}: of the rungs that fit, the one that leaves most free (--target fit)"


def share(rung: Rung, machine: Machine) -> float:
    """How full the fuller of GPU and host is."""
    full = rung.gpu.total / machine.card.memory
    return max(full, max(rung.host.total, rung.loading.total) / machine.ram) if machine.ram else full


_OFFLOADS = {
    "none": (Place.GPU, Place.GPU), "optimizer": (Place.CPU, Place.GPU), "parameters": (Place.CPU, Place.CPU),
    "nvme": (Place.NVME, Place.NVME),
}  # fmt: skip
OFFLOADS = tuple(_OFFLOADS)


def _forced(rungs: tuple[Rung, ...], question: Question, wanted: Setup) -> Rung:
    offload = question.offload or "none"
    stage = question.stage if question.stage is not None else (0 if offload == "none" else 3)
    if offload in ("parameters", "nvme") and stage != 3:
        raise InputError(f"--offload {offload}: only ZeRO-3 can do that", hint="Leave --stage out, or say --stage 3.")
    if offload == "optimizer" and stage == 0:
        raise InputError("--offload optimizer: without ZeRO nothing is offloaded", hint="Say --stage 1, 2 or 3.")
    optimizer, parameters = _OFFLOADS[offload]
    if question.stage is None and offload == "none":
        # Anything that keeps all states on the GPU.
        kept = [rung for rung in rungs if rung.setup.optimizer_place is Place.GPU]
        return next((rung for rung in kept if rung.fits), kept[-1])
    setup = replace(wanted, stage=stage, optimizer=optimizer, parameters=parameters)
    for rung in rungs:
        same = (rung.setup.stage, rung.setup.optimizer, rung.setup.parameters) == (stage, optimizer, parameters)
        if same:
            return rung
    name = f"ZeRO-{stage}, optimizer in host memory"
    return ladder.rung(question.shape, question.machine, setup, f"zero{stage}-offload-optimizer", name)


def _per_gpu(question: Question) -> int | None:
    """Sequences of one optimizer step for each GPU, where the global batch is given."""
    world, size, micro = question.machine.world, question.global_batch, question.micro_batch
    if size is None:
        return None
    least = world * (micro or 1)
    if size % least:
        near = [count for count in (size // least * least, -(-size // least) * least) if count]
        what = f"{world:,} GPUs" + (f" x a micro-batch of {micro:,}" if micro else "")
        raise InputError(
            f"--global-batch: {size:,} cannot be divided among {what}",
            hint=f"Say {' or '.join(f'{count:,}' for count in near)}.",
        )
    return size // world


def _filled(rung: Rung, question: Question, per_gpu: int | None) -> tuple[Rung, tuple[str, ...]]:
    """The rung with its micro-batch and accumulation, and why these."""
    size, why = _micro_batch(rung, question, per_gpu)
    rung = _again(rung, question, micro_batch=size)
    if per_gpu is not None:
        count = per_gpu // size
        told = f"accumulation {count}: {question.global_batch:,} sequences / ({size} x {question.machine.world} GPUs)"
        with_steps = _again(rung, question, accumulation=count)
        return with_steps, (why, told)
    if rung.setup.optimizer_place is Place.GPU:
        return rung, (why, "accumulation 1: no copy to the host that more of it would hide; the batch size is yours")
    return _accumulating(rung, question, why)


def _accumulating(rung: Rung, question: Question, why: str) -> tuple[Rung, tuple[str, ...]]:
    setup, machine = rung.setup, question.machine
    wanted, enough = _steps(question, setup)
    most = max(1, MOST_TOKENS_A_STEP // (setup.tokens * machine.world))
    count = min(wanted, 1 << (most.bit_length() - 1))
    more = _again(rung, question, accumulation=count)
    while count > 1 and not more.fits:
        count //= 2
        more = _again(rung, question, accumulation=count)
    if count < wanted:
        enough = (
            f"more would hide more of the optimizer on the CPU, but a step has {MOST_TOKENS_A_STEP:,} tokens at most"
        )
    return more, (why, f"accumulation {count}: {enough}")


def _steps(question: Question, setup: Setup) -> tuple[int, str]:
    """The accumulation that hides the optimizer on the CPU and the copies to the host, and what it comes to."""

    def times(count: int) -> Need:
        return copies.times(question.shape, replace(setup, accumulation=count), question.machine)

    most, count = batch.steps(question.shape, setup, question.machine), 1
    while count < most:
        now, then = times(count).total / count, times(2 * count).total / (2 * count)
        if then > (1 - GAIN) * now:
            return count, f"twice as much would save less than {GAIN:.0%} of the time of a token"
        count *= 2
    told = f"the optimizer on the CPU and the copies to the host then take {batch.SHARE:.0%} of the compute or less"
    return count, told


def _micro_batch(rung: Rung, question: Question, per_gpu: int | None) -> tuple[int, str]:
    if question.micro_batch is not None:
        return question.micro_batch, f"micro-batch {question.micro_batch} because it was asked for"
    if question.target is Target.FIT:
        return 1, "micro-batch 1: the least memory (--target fit)"
    world, length = question.machine.world, question.sequence
    most = max(1, min(MOST_TOKENS, MOST_TOKENS_A_STEP // world) // length)
    if per_gpu is not None:
        sizes = [size for size in range(1, min(per_gpu, max(1, MOST_TOKENS // length)) + 1) if per_gpu % size == 0]
    else:
        sizes = [1 << power for power in range(most.bit_length())]
    best = 1
    for size in sizes:
        if not _again(rung, question, micro_batch=size).fits:
            return best, f"micro-batch {best}: {size} would not fit"
        best = size
    limit = f"a step has {per_gpu} for each GPU" if per_gpu == best else (
        f"more than {MOST_TOKENS:,} tokens at a time gain a GPU nothing, and a step has {MOST_TOKENS_A_STEP:,} at most"
    )  # fmt: skip
    return best, f"micro-batch {best}: {limit}"


def _again(rung: Rung, question: Question, *, micro_batch: int | None = None, accumulation: int | None = None) -> Rung:
    setup = replace(
        rung.setup, micro_batch=micro_batch or rung.setup.micro_batch,
        accumulation=accumulation or rung.setup.accumulation,
    )  # fmt: skip
    made = ladder.rung(question.shape, question.machine, setup, rung.id, rung.name)
    return trustworthy(made, question.shape, question.machine)
