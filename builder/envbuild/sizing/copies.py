"""What moves in one optimizer step, and how long each link would take for it alone."""

from __future__ import annotations

from envbuild.sizing.part import Basis, Need, Part, number, parts, product
from envbuild.sizing.setup import Dtype, Machine, Place, Setup
from envbuild.sizing.shape import Shape
from envbuild.sizing.states import MASTER, MOMENTS, shard

# Of what a bus or a datasheet promises: 21 of 32 GB/s is what an A100 on PCIe 4 is known to reach, and 40 % of the
# arithmetic a good run of a large model. Rules of thumb: a measurement replaces them.
REACHED_LINK = 0.65
REACHED_COMPUTE = 0.4
# DeepSpeedCPUAdam on one node of a current server: a rule of thumb.
ADAM_PER_SECOND = 2.5e9

TO_GPU, TO_HOST, NETWORK = "host to GPU", "GPU to host", "collectives"
READ, WRITTEN = "NVMe read", "NVMe written"


def gathers(setup: Setup) -> int:
    """k: how often a micro step needs every parameter."""
    return 3 if setup.recompute else 2


def per_step(shape: Shape, setup: Setup, machine: Machine) -> Need:
    """Bytes that one rank moves in one optimizer step."""
    return Need(
        name="copies of one rank",
        parts=(*_to_gpu(shape, setup, machine), *_to_host(shape, setup, machine),
               *_collectives(shape, setup, machine), *_nvme(shape, setup, machine)),
    )  # fmt: skip


def times(shape: Shape, setup: Setup, machine: Machine) -> Need:
    """Seconds of one optimizer step by part, each alone; what overlaps is for a measurement to say.

    Parts whose link nobody gave are left out.
    """
    moved = per_step(shape, setup, machine)
    link = machine.card.link * REACHED_LINK
    found = [_compute(shape, setup, machine)]
    bus = f"{machine.card.bus}, {REACHED_LINK:.0%} of it reached"
    found += [_over(name, moved.part(name), link, bus) for name in (TO_GPU, TO_HOST)]
    if machine.nvme:
        # All ranks of a node share its NVMe.
        speed, ranks = machine.nvme, machine.gpus
        found += [_over(name, moved.part(name) * ranks, speed, "this node's NVMe") for name in (READ, WRITTEN)]
    if machine.network and machine.nodes > 1:
        # Every parameter enters a node once, however many GPUs it has.
        crossing = moved.part(NETWORK) * (machine.nodes - 1) / machine.nodes * machine.world / (machine.world - 1)
        found.append(_over("network between nodes", crossing, machine.network, "this node's network"))
    if setup.optimizer_place is not Place.GPU:
        own = shape.parameters / machine.nodes
        found.append(_over("optimizer on the CPU", own, ADAM_PER_SECOND, "parameters a second on one node"))
    return Need(name="step time, part by part", parts=parts(*found), unit="seconds")


def _to_gpu(shape: Shape, setup: Setup, machine: Machine) -> tuple[Part, ...]:
    own, size, grad, steps = shard(shape, machine), setup.dtype.bytes, setup.gradient_bytes, setup.accumulation
    found: list[Part | None] = []
    if setup.parameter_place is not Place.GPU:
        found.append(product(TO_GPU, G=steps, k=gathers(setup), p=size, S=own))
    elif setup.optimizer_place is not Place.GPU:
        # The parameters that the CPU has updated.
        found.append(product(TO_GPU, p=size, S=own))
    if setup.optimizer_place is not Place.GPU:
        # ZeRO-3 takes each accumulated gradient back to the GPU; ZeRO-2 only to add another to it.
        found.append(
            product(TO_GPU, G=steps, g=grad, S=own) if setup.stage == 3
            else product(TO_GPU, G_less_1=steps - 1 if setup.stage == 2 else 0, p=size, S=own)
        )  # fmt: skip
    return parts(*found)


def _to_host(shape: Shape, setup: Setup, machine: Machine) -> tuple[Part, ...]:
    if setup.optimizer_place is Place.GPU:
        return ()
    own, steps = shard(shape, machine), setup.accumulation
    each = None
    if setup.stage == 3:
        each = product(TO_HOST, G=steps, g=setup.gradient_bytes, S=own)
    elif setup.stage == 2 and steps > 1:
        each = product(TO_HOST, G=steps, p=setup.dtype.bytes, S=own)
    return parts(each, product(TO_HOST, _4=MASTER, S=own))


def _collectives(shape: Shape, setup: Setup, machine: Machine) -> tuple[Part, ...]:
    world, count, size = machine.world, shape.parameters, setup.dtype.bytes
    others = (world - 1) / world
    steps, grad = setup.accumulation, setup.gradient_bytes
    if setup.stage == 3:
        return parts(
            product(NETWORK, G=steps, k=gathers(setup), p=size, P=count, others=others),
            product(NETWORK, G=steps, g=size, P=count, others=others),
        )
    if setup.stage == 2:
        reduced = product(NETWORK, G=steps, p=size, P=count, others=others)
    elif setup.stage == 1:
        reduced = product(NETWORK, g=grad, P=count, others=others)
    else:
        reduced = product(NETWORK, _2=2, p=size, P=count, others=others)
    gathered = product(NETWORK, p=size, P=count, others=others) if setup.stage else None
    return parts(reduced, gathered)


def _nvme(shape: Shape, setup: Setup, machine: Machine) -> tuple[Part, ...]:
    own, size = shard(shape, machine), setup.dtype.bytes
    found: list[Part | None] = []
    if setup.optimizer_place is Place.NVME:
        found.append(product(READ, _16=MASTER + MOMENTS + 4, S=own))
        found.append(product(WRITTEN, _16=MASTER + MOMENTS + 4, S=own))
    if setup.parameter_place is Place.NVME:
        rest = max(0, own - setup.in_cpu)
        found.append(product(READ, G=setup.accumulation, k=gathers(setup), p=size, beyond_max_in_cpu=rest))
        found.append(product(WRITTEN, p=size, beyond_max_in_cpu=rest))
    return parts(*found)


def _compute(shape: Shape, setup: Setup, machine: Machine) -> Part | None:
    # 2 operations a parameter forward, 4 backward, 2 again where the forward pass is repeated; attention on top.
    passes = 8 if setup.recompute else 6
    attention = passes * shape.layers * setup.sequence * shape.query
    operations = passes * shape.used_parameters + attention
    tokens = setup.accumulation * setup.tokens
    speed = machine.card.compute * REACHED_COMPUTE * (0.5 if setup.dtype is Dtype.FP32 else 1)
    return Part(
        name="compute", value=tokens * operations / speed, formula="G x b x s x operations a token / speed",
        numbers=f"{number(tokens)} x {number(operations)} / {speed:.3g} ({REACHED_COMPUTE:.0%} of the datasheet)",
        basis=Basis.ASSUMED,
    )  # fmt: skip


def _over(name: str, amount: float, speed: float, what: str) -> Part | None:
    if not amount:
        return None
    numbers = f"{number(amount)} / {speed:.3g}"
    return Part(
        name=name, value=amount / speed, formula=f"amount / speed ({what})", numbers=numbers, basis=Basis.ASSUMED
    )
