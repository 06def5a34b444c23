"""The matrix: rows that know their place in the file, and the rules they are held to."""

from envbuild.matrix.load import Matrix, MatrixError, Place, load
from envbuild.matrix.rules import RULES, check

__all__ = ["RULES", "Matrix", "MatrixError", "Place", "check", "load"]
