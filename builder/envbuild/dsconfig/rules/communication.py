"""Communication: number formats, quantisation, and what is logged of it."""

from __future__ import annotations

from collections.abc import Iterator

from envbuild.dsconfig.context import Context
from envbuild.dsconfig.problem import Problem
from envbuild.dsconfig.rules.asking import BF16, ERROR, FP16, FP32, INFO, WARNING, at_least, dtype
from envbuild.dsconfig.rules.rule import Rule
from envbuild.dsconfig.view import View

Z = "zero_optimization"
_CONFIG = "deepspeed/runtime/config.py: get_communication_data_type"


def formats(view: View, context: Context) -> Iterator[Problem]:
    """Data types for communication are ones that release knows."""
    # Up to 0.14.0 bfloat16 was spelt otherwise.
    brain = "bf16" if at_least(context, "0.14.1") else "bfp16"
    for path in ("communication_data_type", "seq_parallel_communication_data_type"):
        setting = view.get(path)
        if not setting.given or setting.value is None or setting.key is None:
            continue
        said = setting.value.lower() if isinstance(setting.value, str) else setting.value
        if said not in ("fp16", "fp32", brain):
            yield setting.problem(
                ERROR, f"{path} is {setting.value!r}: DeepSpeed {context.deepspeed} ends with a ValueError",
                fix=f"Write fp16, {brain} or fp32; without it the model's own format is taken.",
            )  # fmt: skip


def narrow(view: View, context: Context) -> Iterator[Problem]:
    """Stages 1 and 2 of 0.8 scatter 16-bit gradients only."""
    setting = view.get("communication_data_type")
    said = setting.value.lower() if isinstance(setting.value, str) and setting.given else dtype(view)
    if view.stage in (1, 2) and view.get(f"{Z}.reduce_scatter").on and said == FP32:
        subject = setting if setting.given else view.get(f"{Z}.stage")
        yield subject.problem(
            ERROR, f"gradients in fp32 with ZeRO stage {view.stage} and reduce_scatter: this DeepSpeed ends at once",
            fix=f"Enable fp16 or bf16, or set {Z}.reduce_scatter to false.",
        )  # fmt: skip


def underflow(view: View, context: Context) -> Iterator[Problem]:
    """bf16 gradients are not squeezed into fp16's range."""
    setting = view.get("communication_data_type")
    if setting.given and setting.value == FP16 and dtype(view) == BF16:
        yield setting.problem(
            WARNING, "communication_data_type fp16 for a model in bf16: what is above 65,504 becomes infinite",
            fix="Remove it: bf16 is taken then.", why="Inferred from the two formats, not from a run.",
        )  # fmt: skip


def quantised(view: View, context: Context) -> Iterator[Problem]:
    """Quantised communication stands where it is used."""
    for name in ("zero_quantized_weights", "zero_quantized_gradients", "zero_quantized_nontrainable_weights"):
        setting = view.get(f"{Z}.{name}")
        if not setting.on or setting.key is None:
            continue
        if view.stage != 3:
            yield setting.problem(
                WARNING, f"{name} is for ZeRO stage 3; this is {view.stage}, where it is ignored", fix="Remove it."
            )
        elif context.row is not None and context.row.accelerator == "cuda" and "quantizer" not in context.row.ops:
            yield setting.problem(
                WARNING, f"{name} needs the op quantizer, which the row {context.row.name} does not have",
                fix="Add quantizer to the row's ops.", why="DeepSpeed would compile it when training starts.",
            )  # fmt: skip


def quantised_gradients(view: View, context: Context) -> Iterator[Problem]:
    """Quantised gradients are scattered."""
    setting = view.get(f"{Z}.zero_quantized_gradients")
    if setting.on and view.stage == 3 and view.get(f"{Z}.reduce_scatter").value is False:
        yield setting.problem(
            ERROR, "zero_quantized_gradients without reduce_scatter: DeepSpeed ends with an AssertionError",
            fix=f"Remove {Z}.reduce_scatter: false.",
        )  # fmt: skip


def logged(view: View, context: Context) -> Iterator[Problem]:
    """What the comms logger's times mean is said."""
    setting = view.get("comms_logger.enabled")
    if setting.on:
        yield setting.problem(
            INFO, "the comms logger's times add up from one operation to the next, and it waits for every operation",
            fix="Use its counts and sizes; measure times in another run.", why="Seen with 0.19.8.",
        )  # fmt: skip


RULES = (
    Rule(
        id="communication.format", title="data types for communication are known", judge=formats, source=_CONFIG
    ),
    Rule(
        id="communication.narrow", title="0.8 scatters 16-bit gradients only", judge=narrow, before="0.9.0",
        source="deepspeed/runtime/zero/stage_1_and_2.py: __init__",
    ),
    Rule(
        id="communication.range", title="bf16 gradients keep their range", judge=underflow,
        source="IEEE 754 binary16 and bfloat16",
    ),
    Rule(
        id="communication.quantised", title="quantised communication stands where it is used", judge=quantised,
        since="0.10.3", source="deepspeed/runtime/engine.py: _configure_zero_optimizer; op_builder/quantizer.py",
    ),
    Rule(
        id="communication.quantised-gradients", title="quantised gradients are scattered", judge=quantised_gradients,
        since="0.10.3", source="deepspeed/runtime/zero/stage3.py: __init__",
    ),
    Rule(
        id="communication.logger", title="what the comms logger's times mean", judge=logged, since="0.18.3",
        source="deepspeed/utils/comms_logging.py; measured with 0.19.8",
    ),
)  # fmt: skip
