"""The dual problem: minimise 1/2 f'(A + R) f + b'f over the forces that the constraints can exert.

Here A = J M^-1 J' and b = J a_s - aref. Forces of equalities are free, forces of friction are bounded, forces of an elliptic
contact lie in its cone, and all other forces are not negative. A sweep sets each row, or each elliptic contact, to its minimum
while all other forces are fixed.

Source: MuJoCo documentation, Computation, Constraint solver; `engine_solver.c`.

Tests: tests/solver/test_iterates.py.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mjx_lite.constraint import jacobian
from mjx_lite.math import safe, vector
from mjx_lite.ops.select import pick
from mjx_lite.smooth import mass
from mjx_lite.solver.primal import Problem

_QCQP_ITERATIONS = 8


class Dual(NamedTuple):
  """The dual problem; rows that are not active have zero force."""

  a: jax.Array  # (nefc, nefc, W)
  b: jax.Array  # (nefc, W)
  r: jax.Array  # (nefc, W)
  low: jax.Array  # (nefc, W) lower bounds of independent rows; `high` has the upper bounds
  high: jax.Array
  mu: jax.Array  # (ncon, ndir - 1, W) friction of elliptic contacts, zero where there is no row
  jacobian: jax.Array  # (nefc, nv, W) J
  response: jax.Array  # (nefc, nv, W) J M^-1


def build(p: Problem, factor: Any) -> Dual:
  """Build the dual of a problem; `factor` is a factor of M."""
  m, rows = p.model, p.rows
  j = jacobian.dense(m, rows.jacobian, p.metric.cdof)
  j = jnp.broadcast_to(j, (*j.shape[:-1], rows.D.shape[-1]))
  response = jax.vmap(lambda x: mass.solve(m, factor, x))(j)
  a = jax.lax.dot_general(j, response, (((1,), (1,)), ((2,), (2,))), precision=jax.lax.Precision.HIGHEST)
  b = jacobian.mul(m, rows.jacobian, p.metric.cdof, p.qacc_smooth) - rows.aref
  plan, index = m.plan.jacobian, np.arange(len(rows.D))[:, None]
  free, friction = index < plan.nequality, (index >= plan.nequality) & (index < plan.nequality + plan.nfriction)
  active = rows.D > 0
  bound = jnp.where(friction, rows.frictionloss, jnp.inf)
  low, high = -jnp.where(friction | free, bound, 0), bound
  ndir = m.plan.contact.ndir
  mu = jnp.where(active[len(plan.order) :].reshape(m.plan.contact.ncon, m.plan.contact.nrow, -1)[:, :1], 1, 0)
  mu = mu * rows.jacobian.mu[:, : ndir - 1]
  return Dual(
    a=jnp.moveaxis(a, 0, -1),
    b=b,
    r=rows.R,
    low=jnp.where(active, low, 0),
    high=jnp.where(active, high, 0),
    mu=mu,
    jacobian=j,
    response=response,
  )


def acceleration(p: Problem, dual: Dual, force: jax.Array) -> jax.Array:
  """Compute the acceleration (nv, W) under constraint forces (nefc, W)."""
  return p.qacc_smooth + jnp.sum(dual.response * force[:, None], axis=0)


def residual(dual: Dual, force: jax.Array) -> jax.Array:
  """Compute (A + R) f + b (nefc, W)."""
  return jnp.sum(dual.a * force[None], axis=1) + dual.r * force + dual.b


def cost(dual: Dual, force: jax.Array) -> jax.Array:
  """Compute the dual cost (W,)."""
  return vector.total(force * (0.5 * (residual(dual, force) + dual.b)))


def sweep_rows(dual: Dual, force: jax.Array, order: jax.Array) -> jax.Array:
  """Set each of the rows in `order` to its minimum without regularisation; return the forces (nefc, W)."""
  if not len(order):
    return force

  def visit(k, f):
    i = order[k]
    row = _at(dual.a, i)
    minimum = _at(f, i) - safe.quotient(vector.total(row * f) + _at(dual.b, i), _at(row, i))
    return _set(f, i, jnp.clip(minimum, _at(dual.low, i), _at(dual.high, i)))

  return jax.lax.fori_loop(0, len(order), visit, force)


def sweep_blocks(dual: Dual, force: jax.Array, order: jax.Array, number: jax.Array, start: int) -> jax.Array:
  """Set each block to its minimum; return the forces (nefc, W).

  A block is one of the rows before `start`, or one of the elliptic contacts, whose rows begin at `start`.

  Args:
    dual: the problem.
    force: (nefc, W).
    order: (n, W) order of the blocks in each world: a row by its index, a contact by its index plus `start`.
    number: (W,) number of blocks in each world.
    start: number of independent rows.
  """
  if not len(order):
    return force
  index = np.arange(len(force))[:, None]

  def rows(f, i, mask):
    row = pick(dual.a, i)
    diagonal = pick(row, i) + pick(dual.r, i)
    rest = vector.total(row * f) + pick(dual.r, i) * pick(f, i) + pick(dual.b, i)
    minimum = pick(f, i) - safe.quotient(rest, diagonal)
    return jnp.where(mask & (index == i), jnp.clip(minimum, pick(dual.low, i), pick(dual.high, i)), f)

  cones = _cones(dual, start)

  def contacts(f, c, mask):
    assert cones is not None
    cone = Cone(*(pick(x, c) for x in cones))
    own = pick(f[start:].reshape(cones.b.shape), c)
    new = _set_cone(cone, own, vector.total(jnp.swapaxes(cone.rows * f[None], 0, 1)) + cone.r * own + cone.b, True)
    is_contact = mask & (np.arange(len(cones.b))[:, None] == c)
    old = f[start:].reshape(cones.b.shape)
    return jnp.concatenate([f[:start], jnp.where(is_contact[:, None], new, old).reshape(len(f) - start, f.shape[-1])])

  def visit(k, f):
    i = jax.lax.dynamic_index_in_dim(order, k, keepdims=False)
    exists = k < number
    is_row, is_cone = exists & (i < start), exists & (i >= start)
    if start:
      f = jax.lax.cond(jnp.any(is_row), lambda f: rows(f, jnp.minimum(i, start - 1), is_row), lambda f: f, f)
    if cones is None:
      return f
    return jax.lax.cond(jnp.any(is_cone), lambda f: contacts(f, jnp.maximum(i - start, 0), is_cone), lambda f: f, f)

  return jax.lax.fori_loop(0, jnp.max(number), visit, force)


def sweep_friction(dual: Dual, force: jax.Array, start: int) -> jax.Array:
  """Set the friction of each elliptic contact to its minimum without regularisation, with fixed normal forces.

  Args:
    dual: the problem.
    force: (nefc, W).
    start: the contacts' first row.
  """
  cones = _cones(dual, start)
  if cones is None:
    return force
  cones = cones._replace(r=jnp.zeros_like(cones.r), block=cones.block - cones.r[:, :, None] * _eye(cones.b))

  def visit(c, f):
    cone = Cone(*(_at(x, c) for x in cones))
    own = jax.lax.dynamic_slice_in_dim(f, start + c * len(cone.b), len(cone.b))
    new = _set_cone(cone, own, vector.total(jnp.swapaxes(cone.rows * f[None], 0, 1)) + cone.b, False)
    return jax.lax.dynamic_update_slice_in_dim(f, new, start + c * len(cone.b), axis=0)

  return jax.lax.fori_loop(0, len(cones.b), visit, force)


class Cone(NamedTuple):
  """Parts of the dual problem that belong to elliptic contacts (ncon, ..., W), or to one contact."""

  rows: jax.Array  # (ncon, ndir, nefc, W) rows of A
  block: jax.Array  # (ncon, ndir, ndir, W) diagonal block of A + R
  b: jax.Array  # (ncon, ndir, W)
  r: jax.Array  # (ncon, ndir, W)
  mu: jax.Array  # (ncon, ndir - 1, W)
  active: jax.Array  # (ncon, W)


def _cones(dual: Dual, start: int) -> Cone | None:
  """Return the elliptic contacts, whose rows begin at `start`; None if there are none."""
  ncon, n = len(dual.mu), dual.mu.shape[1] + 1
  if start == len(dual.b) or not ncon:
    return None
  by_contact = lambda x: x[start:].reshape(ncon, n, *x.shape[1:])  # noqa: E731
  rows, r = by_contact(dual.a), by_contact(dual.r)
  index = start + n * np.arange(ncon)[:, None] + np.arange(n)
  block = rows[np.arange(ncon)[:, None, None], np.arange(n)[:, None], index[:, None]]
  return Cone(
    rows=rows,
    block=block + r[:, :, None] * _eye(r),
    b=by_contact(dual.b),
    r=r,
    mu=dual.mu,
    active=by_contact(dual.high)[:, 0] > 0,
  )


def _eye(x):
  """Return unit matrices (n, n, 1) for vectors (..., n, W)."""
  return np.eye(x.shape[-2])[..., None].astype(x.dtype)


def _set_cone(cone: Cone, own: jax.Array, rest: jax.Array, with_normal: bool) -> jax.Array:
  """Minimise over the force (ndir, W) of one elliptic contact: first along the ray of the force, then in its friction.

  Args:
    of: the contact.
    own: (ndir, W) its force.
    rest: (ndir, W) its rows of (A + R) f + b.
    with_normal: whether the normal force changes; if not, only friction does.
  """
  a = cone.block
  new = _ray(a, own, rest, cone.active) if with_normal else own
  # friction at the new normal force
  linear = rest[1:] - vector.mat_vec(a[1:, 1:], own[1:]) + a[1:, 0] * (new[0] - own[0])
  friction = _in_ellipsoid(a[1:, 1:], linear, cone.mu, new[0])
  new = jnp.concatenate([new[:1], jnp.where(new[0] < safe.MINVAL, 0, friction)])
  step = new - own
  worse = vector.total(step * (0.5 * vector.mat_vec(a, step) + rest)) > 1e-10
  return jnp.where(worse, own, new)


def sweep_edges(dual: Dual, force: jax.Array, order: jax.Array) -> jax.Array:
  """Share the sum of each pair of opposing pyramid edges anew, without regularisation; return the forces (nefc, W).

  `order` lists the first rows of the pairs. Pairs with an inactive row do not change.
  """
  if not len(order):
    return force

  def visit(k, f):
    i = order[k]
    block = lambda x: jax.lax.dynamic_slice_in_dim(x, i, 2)  # noqa: E731
    rows_, own = block(dual.a), block(f)
    a = jax.lax.dynamic_slice_in_dim(rows_, i, 2, axis=1)
    rest = jnp.sum(rows_ * f[None], axis=1) + block(dual.b)
    linear = rest - vector.mat_vec(a, own)
    half = 0.5 * (own[0] + own[1])
    bent = a[0, 0] + a[1, 1] - a[0, 1] - a[1, 0]
    pull = half * (a[0, 0] - a[1, 1]) + linear[0] - linear[1]
    stiff = bent >= safe.MINVAL
    y = jnp.where(stiff, jnp.clip(-pull / jnp.where(stiff, bent, 1), -half, half), 0)
    new = jnp.stack([half + y, half - y])
    step = new - own
    worse = vector.total(step * (0.5 * vector.mat_vec(a, step) + rest)) > 1e-10
    kept = worse | ~jnp.all(block(dual.high) > 0, axis=0)
    return jax.lax.dynamic_update_slice_in_dim(f, jnp.where(kept, own, new), i, axis=0)

  return jax.lax.fori_loop(0, len(order), visit, force)


def _ray(a, own, rest, active):
  """Move a contact's force (n, W) along its own direction, or along the normal where the force is zero."""
  normal = jnp.where(active, jnp.maximum(own[0] - safe.quotient(rest[0], a[0, 0]), 0), 0)
  bent = vector.total(own * vector.mat_vec(a, own))
  share = jnp.where(bent >= safe.MINVAL, -vector.total(own * rest) / jnp.where(bent >= safe.MINVAL, bent, 1), 0)
  along = own * (1 + jnp.maximum(share, -1))
  fresh = jnp.concatenate([normal[None], jnp.zeros_like(own[1:])])
  return jnp.where(own[0] < safe.MINVAL, fresh, along)


