"""NVMe: paths, buffers, asynchronous input and output."""

from __future__ import annotations

from collections.abc import Iterator

from envbuild.dsconfig.context import Context
from envbuild.dsconfig.problem import Problem
from envbuild.dsconfig.rules.asking import (
    BYTES,
    ERROR,
    INFO,
    SWAPPED,
    WARNING,
    dtype,
    grouped,
    optimizer,
    size,
    uses_nvme,
)  # fmt: skip
from envbuild.dsconfig.rules.rule import Rule
from envbuild.dsconfig.view import Setting, View

Z = "zero_optimization"
_OP = "async_io"
_SWAP = "deepspeed/runtime/swap_tensor"
_TEMPORARY = ("/tmp", "/dev/shm", "/var/tmp", "/run")


def path(view: View, context: Context) -> Iterator[Problem]:
    """A device nvme has a path."""
    for what, section in _sections(view):
        setting = view.get(f"{section}.nvme_path")
        if not setting.given or not isinstance(setting.value, str) or not setting.value:
            yield view.get(f"{section}.device").problem(
                ERROR, f"offload_{what} to nvme without nvme_path: the file is accepted, and the start fails",
                fix='Add "nvme_path": "/the/mounted/disk".',
            )  # fmt: skip


def mounted(view: View, context: Context) -> Iterator[Problem]:
    """The path is that of a disk which is there on every node."""
    seen: set[str] = set()
    for _, section in _sections(view):
        setting = view.get(f"{section}.nvme_path")
        if not isinstance(setting.value, str) or not setting.value or setting.value in seen:
            continue
        seen.add(setting.value)
        if not setting.value.startswith("/"):
            said, fix = (
                f"nvme_path {setting.value!r} depends on the folder the job starts in",
                "Write an absolute path.",
            )
        elif any(setting.value == each or setting.value.startswith(f"{each}/") for each in _TEMPORARY):
            said = f"nvme_path {setting.value!r} lies where hosts often have memory or the system's disk"
            fix = "Name the folder that the NVMe disk is mounted on."
        else:
            said = f"nvme_path {setting.value!r} has to be a mounted disk, and writable, on every node"
            import shlex

            fix = f"Look with: findmnt -T {shlex.quote(setting.value)}"
        yield setting.problem(
            WARNING, said, fix=fix, why="DeepSpeed makes the folder where it is missing, on whichever disk that is."
        )


def op(view: View, context: Context) -> Iterator[Problem]:
    """The row's image has the op that NVMe needs."""
    if context.row is None or _OP in context.row.ops:
        return
    for what, section in _sections(view):
        yield view.get(f"{section}.device").problem(
            ERROR, f"offload_{what} to nvme, but the row {context.row.name} has no {_OP}",
            fix=f"Add {_OP} to the row's ops, which brings libaio along, or take another row.",
            why="DeepSpeed would compile it when training starts, and the image has neither libaio nor a compiler.",
        )  # fmt: skip


def buffers(view: View, context: Context) -> Iterator[Problem]:
    """There are buffers for everything the optimizer keeps of one sub-group."""
    if view.device("optimizer") != "nvme":
        return
    setting, name = view.get(f"{Z}.offload_optimizer.buffer_count"), optimizer(view)
    needed = SWAPPED.get(name or "adam")
    if setting.number is None or needed is None:
        return
    told = f"{name} swaps" if name else "Adam would swap"
    if setting.number < needed:
        yield setting.problem(
            ERROR if name else WARNING,
            f"buffer_count is {setting.number:g}, but {told} {needed} tensors: the first step ends",
            fix=f"Write {needed} or more.",
            why="The parameters, their gradients and the optimizer's states of one sub-group are there together.",
        )  # fmt: skip
        return
    ahead = [each for each in ("pipeline_read", "pipeline_write") if view.get(f"{Z}.offload_optimizer.{each}").on]
    if ahead and setting.number < needed * (1 + len(ahead)):
        yield setting.problem(
            WARNING,
            f"buffer_count is {setting.number:g}: with {' and '.join(ahead)}, {1 + len(ahead)} sub-groups are there "
            f"together, and {told} {needed} tensors of each",
            fix=f"Write {needed * (1 + len(ahead))}, unless each process has a single sub-group.",
            why="Read in the source, not run.",
        )  # fmt: skip


