"""Records of constraint rows: the parameters of one kind of row, and all rows as the solver reads them.

Tests: tests/solver/test_coupled.py, tests/parity/test_stages.py.
"""

from typing import Any, NamedTuple

import jax


class RowParams(NamedTuple):
  """Parameters of the n rows of one kind, before the impedance is computed."""

  active: jax.Array  # (n, W)
  pos: jax.Array  # (n, W) violation before the margin is subtracted
  violation: jax.Array  # (n, W) argument of the impedance: pos, or the norm of all rows of a connect or weld
  margin: jax.Array  # (n, W)
  diag: jax.Array  # (n, W) approximate diagonal of J M^-1 J'
  scale: jax.Array  # (n, W) factor on the regularisation
  solref: jax.Array  # (n, 2, W)
  solimp: jax.Array  # (n, 5, W)
  frictionloss: jax.Array  # (n, W)
  bias: jax.Array  # (n, W) Jdot v
  stiff: Any  # True, False or NumPy mask (n,): False for friction, which has K = 0


class Jacobian(NamedTuple):
  """Non-constant part of the constraint Jacobian, which is applied as an operator. See `constraint/jacobian.py`.

  Rows with a single entry of 1 or -1 (dof friction, scalar joint limits) store nothing here.
  """

  ball_axis: jax.Array  # (nball, 3, W) axis of each ball-joint limit
  basis: jax.Array  # (nside, ndir, 6, W) contact-frame axes as functionals of the body's spatial velocity
  mu: jax.Array  # (ncon, 5, W) friction coefficients of each slot, 0 beyond its condim
  entries: jax.Array  # (nentry, W) entries of the equality rows
  ten_J: jax.Array  # (nJten, W) packed Jacobian of the tendons, for the tendon rows
  body: jax.Array | None  # (nside, W) bodies of the contacts' sides, if chosen at run time
  number: jax.Array | None  # (W,) number of slots up to the last contact, if chosen at run time


class Rows(NamedTuple):
  """All nefc rows of all kinds, in MuJoCo's order; fields are (nefc, W) unless noted."""

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
