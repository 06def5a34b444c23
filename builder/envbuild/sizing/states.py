"""Parameters, gradients and optimizer states: how many bytes of each lie where, as DeepSpeed 0.19.8 allocates them.

Read in runtime/zero/stage3.py, runtime/zero/stage_1_and_2.py and runtime/fp16/fused_optimizer.py of its sdist; the
integration tests measure the sums. For Adam: a master copy of 4 bytes and two moments of 4 bytes for each parameter.
"""

from __future__ import annotations

from dataclasses import dataclass

from envbuild.sizing.part import Basis, Part, parts, product
from envbuild.sizing.setup import Dtype, Machine, Place, Setup
from envbuild.sizing.shape import Shape

MASTER, MOMENTS, GRADIENT = 4, 8, 4
# runtime/engine.py: MEMORY_OPT_ALLREDUCE_SIZE, in elements, of the reduction without ZeRO.
_REDUCED = 500_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class States:
    """What one rank keeps.

    Attributes:
        gpu: On the GPU, all the time.
        step: On the GPU only while the optimizer steps.
        host: In host memory, all the time.
        pinned: The sizes of the page-locked blocks among ``host``, each an allocation of its own.
    """

    gpu: tuple[Part, ...]
    step: tuple[Part, ...]
    host: tuple[Part, ...]
    pinned: tuple[float, ...]


def states(shape: Shape, setup: Setup, machine: Machine) -> States:
    """The states of one rank."""
    if setup.stage == 3:
        return _three(shape, setup, machine)
    if setup.stage == 0:
        return _none(shape, setup)
    return _one_two(shape, setup, machine)


