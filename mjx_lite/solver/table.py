"""The constraint solvers.

Tests: tests/solver/test_solvers.py.
"""

from mjx_lite.model.enums import SolverType
from mjx_lite.solver import cg, newton, pgs

# function (problem, warmstart) -> solution
SOLVERS = {SolverType.NEWTON: newton.minimize, SolverType.CG: cg.minimize, SolverType.PGS: pgs.minimize}
