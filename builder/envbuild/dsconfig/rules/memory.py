"""Memory: whether the model fits these GPUs and these hosts, while training and while it is loaded.

The figures are sizing's. An error stands on the parts alone that follow from what DeepSpeed allocates; what rests on a
rule of thumb (activations, the context of CUDA) can only be a warning. The formulae are imported when they are needed:
most files are linted without a model.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from envbuild.dsconfig.context import Context
from envbuild.dsconfig.problem import Problem
from envbuild.dsconfig.rules.asking import ERROR, INFO, TYPES, WARNING, dtype, size
from envbuild.dsconfig.rules.rule import Rule
from envbuild.dsconfig.view import View
from envbuild.model.finding import Severity

if TYPE_CHECKING:
    from envbuild.sizing.part import Need
    from envbuild.sizing.setup import Machine, Setup

Z, MICRO = "zero_optimization", "train_micro_batch_size_per_gpu"
_SOURCE = "sizing's formulae, read in DeepSpeed 0.19.8"
# What doctor wants of /dev/shm, too.
_LEAST_SHM = 1 << 30
_ASSUMED = "; sequences of 4,096 tokens and recomputed activations are assumed"
# Keys of zero_optimization, and the fields of sizing's Setup that they are.
_NUMBERS = {
    "reduce_bucket_size": "reduce_bucket", "allgather_bucket_size": "allgather_bucket",
    "stage3_prefetch_bucket_size": "prefetch_bucket", "stage3_param_persistence_threshold": "persistence",
    "stage3_model_persistence_threshold": "max_persistence", "stage3_max_live_parameters": "max_live",
    "sub_group_size": "sub_group",
    "offload_optimizer.buffer_count": "optimizer_buffers", "offload_param.buffer_count": "parameter_buffers",
    "offload_param.buffer_size": "buffer_size", "offload_param.max_in_cpu": "in_cpu",
}  # fmt: skip


class _Asked(NamedTuple):
    """What is asked of the formulae."""

    shape: Any
    setup: Setup
    machine: Machine


def gpu(view: View, context: Context) -> Iterator[Problem]:
    """The model fits the GPU."""
    asked = _asked(view, context)
    if asked is None or context.gpu is None or context.gpu.memory_bytes is None:
        return
    from envbuild.sizing.gpu import per_gpu

    need = per_gpu(asked.shape, asked.setup, asked.machine)
    severity = _judged(need, context.gpu.memory_bytes)
    if severity is not None:
        yield _problem(
            view, severity, need, context.gpu.memory_bytes, f"one {context.gpu.name}",
            assumed=_ASSUMED + ("" if view.get(MICRO).number else f", and {MICRO} is taken as 1"),
            fix=f"Take {_ways(view)} or more GPUs: envbuild tune shows the first that fits.",
        )  # fmt: skip


def _ways(view: View) -> str:
    """What would take memory off the GPU and is not done yet."""
    found = ["a higher ZeRO stage"] if view.stage < 3 else []
    found += ["an offloaded optimizer"] if view.device("optimizer") is None else []
    found += ["offloaded parameters"] if view.stage == 3 and view.device("param") is None else []
    return f"{', '.join(found or ['a smaller micro-batch', 'shorter sequences'])},"


def host(view: View, context: Context) -> Iterator[Problem]:
    """What is offloaded fits one node's memory, rounded up as pinned blocks are."""
    asked = _asked(view, context)
    if asked is None or context.ram_bytes is None:
        return
    from envbuild.sizing.host import ROUNDING, per_host

    need = per_host(asked.shape, asked.setup, asked.machine)
    severity = _judged(need, context.ram_bytes)
    if severity is not None:
        rounded = need.part(ROUNDING)
        more = f"; {size(rounded)} of it is lost to rounding pinned blocks up to powers of two" if rounded else ""
        yield _problem(
            view, severity, need, context.ram_bytes, "one node", more,
            fix="Offload less, take more nodes, or set pin_memory to false.",
        )  # fmt: skip


def loading(view: View, context: Context) -> Iterator[Problem]:
    """The model fits one node's memory while it is loaded, too."""
    asked = _asked(view, context)
    if asked is None or context.ram_bytes is None:
        return
    from envbuild.sizing.host import loading as peak
    from envbuild.sizing.host import per_host

    if _judged(per_host(asked.shape, asked.setup, asked.machine), context.ram_bytes) is not None:
        return
    need = peak(asked.shape, asked.setup, asked.machine, asked.setup.zero_init)
    if _judged(need, context.ram_bytes) is not None:
        better = view.stage == 3 and not asked.setup.zero_init
        yield _problem(
            view, WARNING, need, context.ram_bytes, "one node",
            fix="Make the model inside deepspeed.zero.Init."
            if better
            else "Load it in bf16, or with fewer processes on a node.",
        )  # fmt: skip


