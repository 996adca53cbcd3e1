"""The constraint solvers."""

from mjx_lite.core.enums import SolverType
from mjx_lite.solver import cg, newton

# function (problem, warmstart) -> solution
SOLVERS = {SolverType.NEWTON: newton.minimize, SolverType.CG: cg.minimize}