def _in_ellipsoid(a, b, mu, normal):
  """Minimise 1/2 v'a v + b'v over |v / mu| <= normal, for v (n, W); v is zero where mu is zero.

  With y = v / mu, the minimum on the boundary satisfies (H + lambda) y = -c; Newton's method on 1 / |y| finds lambda.

  Source: J. Moré and D. Sorensen, Computing a trust region step, SIAM J. Sci. Stat. Comput. 4 (1983); `mju_QCQP`.
  """
  n = b.shape[0]
  eye = np.eye(n)[..., None].astype(b.dtype)
  h = mu[:, None] * a * mu[None] + eye * (mu == 0)[:, None]
  c = mu * b

  radius = jnp.maximum(normal, safe.MINVAL)

  def step(_, shift):
    factor = _factor(h + shift * eye)
    y = -_solve(factor, c)
    squared = vector.total(y * y)
    outside = squared > radius * radius
    bent = jnp.where(outside, vector.total(y * _solve(factor, y)), 1)
    size = jnp.sqrt(jnp.where(outside, squared, 1))
    return jnp.where(outside, shift + safe.quotient(squared, bent) * (size - radius) / radius, shift)

  shift = jax.lax.fori_loop(0, _QCQP_ITERATIONS, step, jnp.zeros_like(normal))
  y = -_solve(_factor(h + shift * eye), c)
  size = safe.norm(y[None])[0]
  y = y * jnp.where(size > normal, normal / jnp.where(size > normal, size, 1), 1)
  return mu * y


def _factor(h):
  """Compute the Cholesky factor of one small matrix (n, n, W), as columns."""
  columns = []
  for k in range(h.shape[0]):
    column = h[:, k] - vector.add([x * x[k] for x in columns]) if columns else h[:, k]
    column = column / jnp.sqrt(jnp.maximum(column[k], safe.MINVAL))
    columns.append(jnp.where(np.arange(h.shape[0])[:, None] >= k, column, 0))
  return columns


def _solve(columns, b):
  x, n = b, len(columns)
  forward = []
  for k in range(n):
    y = x[k] / columns[k][k]
    x = x - columns[k] * y
    forward.append(y)
  out: list[Any] = [None] * n
  for k in reversed(range(n)):
    rest = [columns[k][i] * out[i] for i in range(k + 1, n)]
    out[k] = (forward[k] - vector.add(rest) if rest else forward[k]) / columns[k][k]
  return jnp.stack(out)


def _at(x, i):
  return jax.lax.dynamic_index_in_dim(x, i, keepdims=False)


def _set(x, i, value):
  return jax.lax.dynamic_update_index_in_dim(x, value, i, 0)
