"""mjx_lite: MuJoCo's runtime as pure, differentiable, batched functions in JAX.

Use it as MJX: `import mjx_lite as mjx`. Shapes are those of one world; `jax.vmap` batches.
"""

from mjx_lite.api import (
  angmom_mat,
  apply_ft,
  camlight,
  collision,
  com_pos,
  com_vel,
  constraint_jacobian,
  contact_force,
  crb,
  differentiate_pos,
  energy_pos,
  energy_vel,
  euler,
  factor_m,
  forward,
  full_m,
  fwd_acceleration,
  fwd_actuation,
  fwd_position,
  fwd_velocity,
  geom_distance,
  integrate_pos,
  jac,
  jac_body,
  jac_body_com,
  jac_dot,
  jac_geom,
  jac_site,
  jac_subtree_com,
  jit,
  kinematics,
  local_to_global,
  make_constraint,
  mul_m,
  multi_ray,
  object_acceleration,
  object_velocity,
  passive,
  ray,
  reset_data,
  rne,
  rne_postconstraint,
  rollout,
  solve,
  solve_m,
  step,
  step1,
  step2,
  subtree_vel,
  tendon,
  tendon_armature,
  tendon_bias,
  transmission,
  xfrc_accumulate,
)
from mjx_lite.core.enums import (
  BiasType,
  CamLightType,
  ConeType,
  ConstraintState,
  ConstraintType,
  DisableBit,
  DynType,
  EnableBit,
  EqType,
  GainType,
  GeomType,
  IntegratorType,
  JacobianType,
  JointType,
  ObjType,
  SensorType,
  SolverType,
  State,
  TrnType,
  WrapType,
)
from mjx_lite.core.errors import MjxError, UnsupportedModelError
from mjx_lite.core.status import Status, Warning
from mjx_lite.core.types import Contact, Data, Model, Option, Statistic
from mjx_lite.io.data import bytes_per_world, get_data, get_data_into, make_data, put_data
from mjx_lite.io.model import put_model
from mjx_lite.io.names import id2name, name2id
from mjx_lite.io.state import get_state, set_state, state_size

__version__ = "0.1.0"

__all__ = [
  "BiasType", "CamLightType", "ConeType", "ConstraintState", "ConstraintType", "Contact", "Data", "DisableBit", "DynType",
  "EnableBit", "EqType", "GainType", "GeomType", "IntegratorType", "JacobianType", "JointType", "MjxError", "Model",
  "ObjType", "Option", "SensorType", "SolverType", "State", "Statistic", "Status", "TrnType", "UnsupportedModelError",
  "Warning", "WrapType", "angmom_mat", "apply_ft", "bytes_per_world", "camlight", "collision", "com_pos", "com_vel",
  "constraint_jacobian", "contact_force", "crb", "differentiate_pos", "energy_pos", "energy_vel", "euler", "factor_m",
  "forward", "full_m", "fwd_acceleration", "fwd_actuation", "fwd_position", "fwd_velocity", "geom_distance", "get_data",
  "get_data_into", "get_state", "id2name", "integrate_pos", "jac", "jac_body", "jac_body_com", "jac_dot", "jac_geom",
  "jac_site", "jac_subtree_com", "jit", "kinematics", "local_to_global", "make_constraint", "make_data", "mul_m", "multi_ray",
  "name2id", "object_acceleration", "object_velocity", "passive", "put_data", "put_model", "ray", "reset_data", "rne",
  "rne_postconstraint", "rollout", "set_state", "solve", "solve_m", "state_size", "step", "step1", "step2", "subtree_vel",
  "tendon", "tendon_armature", "tendon_bias", "transmission", "xfrc_accumulate",
]  # fmt: skip
