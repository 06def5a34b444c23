"""What the facts say of a row, as far as an image is held to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from envbuild.elf.isa import Dispatch, Guard
from envbuild.facts import Facts
from envbuild.judge.versions import cuda_of
from envbuild.model import Environment
from envbuild.plan import capabilities


@dataclass(frozen=True, slots=True, kw_only=True)
class Standards:
    """Known before an image is looked at.

    Attributes:
        sms: Compute capabilities of the row's GPUs, such as ``9.0``.
        driver: The oldest driver for the row's CUDA and GPUs; None for a row without CUDA, or where nobody knows.
        dispatch: What an op keeps behind a run-time check of the CPU, by op.
    """

    sms: tuple[str, ...] = ()
    driver: str | None = None
    dispatch: Mapping[str, Dispatch] = field(default_factory=dict)

    @classmethod
    def of(cls, env: Environment, facts: Facts) -> Standards:
        """Looked up for a row."""
        cuda = cuda_of(env.torch.build)
        floor = facts.driver_floor(cuda, env.gpus) if cuda else None
        dispatch = {}
        for name, op in facts.deepspeed.ops.items():
            found = op.dispatch(env.deepspeed.version)
            if found is not None:
                guards = tuple(Guard(functions=each.functions, extensions=each.extensions) for each in found.guards)
                dispatch[name] = Dispatch(check=found.check, guards=guards)
        return cls(sms=tuple(capabilities(env, facts)), driver=floor.floor if floor else None, dispatch=dispatch)
