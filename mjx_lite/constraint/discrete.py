"""Rows under the discrete integrator: their springs and dampers are implicit too, and they are measured in its metric.

Source: MuJoCo 4.0 documentation, Computation, Integrators (discrete); `mj_makeImpedance`, `mj_referenceConstraint`.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mjx_lite.constraint import jacobian
from mjx_lite.constraint.impedance import Impedance
from mjx_lite.constraint.rows import Rows
from mjx_lite.core.enums import MAXIMP, MINVAL, ConstraintType
from mjx_lite.core.types import Model
from mjx_lite.math import vector

_ONE_SIDED = (
  ConstraintType.LIMIT_JOINT, ConstraintType.LIMIT_TENDON, ConstraintType.CONTACT_FRICTIONLESS,
  ConstraintType.CONTACT_PYRAMIDAL, ConstraintType.CONTACT_ELLIPTIC,
)  # fmt: skip


class Resolved(NamedTuple):
  """What the step makes of the rows' laws, each (nefc, W)."""

  K: jax.Array
  B: jax.Array
  factor: jax.Array  # 1 + h B + h^2 K I


def resolve(m: Model, law: Impedance, k: jax.Array, solref: jax.Array) -> Resolved:
  """Stiffness and damping of the rows as the step takes them.

  A spring of a limit or contact that is too stiff for the timestep becomes one that the step closes just so.

  Args:
    m: the model.
    law: of the rows.
    k: (nefc, W) stiffness, zero of friction.
    solref: (nefc, 2, W).

  Gradient: that of the branch taken.
  """
  h, b = m.opt.timestep, law.B
  if m.opt.use_refsafe:
    excess = h * h * k * law.I
    one_sided = np.isin(m.plan.rows.type, _ONE_SIDED)[:, None]
    over = one_sided & (solref[:, 0] > 0) & (k > 0) & (excess > 1)
    most = MAXIMP * (1 - law.I) / (law.I * (1 - MAXIMP))
    softer = jnp.minimum(b / jnp.sqrt(jnp.where(over, excess, 1)), jnp.maximum(most - 2, 0) / h)
    k, b = jnp.where(over, 1 / (h * h * law.I), k), jnp.where(over, softer, b)
  return Resolved(k, b, 1 + h * b + h * h * k * law.I)


def shrinkage(m: Model, r: Rows, cdof: jax.Array, inertia: jax.Array, effective: jax.Array) -> jax.Array:
  """How much smaller (nefc, W) the inverse inertia of the rows is in the effective metric, by the diagonals alone.

  Args:
    m: the model.
    r: the rows.
    cdof: (nv, 6, W).
    inertia: (nv, W) diagonal of M.
    effective: (nv, W) diagonal of the effective metric.
  """
  j = jacobian.dense(m, r.jacobian, cdof)
  square = jacobian.first_of_contact(m, j * j)
  ahead, behind = (vector.total(jnp.swapaxes(square / x, 0, 1)) for x in (effective, inertia))
  some = behind > MINVAL
  return jnp.where(some, ahead / jnp.where(some, behind, 1), 1)


def in_metric(
  m: Model, r: Rows, cdof: jax.Array, scale: jax.Array, adhesion: jax.Array | None = None
) -> tuple[Rows, jax.Array]:
  """Rows with the regularisation that fits the effective metric, and the dofs (nv, W) that active rows act on.

  Args:
    m: the model.
    r: as `make_constraint` gave them.
    cdof: (nv, 6, W).
    scale: (nefc, W) what `shrinkage` says.
    adhesion: (nefc, W) the rows' share of it, if there is any.
  """
  regular, law = jnp.maximum(r.R * scale, MINVAL), r.KBIP[:, 2]
  touched = jnp.any((jacobian.dense(m, r.jacobian, cdof) != 0) & (r.D > 0)[:, None], axis=0)
  aref = r.aref if adhesion is None else r.aref + (regular - r.R) * adhesion
  return r._replace(aref=aref, R=regular, D=jnp.where(r.D > 0, 1 / regular, 0), diagA=regular * law / (1 - law)), touched