def parameter_buffers(view: View, context: Context) -> Iterator[Problem]:
    """A buffer holds the largest parameter's share."""
    if view.device("param") != "nvme" or view.stage != 3 or context.world is None:
        return
    setting = view.get(f"{Z}.offload_param.buffer_size")
    largest = getattr(getattr(context.model, "shape", None), "largest_weight", None)
    if largest is None or setting.number is None:
        return
    share = -(-largest.size // context.world)
    if share > setting.number:
        yield setting.problem(
            ERROR,
            f"buffer_size is {grouped(setting.number)} elements, but one of {context.world} shares of "
            f"{largest.name} has {grouped(share)}: swapping it ends in an AssertionError",
            fix=f"Write {grouped(share)} or more.",
        )  # fmt: skip


def pinned_buffers(view: View, context: Context) -> Iterator[Problem]:
    """What the buffers lock of the host's memory is said."""
    kind = dtype(view)
    if view.device("param") == "nvme" and kind:
        section = f"{Z}.offload_param"
        count, length = view.get(f"{section}.buffer_count").number, view.get(f"{section}.buffer_size").number
        if count and length:
            yield _locked(view.get(f"{section}.buffer_size"), count, length, BYTES[kind], kind)
    if view.device("optimizer") == "nvme":
        count, group = view.get(f"{Z}.offload_optimizer.buffer_count").number, view.get(f"{Z}.sub_group_size")
        if count and group.number:
            share = group.number
            if context.model is not None and context.world is not None:
                share = min(share, context.model.parameters / context.world)
            yield _locked(group, count, share, 4, "fp32")


def _locked(setting: Setting, count: float, length: float, width: int, kind: str) -> Problem:
    return setting.problem(
        INFO,
        f"{grouped(count)} buffers of {grouped(length)} elements ({kind}) lock up to {size(count * length * width)} "
        "of host memory for each process",
        fix=f"A smaller {setting.path.rpartition('.')[2]} locks less, and makes smaller transfers.",
    )  # fmt: skip


def parameters(view: View, context: Context) -> Iterator[Problem]:
    """What is known of parameters on NVMe is said."""
    if view.device("param") == "nvme" and view.stage == 3:
        yield view.get(f"{Z}.offload_param.device").problem(
            WARNING,
            "parameters are swapped to NVMe only where the model is made inside deepspeed.zero.Init: else nothing is "
            "written, without a word",
            fix="Make it there (from_pretrained does under Trainer and Accelerate), and look below nvme_path.",
            why="Seen with 0.19.8 on the CPU accelerator; at the size of a real model nobody looked.",
        )  # fmt: skip


def values(view: View, context: Context) -> Iterator[Problem]:
    """Sizes and depths of aio are positive."""
    for name in ("block_size", "queue_depth", "intra_op_parallelism", "thread_count"):
        setting = view.get(f"aio.{name}")
        number = setting.number
        if not setting.given or number is None or number >= 1:
            continue
        if number < 0 or name in ("intra_op_parallelism", "thread_count"):
            yield setting.problem(
                ERROR, f"aio.{name} is {number:g}: DeepSpeed ends, or hangs, when it starts to swap",
                fix="Write a whole number from 1 on.",
            )  # fmt: skip
        else:
            yield setting.problem(
                WARNING, f"aio.{name} is {number:g}, with which nothing sensible can be read or written",
                fix="Write a whole number from 1 on.",
                why="DeepSpeed 0.19.8 took it without a word; what it swapped then was not looked at.",
            )  # fmt: skip


def unused(view: View, context: Context) -> Iterator[Problem]:
    """aio stands with NVMe."""
    if view.has("aio") and not uses_nvme(view):
        yield view.get("aio").problem(INFO, "aio has no effect: nothing is offloaded to nvme", fix="Remove it.")


def direct(view: View, context: Context) -> Iterator[Problem]:
    """GPUDirect Storage is asked for where there are GPUs."""
    setting = view.get("aio.use_gds")
    if setting.on and context.row is not None and context.row.accelerator == "cpu":
        yield setting.problem(
            ERROR, "aio.use_gds on the CPU accelerator: DeepSpeed ends when it starts", fix="Remove it."
        )


def locking(view: View, context: Context) -> Iterator[Problem]:
    """The limit of locked memory lets aio lock its buffers."""
    limit = context.row.memlock_bytes if context.row is not None else None
    if context.row is None or limit is None or not uses_nvme(view):
        return
    section = next(section for _, section in _sections(view))
    needed, kind = 0.0, dtype(view)
    if view.device("param") == "nvme" and kind:
        count, length = (view.get(f"{Z}.offload_param.{name}").number for name in ("buffer_count", "buffer_size"))
        needed = (count or 0) * (length or 0) * BYTES[kind]
    over = needed > limit
    yield view.get(f"{section}.device").problem(
        ERROR if over else WARNING,
        f"nvme locks its buffers{f', {size(needed)} of them for parameters alone' if over else ''}, and the row "
        f"{context.row.name} allows {size(limit)} of locked memory"
        + (": the process ends with a segmentation fault" if over else ""),
        fix="Run it with an unlimited memlock: docker run --ulimit memlock=-1.",
        why="DeepSpeed locks aio's buffers with mlock. CUDA's pinned memory is not under that limit.",
    )


def _sections(view: View) -> Iterator[tuple[str, str]]:
    for what in ("optimizer", "param"):
        if view.device(what) == "nvme":
            yield what, f"{Z}.offload_{what}"


RULES = (
    Rule(
        id="nvme.path", title="a device nvme has a path", judge=path,
        source=f"{_SWAP}/partitioned_param_swapper.py: _configure_aio; zero/stage3.py: _configure_tensor_swapping",
    ),
    Rule(
        id="nvme.mounted", title="the path is a disk's, on every node", judge=mounted,
        source=f"{_SWAP}: os.makedirs",
    ),
    Rule(
        id="nvme.op", title="the row has the op that NVMe needs", judge=op,
        source="op_builder/async_io.py: needs libaio; the row's ops",
    ),
    Rule(
        id="nvme.buffers", title="there are buffers for all states of the optimizer", judge=buffers,
        source=f"{_SWAP}/partitioned_optimizer_swapper.py: swap_in_optimizer_state",
    ),
    Rule(
        id="nvme.parameter-buffers", title="a buffer holds the largest parameter's share", judge=parameter_buffers,
        source=f"{_SWAP}/partitioned_param_swapper.py: 'More elements than buffer size'",
    ),
    Rule(
        id="nvme.pinned", title="what buffers lock of the host's memory is known", judge=pinned_buffers,
        source=f"{_SWAP}/optimizer_utils.py: SwapBufferManager; partitioned_param_swapper.py: new_cpu_locked_tensor",
    ),
    Rule(
        id="nvme.parameters", title="what is known of parameters on NVMe", judge=parameters, source="seen with 0.19.8"
    ),
    Rule(
        id="aio.values", title="aio's sizes and depths can be used", judge=values,
        source="csrc/aio/common/deepspeed_aio_common.cpp: divides by block_size and steps by queue_depth",
    ),
    Rule(id="aio.unused", title="aio stands with NVMe", judge=unused, source=f"{_SWAP}: nothing else reads it"),
    Rule(
        id="aio.gds", title="GPUDirect Storage is asked for on GPUs", judge=direct, since="0.15.4",
        source=f"{_SWAP}/aio_config.py: get_aio_config",
    ),
    Rule(
        id="aio.memlock", title="the limit of locked memory lets aio lock its buffers", judge=locking,
        source="csrc/pin_memory/page_alloc.cpp (before 0.19: csrc/aio/common/deepspeed_aio_utils.cpp): mlock",
    ),
)  # fmt: skip
