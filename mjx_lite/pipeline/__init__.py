"""Stages of the step, on the engine's layout: the world axis is last. Only these modules write Data.

Each stage reads arrays from Data, calls one algorithm, and stores the record that the algorithm returns. The modules, in the
order of their imports: position, constraint, velocity, actuation, metric, acceleration, sensors, dynamics (the recipe of
`forward`), inverse, advance (integrators), reset, adaptive, step, operators.
"""

from mjx_lite.pipeline.acceleration import fwd_acceleration, solve, solver_statistics
from mjx_lite.pipeline.actuation import fwd_actuation
from mjx_lite.pipeline.adaptive import adaptive_step
from mjx_lite.pipeline.advance import INTEGRATORS, euler, implicit, rungekutta4
from mjx_lite.pipeline.constraint import constraint_jacobian, make_constraint
from mjx_lite.pipeline.dynamics import forward
from mjx_lite.pipeline.inverse import inverse
from mjx_lite.pipeline.metric import deriv_smooth_vel
from mjx_lite.pipeline.operators import differentiate_pos, full_m, integrate_pos, mul_m, solve_m, xfrc_accumulate
from mjx_lite.pipeline.position import (
  camlight,
  collision,
  com_pos,
  composite,
  crb,
  factor_m,
  fwd_position,
  kinematics,
  tendon,
  tendon_armature,
  transmission,
)
from mjx_lite.pipeline.reset import reset
from mjx_lite.pipeline.sensors import rne_postconstraint, sensor_acc, sensor_pos, sensor_vel, subtree_vel
from mjx_lite.pipeline.step import step, step1, step2
from mjx_lite.pipeline.velocity import com_vel, energy_pos, energy_vel, fwd_velocity, passive, rne, tendon_bias

__all__ = [
  "INTEGRATORS",
  "adaptive_step",
  "camlight",
  "collision",
  "com_pos",
  "com_vel",
  "composite",
  "constraint_jacobian",
  "crb",
  "deriv_smooth_vel",
  "differentiate_pos",
  "energy_pos",
  "energy_vel",
  "euler",
  "factor_m",
  "forward",
  "full_m",
  "fwd_acceleration",
  "fwd_actuation",
  "fwd_position",
  "fwd_velocity",
  "implicit",
  "integrate_pos",
  "inverse",
  "kinematics",
  "make_constraint",
  "mul_m",
  "passive",
  "reset",
  "rne",
  "rne_postconstraint",
  "rungekutta4",
  "sensor_acc",
  "sensor_pos",
  "sensor_vel",
  "solve",
  "solve_m",
  "solver_statistics",
  "step",
  "step1",
  "step2",
  "subtree_vel",
  "tendon",
  "tendon_armature",
  "tendon_bias",
  "transmission",
  "xfrc_accumulate",
]
