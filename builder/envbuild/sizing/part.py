"""A figure with the formula that it comes from."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Basis(str, Enum):
    """How sure a figure is."""

    READ = "read"  # follows from the shape and from what DeepSpeed's source allocates
    MEASURED = "measured"  # a run in the cpu image agrees
    ASSUMED = "assumed"  # a rule of thumb: measure it


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One part of a need.

    Attributes:
        value: In the unit of the need.
        formula: In letters; LETTERS says what each means.
        numbers: The formula with its numbers.
    """

    name: str
    value: float
    formula: str
    numbers: str
    basis: Basis = Basis.READ


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """What something takes, part by part.

    Attributes:
        unit: ``bytes`` or ``seconds``.
    """

    name: str
    parts: tuple[Part, ...]
    unit: str = "bytes"

    @property
    def total(self) -> float:
        """The sum of the parts."""
        return sum(part.value for part in self.parts)

    def part(self, name: str) -> float:
        """The value of one part; 0 where there is none of that name."""
        return sum(part.value for part in self.parts if part.name == name)


# What the letters in the formulae mean.
LETTERS = {
    "P": "parameters of the model",
    "N": "GPUs in the job",
    "n": "GPUs on one node",
    "S": "parameters that one GPU is in charge of, P / N",
    "p": "bytes of one parameter in the computing type",
    "g": "bytes of one accumulated gradient",
    "G": "gradient_accumulation_steps",
    "k": "times that a micro step gathers the parameters: 2, with recomputation 3",
    "b": "sequences in a micro-batch",
    "s": "tokens in a sequence",
    "h": "hidden size",
    "L": "layers",
    "V": "vocabulary",
    "others": "(N - 1) / N: what a GPU has not, or gives away",
}


def product(name: str, basis: Basis = Basis.READ, **factors: float) -> Part | None:
    """A part that is a product; None where it is nothing. The letters are joined as they are named: ``p=2, S=10``.

    A factor whose name is ``_`` and digits is a bare number; a name with underscores is read as words.
    """
    value = 1.0
    for factor in factors.values():
        value *= factor
    if not value:
        return None
    letters = [number(factors[each]) if each.startswith("_") else each.replace("_", " ") for each in factors]
    numbers = " x ".join(number(factor) for factor in factors.values())
    return Part(name=name, value=value, formula=" x ".join(letters), numbers=numbers, basis=basis)


def number(value: float) -> str:
    """A number as formulae show it."""
    return f"{value:,.0f}" if value == round(value) else f"{value:,.4g}"


def parts(*found: Part | None) -> tuple[Part, ...]:
    """The parts that are something."""
    return tuple(part for part in found if part is not None)
