"""A model's shape: its weights, tensor by tensor, and the sizes that its activations follow from.

The parameter count is the sum of the weights, so that it is exact where the weights are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True, slots=True, kw_only=True)
class Weight:
    """One parameter tensor.

    Attributes:
        size: Its elements.
        copies: How many there are of it in its block, such as one for each expert.
        used: How many of the copies one token passes through.
    """

    name: str
    size: int
    copies: int = 1
    used: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Weights that belong together, such as one layer; ``count`` of them are alike."""

    name: str
    count: int
    weights: tuple[Weight, ...]

    @property
    def size(self) -> int:
        """The elements of one block."""
        return sum(weight.size * weight.copies for weight in self.weights)

    @property
    def used(self) -> int:
        """The elements of one block that one token passes through."""
        return sum(weight.size * weight.used for weight in self.weights)


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A model's shape.

    Attributes:
        name: What the user calls it: a known name, a file, or a count.
        family: The ``model_type`` of its configuration.
        query: The width of all query heads together; ``key_value`` that of keys and values, for one of the two.
        intermediate: The width of the feed-forward part that one token passes through, all used experts together.
        gated: Whether the feed-forward part has a gate projection beside the up projection.
        blocks: All weights; tied ones once.
        experts: 0 for a dense model.
        verified: Whether the count of this family was compared with the model itself.
        guessed: Whether this is no real model, only one of about that size.
        notes: What a reader should know about the count.
    """

    name: str
    family: str
    hidden: int
    layers: int
    heads: int
    query: int
    key_value: int
    intermediate: int
    gated: bool
    vocabulary: int
    positions: int | None
    tied: bool
    blocks: tuple[Block, ...]
    experts: int = 0
    experts_used: int = 0
    verified: bool = True
    guessed: bool = False
    notes: tuple[str, ...] = ()

    @cached_property
    def parameters(self) -> int:
        """All parameters."""
        return sum(block.size * block.count for block in self.blocks)

    @cached_property
    def used_parameters(self) -> int:
        """The parameters that one token passes through: fewer than all only with experts."""
        return sum(block.used * block.count for block in self.blocks)

    @cached_property
    def largest_block(self) -> Block:
        """The largest layer, or the embedding where that is larger."""
        return max(self.blocks, key=lambda block: block.size)

    @cached_property
    def largest_weight(self) -> Weight:
        """The largest single tensor."""
        return max((weight for block in self.blocks for weight in block.weights), key=lambda weight: weight.size)

    @cached_property
    def layer(self) -> int:
        """The elements of the largest layer, embeddings left out."""
        return max((block.size for block in self.blocks if "layer" in block.name), default=0)

    def persistent(self, threshold: int, most: int | None = None) -> int:
        """The elements that ZeRO-3 never partitions: tensors of at most ``threshold`` elements, ``most`` in all."""
        found = sum(
            weight.size * weight.copies * block.count
            for block in self.blocks
            for weight in block.weights
            if weight.size <= threshold
        )
        return found if most is None else min(found, most)

    def weights(self) -> Iterator[tuple[Weight, int]]:
        """Every kind of tensor with how many there are of it in the model."""
        for block in self.blocks:
            for weight in block.weights:
                yield weight, weight.copies * block.count
