"""Constraint rows under the discrete integrator.

The springs and dampers of the rows are implicit. The regularisation of the rows is measured in the effective metric of the
integrator.

Source: MuJoCo 4.0 documentation, Computation, Integrators (discrete); `mj_makeImpedance`, `mj_referenceConstraint`.

Tests: tests/integrate/test_discrete.py.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mjx_lite.constraint import jacobian
from mjx_lite.constraint.impedance import Impedance
from mjx_lite.constraint.rows import Rows
from mjx_lite.math import vector
from mjx_lite.model.enums import MAXIMP, MINVAL, ConstraintType
from mjx_lite.model.types import Model

_ONE_SIDED = (
  ConstraintType.LIMIT_JOINT, ConstraintType.LIMIT_TENDON, ConstraintType.CONTACT_FRICTIONLESS,
  ConstraintType.CONTACT_PYRAMIDAL, ConstraintType.CONTACT_ELLIPTIC,
)  # fmt: skip


class Resolved(NamedTuple):
  """Stiffness, damping and scaling factor of the rows in an implicit step, each (nefc, W)."""

  K: jax.Array
  B: jax.Array
  factor: jax.Array  # 1 + h B + h^2 K I


def resolve(m: Model, law: Impedance, k: jax.Array, solref: jax.Array) -> Resolved:
  """Compute the stiffness and damping of the rows that the implicit step uses.

  If a spring of a limit or contact is too stiff for the timestep, it is softened: one step then just closes the violation.

  Args:
    m: the model.
    law: impedance of the rows.
    k: (nefc, W) stiffness, zero for friction.
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
  """Compute the ratio (nefc, W) of the rows' inverse inertia in the effective metric to that in M, from diagonals alone.

  Args:
    m: the model.
    r: the rows.
    cdof: (nv, 6, W).
    inertia: (nv, W) diagonal of M.
    effective: (nv, W) diagonal of the effective metric.
  """
  j = jacobian.dense(m, r.jacobian, cdof)
  square = jacobian.first_of_contact(m, j * j)
  inverse_effective, inverse = (vector.total(jnp.swapaxes(square / x, 0, 1)) for x in (effective, inertia))
  positive = inverse > MINVAL
  return jnp.where(positive, inverse_effective / jnp.where(positive, inverse, 1), 1)


def in_metric(
  m: Model, r: Rows, cdof: jax.Array, scale: jax.Array, adhesion: jax.Array | None = None
) -> tuple[Rows, jax.Array]:
  """Fit the regularisation of the rows to the effective metric; also return the mask (nv, W) of dofs on which active rows act.

  Args:
    m: the model.
    r: the rows from `make_constraint`.
    cdof: (nv, 6, W).
    scale: (nefc, W) ratio from `shrinkage`.
    adhesion: (nefc, W) the rows' share of the adhesion, or None.
  """
  regular, law = jnp.maximum(r.R * scale, MINVAL), r.KBIP[:, 2]
  loaded = jnp.any((jacobian.dense(m, r.jacobian, cdof) != 0) & (r.D > 0)[:, None], axis=0)
  aref = r.aref if adhesion is None else r.aref + (regular - r.R) * adhesion
  return r._replace(aref=aref, R=regular, D=jnp.where(r.D > 0, 1 / regular, 0), diagA=regular * law / (1 - law)), loaded
