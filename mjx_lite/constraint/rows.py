"""What a kind of constraint says of its rows, and what the solver gets of all of them."""

from typing import Any, NamedTuple

import jax


class RowParams(NamedTuple):
  """Rows of one kind, before their impedance; n rows."""

  active: jax.Array  # (n, W)
  pos: jax.Array  # (n, W) violation before the margin is taken off
  violation: jax.Array  # (n, W) what the impedance looks at: pos, or the norm of all rows of a connect or weld
  margin: jax.Array  # (n, W)
  diag: jax.Array  # (n, W) approximate diagonal of J M^-1 J'
  scale: jax.Array  # (n, W) factor on the regularisation
  solref: jax.Array  # (n, 2, W)
  solimp: jax.Array  # (n, 5, W)
  frictionloss: jax.Array  # (n, W)
  bias: jax.Array  # (n, W) Jdot v
  stiff: Any  # True, False or (n,) NumPy: friction has K = 0


class Jacobian(NamedTuple):
  """The constraint Jacobian as an operator: only what is not constant. See `constraint/jacobian.py`.

  Rows with a single entry of 1 or -1 (dof friction, scalar joint limits) need nothing.
  """

  ball_axis: jax.Array  # (nball, 3, W) axis of each ball-joint limit
  basis: jax.Array  # (nside, d, 6, W) contact frame axes as functionals of the body's spatial velocity
  mu: jax.Array  # (ncon, 5, W) friction of each slot's edges, 0 beyond its condim
  entries: jax.Array  # (nentry, W) of the rows of equalities
  ten_J: jax.Array  # (nJten, W) of the rows of tendons
  body: jax.Array | None  # (nside, W) bodies of the contacts' sides, where they are chosen at run time


class Rows(NamedTuple):
  """All rows of all kinds, in MuJoCo's order; nefc rows."""

  jacobian: Jacobian
  D: jax.Array  # 0 where inactive
  R: jax.Array
  aref: jax.Array
  vel: jax.Array
  pos: jax.Array
  margin: jax.Array
  frictionloss: jax.Array
  diagA: jax.Array
  KBIP: jax.Array  # (nefc, 4, W)
  contact_mu: jax.Array  # (ncon, W)