def shared(view: View, context: Context) -> Iterator[Problem]:
    """/dev/shm is large enough for several processes."""
    if context.row is not None and (context.gpus or 1) > 1 and context.row.shm_bytes < _LEAST_SHM:
        yield Problem(
            path="", severity=WARNING,
            message=f"the row {context.row.name} gives {size(context.row.shm_bytes)} of /dev/shm to {context.gpus} "
            "processes",
            fix="Run it with --shm-size 1g or more, or --ipc=host.",
            why="NCCL, gloo and data loaders exchange data through it, and end when it is full.",
        )  # fmt: skip


def _asked(view: View, context: Context) -> _Asked | None:
    """None where the model, the GPU or their number is not known."""
    shape = getattr(context.model, "shape", None)
    kind = dtype(view) or ("bf16" if context.fills_auto else None)
    if shape is None or context.gpu is None or context.gpus is None or kind is None or not hasattr(shape, "blocks"):
        return None
    from envbuild.sizing.cards import Card
    from envbuild.sizing.ladder import tuned
    from envbuild.sizing.setup import Dtype, Machine, Place, Setup

    name, sm = context.gpu.name, context.gpu.sm
    card = Card(
        name=name, title=name, gpu=name, memory=context.gpu.memory_bytes or 0, sm=f"{sm // 10}.{sm % 10}", bus="",
        link=1.0, compute=1.0, mark="", source="",
    )  # fmt: skip
    said = {
        field: int(number)
        for path, field in _NUMBERS.items()
        if (number := view.get(f"{Z}.{path}").number) is not None and number >= 0
    }
    micro, steps = view.get(MICRO), view.get("gradient_accumulation_steps")
    pinned = [view.get(f"{Z}.offload_{what}.pin_memory").on for what in ("optimizer", "param") if view.device(what)]
    summed = TYPES.get(str(view.get("data_types.grad_accum_dtype").value))
    setup = Setup(
        stage=view.stage, dtype=Dtype(kind), pinned=any(pinned),
        accumulation_dtype=Dtype(summed) if summed else None,
        optimizer=Place(view.device("optimizer") or "none"), parameters=Place(view.device("param") or "none"),
        micro_batch=max(1, int(micro.number or 1)), accumulation=max(1, int(steps.number or 1)),
        overlap=view.get(f"{Z}.overlap_comm").value is not False,
        # from_pretrained does so by itself under Trainer and Accelerate; of a script nobody knows.
        zero_init=view.stage == 3 and context.fills_auto,
    )  # fmt: skip
    if context.fills_auto:
        setup = tuned(shape, setup)
    return _Asked(
        shape=shape, setup=_with(setup, said),
        machine=Machine(card=card, gpus=context.gpus, nodes=context.nodes, ram=context.ram_bytes),
    )  # fmt: skip


def _with(setup: Setup, said: dict[str, int]) -> Setup:
    from dataclasses import replace

    return replace(setup, **said)  # type: ignore[arg-type]


def _judged(need: Need, has: int) -> Severity | None:
    """An error stands on what follows from the source; a warning on the rest, too."""
    from envbuild.sizing.ladder import FILLED
    from envbuild.sizing.part import Basis

    if sum(part.value for part in need.parts if part.basis is not Basis.ASSUMED) > has:
        return ERROR
    return WARNING if need.total > FILLED * has else None


def _problem(
    view: View, severity: Severity, need: Need, has: int, where: str, more: str = "", *, fix: str, assumed: str = ""
) -> Problem:
    from envbuild.sizing.part import Basis

    largest = sorted(need.parts, key=lambda part: -part.value)[:3]
    parts = ", ".join(f"{part.name} {size(part.value)} ({part.numbers})" for part in largest)
    guessed = [part.name for part in need.parts if part.basis is Basis.ASSUMED]
    return view.get(f"{Z}.stage").problem(
        severity, f"{need.name}: {size(need.total)} for {where} of {size(has)}{more}", fix=fix,
        why=f"{parts}."
        + (f" Rules of thumb: {', '.join(guessed)}{assumed}." if guessed and severity is not ERROR else ""),
    )  # fmt: skip


def unknown(view: View, context: Context) -> Iterator[Problem]:
    """A guessed model is said to be one."""
    shape = getattr(context.model, "shape", None)
    if shape is not None and getattr(shape, "guessed", False) and context.gpu is not None:
        yield Problem(
            path="", severity=INFO, message=f"of {shape.name} only the size is known: its shape is a guess",
            fix="Say it with --model-config config.json.",
        )  # fmt: skip


RULES = (
    Rule(id="memory.gpu", title="the model fits the GPU", judge=gpu, source=_SOURCE),
    Rule(
        id="memory.host", title="what is offloaded fits the host, pinned blocks rounded up", judge=host, source=_SOURCE
    ),
    Rule(id="memory.loading", title="the model fits the host while it is loaded", judge=loading, source=_SOURCE),
    Rule(
        id="memory.shm", title="/dev/shm is large enough for several processes", judge=shared,
        source="NVIDIA/nccl#342; docker run --shm-size is 64 MB unless said",
    ),
    Rule(id="memory.guessed", title="a guessed model is said to be one", judge=unknown, source="sizing.known"),
)  # fmt: skip