def shard(shape: Shape, machine: Machine) -> int:
    """The parameters that one rank is in charge of: S = P / N."""
    return -(-shape.parameters // machine.world)


def _none(shape: Shape, setup: Setup) -> States:
    """No ZeRO: everything on every GPU; for 16 bits a master copy beside it."""
    mixed = setup.dtype is not Dtype.FP32
    count = shape.parameters
    gpu = parts(
        product("parameters", p=setup.dtype.bytes, P=count),
        product("gradients", p=setup.dtype.bytes, P=count),
        product("master parameters", _4=MASTER, P=count) if mixed else None,
        product("optimizer moments", _8=MOMENTS, P=count),
    )
    # The flat copy is gone before the fp32 gradients of 16 bits, which are more, are made.
    flat = product("flat gradients in the reduction", p=setup.dtype.bytes, bucket=min(count, _REDUCED))
    step = parts(product("fp32 gradients in the step", _4=GRADIENT, P=count) if mixed else flat)
    return States(gpu=gpu, step=step, host=(), pinned=())


def _one_two(shape: Shape, setup: Setup, machine: Machine) -> States:
    """ZeRO-1 and -2: parameters whole on every GPU, optimizer states in shards."""
    count, own = shape.parameters, shard(shape, machine)
    size, grad = setup.dtype.bytes, setup.gradient_bytes
    offloaded = setup.optimizer_place is not Place.GPU
    optimizer = parts(product("master parameters", _4=MASTER, S=own), product("optimizer moments", _8=MOMENTS, S=own))
    whole = product("parameters", p=size, P=count)
    if setup.stage == 1:
        # Not partitioned: they wait in param.grad, and in an attribute of their own where the type differs.
        waiting = parts(
            product("gradients", p=size, P=count),
            product("accumulated gradients", g=grad, P=count) if grad != size else None,
        )
    else:
        waiting = () if offloaded else parts(product("gradients", g=grad, S=own))
    largest = shape.largest_weight.size
    if not offloaded:
        step = _flattened(grad, own)
        return States(gpu=(*parts(whole), *waiting, *optimizer), step=step, host=(), pinned=())
    accumulated = own if setup.accumulation > 1 and setup.stage == 2 else 0
    host = (
        *optimizer,
        *parts(
            product("fp32 gradients", Basis.MEASURED, _4=GRADIENT, S=own),
            product("parameters to be copied back", Basis.MEASURED, p=size, S=own),
            product("accumulated gradients", Basis.MEASURED, p=size, S=accumulated),
            product("gradient buffer", Basis.MEASURED, p=size, largest_tensor=largest),
        ),
    )
    pinned: tuple[int, ...] = (MASTER * own, GRADIENT * own, size * own, size * largest)
    if accumulated:
        # A block for each tensor that this rank is in charge of.
        pinned += tuple(
            size * weight.size
            for weight, copies in shape.weights()
            for _ in range(max(1, round(copies / machine.world)))
        )
    buffer = parts(product("gradient buffer", Basis.MEASURED, p=size, largest_tensor=largest))
    return States(gpu=(*parts(whole), *waiting, *buffer), step=(), host=host, pinned=pinned if setup.pinned else ())


def _three(shape: Shape, setup: Setup, machine: Machine) -> States:
    """ZeRO-3: everything in shards."""
    own = shard(shape, machine)
    size, grad = setup.dtype.bytes, setup.gradient_bytes
    optimizer, parameters = setup.optimizer_place, setup.parameter_place
    gpu: list[Part | None] = []
    host: list[Part | None] = []
    pinned: list[float] = []
    if parameters is Place.GPU:
        gpu.append(product("parameters", p=size, S=own))
    else:
        kept = own if parameters is Place.CPU else min(own, setup.in_cpu)
        host.append(product("parameters", Basis.MEASURED, p=size, S=kept))
        # This block is page-locked whatever pin_memory says (_create_param_groups_fp16_flat_cpu_memory).
        pinned.append(size * kept)
        if parameters is Place.NVME:
            host.append(
                product("parameter buffers", p=size, buffers=setup.parameter_buffers, buffer_size=setup.buffer_size)
            )
    persistent = shape.persistent(setup.persistence, setup.max_persistence)
    gpu.append(product("persistent parameters", p=size, persistent=persistent))
    group = min(own, setup.sub_group)
    if optimizer is Place.GPU:
        # In fp32 as well: the source would spare that copy, but compares a device with a name, and never does.
        gpu += [
            product("master parameters", Basis.MEASURED, _4=MASTER, S=own),
            product("optimizer moments", Basis.MEASURED, _8=MOMENTS, S=own),
            product("accumulated gradients", Basis.MEASURED, g=grad, S=own),
        ]
        step = _flattened(grad, group)
        return States(gpu=parts(*gpu), step=step, host=parts(*host), pinned=tuple(pinned))
    if optimizer is Place.CPU:
        host += [
            product("master parameters", Basis.MEASURED, _4=MASTER, S=own),
            product("optimizer moments", Basis.MEASURED, _8=MOMENTS, S=own),
            product("fp32 gradients", Basis.MEASURED, _4=GRADIENT, S=own),
        ]
        pinned += [GRADIENT * block for block in _blocks(own, group)] if setup.pinned else []
    else:
        host += [
            product("swap buffers", _4=4, buffers=setup.optimizer_buffers, sub_group=group),
            product("fp32 gradients", _4=GRADIENT, sub_group=group),
        ]
    host.append(product("accumulated gradients", Basis.MEASURED, g=grad, S=own))
    pinned += [grad * own] if setup.pinned else []
    return States(gpu=parts(*gpu), step=(), host=parts(*host), pinned=tuple(pinned))


def _flattened(grad: int, count: int) -> tuple[Part, ...]:
    """What the optimizer's step makes of the gradients: one flat copy, and that in fp32."""
    return parts(
        product("flat gradients in the step", g=grad, sub_group=count) if grad < GRADIENT else None,
        product("fp32 gradients in the step", _4=GRADIENT, sub_group=count),
    )


def _blocks(own: int, group: int) -> list[int]:
    """The sizes of the sub-groups of one rank."""
    whole, rest = divmod(own, max(1, group))
    # Far more sub-groups than a real model has would only be a long list of equal blocks.
    return [group] * min(whole, 100_000) + ([rest] if rest else [])
