"""What training a model takes: memory of GPUs and hosts, copies, and time, each figure with its formula.

``Shape`` (from ``hf`` or ``known``), ``Machine`` (with a ``Card``) and ``Setup`` go in; ``Need``, a sum of ``Part``,
comes out. ``ladder`` puts them together.
"""

from envbuild.sizing.cards import Card
from envbuild.sizing.part import LETTERS, Basis, Need, Part
from envbuild.sizing.setup import Dtype, Machine, Place, Setup
from envbuild.sizing.shape import Shape

__all__ = ["LETTERS", "Basis", "Card", "Dtype", "Machine", "Need", "Part", "Place", "Setup", "Shape"]
