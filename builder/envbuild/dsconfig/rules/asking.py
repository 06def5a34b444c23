"""Questions that several rules ask."""

from __future__ import annotations

from collections.abc import Iterator

from envbuild.dsconfig.context import Context
from envbuild.dsconfig.document import OBJECT, Member, Node
from envbuild.dsconfig.view import Setting, View
from envbuild.dsschema import release
from envbuild.model.finding import Severity

ERROR, WARNING, INFO = Severity.ERROR, Severity.WARNING, Severity.INFO

FP32, FP16, BF16 = "fp32", "fp16", "bf16"
BYTES = {FP32: 4, FP16: 2, BF16: 2}
# deepspeed/runtime/config.py: DtypeEnum.
TYPES = {
    "fp32": FP32, "float32": FP32, "float": FP32, "torch.float32": FP32, "fp16": FP16, "float16": FP16, "half": FP16,
    "torch.float16": FP16, "bf16": BF16, "bfloat16": BF16, "torch.bfloat16": BF16,
}  # fmt: skip

# Every optimizer that a release of DeepSpeed had of its own: compared without regard to capitals. Which release has
# which is in its schema.
OWN_OPTIMIZERS = ("adam", "adamw", "adagrad", "lamb", "lion", "muadam", "muadamw", "musgd", "muon")
ONE_BIT = ("onebitadam", "onebitlamb", "zerooneadam")
# What ZeRO keeps for each parameter on NVMe: the parameter, its gradient, and the optimizer's states.
SWAPPED = {"adam": 4, "adamw": 4, "adagrad": 3, "lion": 3}


def at_least(context: Context, version: str) -> bool:
    """Whether the configuration is for that release or a later one."""
    return release(context.deepspeed) >= release(version)


def precision(view: View) -> Setting:
    """The ``enabled`` of bf16, under whichever of its two names it stands."""
    return view.get("bfloat16.enabled") if not view.has("bf16") and view.has("bfloat16") else view.get("bf16.enabled")


def dtype(view: View) -> str | None:
    """What the model is computed in; None where that is left to a launcher."""
    half, brain = view.get("fp16.enabled"), precision(view)
    if brain.on:
        return BF16
    if half.on:
        return FP16
    return None if half.auto or brain.auto else FP32


def offloads(view: View) -> bool:
    """Whether optimizer states leave the GPU."""
    return view.device("optimizer") is not None


def uses_nvme(view: View) -> bool:
    """Whether anything is swapped to NVMe."""
    return "nvme" in (view.device("optimizer"), view.device("param"))


def optimizer(view: View) -> str | None:
    """The optimizer's name as DeepSpeed compares it; None where the configuration has none."""
    said = view.get("optimizer.type").value
    if not isinstance(said, str) or not view.has("optimizer.type"):
        return None
    low = said.lower()
    return low if low in OWN_OPTIMIZERS or low in ONE_BIT else said


def whole(setting: Setting) -> int | None:
    """A number that is whole, however it is written; None for anything else."""
    number = setting.number
    return int(number) if number is not None and number == number // 1 else None


def members(view: View, path: str) -> tuple[Member, ...]:
    """What stands in a section of the file; nothing where there is none."""
    node = view.section(path)
    return node.members if node else ()


def walk(node: Node, path: str = "") -> Iterator[tuple[str, Member]]:
    """Everything that is written, with its path."""
    for member in node.members:
        here = f"{path}.{member.key}" if path else member.key
        yield here, member
        if member.node.kind == OBJECT:
            yield from walk(member.node, here)


def grouped(number: float) -> str:
    """A number for reading: 500,000,000."""
    return f"{int(number):,}" if number == number // 1 else f"{number:g}"


def size(count: float) -> str:
    """Bytes for reading: 1.5 GiB."""
    for unit, factor in (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= factor:
            return f"{count / factor:.1f} {unit}"
    return f"{int(count)} bytes"
