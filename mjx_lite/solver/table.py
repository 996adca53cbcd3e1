"""The constraint solvers."""

from mjx_lite.core.enums import SolverType
from mjx_lite.solver import implicit_diff

SOLVERS = {SolverType.NEWTON: implicit_diff.solve}
