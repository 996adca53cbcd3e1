"""Integrators that are implicit in velocity: (M - h D) a = f, with D the derivative of the smooth force over velocity.

*implicitfast* leaves the bias force out of D and makes D symmetric; *implicit* uses all of D.

Tests: tests/integrate/test_integrators.py, tests/integrate/test_discrete.py.
"""

import jax
import jax.numpy as jnp

from mjx_lite.math import linalg, vector
from mjx_lite.math.symmetric import unpack
from mjx_lite.model.types import Model
from mjx_lite.ops.select import put, rows, rows_or_zero
from mjx_lite.smooth import derivative, inertia, mass


def fast(m: Model, cinert, cdof, packed_m, packed_d, medium, force) -> jax.Array:
  """Return the acceleration (nv, W) with a symmetric D.

  Args:
    m: the model.
    cinert: (nbody, 10, W).
    cdof: (nv, 6, W).
    packed_m: (nC, W).
    packed_d: derivative of the forces of dampers and actuators, packed by `plan.derivative.packing`.
    medium: (nv, nv, W) derivative of the medium's force, or None.
    force: qfrc_smooth + qfrc_constraint (nv, W).

  Source: `mj_implicit`.
  """
  h, p = m.opt.timestep, m.plan.derivative
  if medium is None and derivative.is_diagonal(m):
    return mass.solve(m, mass.factor(m, cinert, cdof, packed_m, -h * rows(packed_d, p.packing.diagonal_entry)), force)
  return mass.solve(m, mass.dense_factor(m, packed_m - h * rows(symmetric(m, packed_d, medium), p.to_m)), force)


def symmetric(m: Model, packed_d, medium) -> jax.Array:
  """Add the symmetric part of the medium's derivative to the packed D."""
  if medium is None:
    return packed_d
  p = m.plan.derivative.packing
  flat = medium.reshape(m.nv * m.nv, medium.shape[-1])
  return packed_d + 0.5 * (rows(flat, p.row * m.nv + p.col) + rows(flat, p.col * m.nv + p.row))


def full(m: Model, packed_m, packed_d, trees, force) -> jax.Array:
  """Return the acceleration (nv, W) with all of D; `trees` (nv, nv, W) is the part of the medium and of the bias force.

  Source: `mj_implicit`.
  """
  return linalg.solve(_full_matrix(m, packed_m, packed_d, trees), force)


def free_blocks(m: Model, packed_m, packed_d, medium, qvel, xpos, xmat, subtree_com, crb) -> jax.Array:
  """Return M - h D (n, 6, 6, W) of the trees with one free joint and no other joint; their D includes the bias force.

  Args:
    m: the model.
    packed_m: (nC, W).
    packed_d: as for `fast`.
    medium: as for `fast`; here it is not made symmetric.
    qvel: (nv, W).
    xpos: (nbody, 3, W).
    xmat: (nbody, 3, 3, W).
    subtree_com: (nbody, 3, W).
    crb: (nbody, 10, W).

  Source: `mjd_freeMhat`; MuJoCo documentation, Computation, Integrators.
  """
  p = m.plan.derivative
  dof = p.free_dof
  a = rows_or_zero(packed_m, p.from_m) - m.opt.timestep * packed_d
  block = dof[:, :, None] * m.nv + dof[:, None]
  a = rows(a, p.packing.dense[block])
  if medium is not None:
    a = a - m.opt.timestep * rows(medium.reshape(m.nv * m.nv, medium.shape[-1]), block)
  return a + free_bias(m, qvel, xpos, xmat, subtree_com, crb)


def free_bias(m: Model, qvel, xpos, xmat, subtree_com, crb) -> jax.Array:
  """Return the term (n, 6, 6, W) of the bias force in `free_blocks`."""
  p = m.plan.derivative
  body, dof = p.free_body, p.free_dof
  arm = rows(subtree_com, body) - rows(xpos, body)
  return m.opt.timestep * _bias_slope(rows(xmat, body), arm, rows(crb, body), rows(qvel, dof[:, 3:]))


def solve_free(m: Model, qacc: jax.Array, blocks: jax.Array, force: jax.Array) -> jax.Array:
  """Return qacc (nv, W) from `fast`, with the accelerations of the trees of `free_blocks` replaced."""
  dof = m.plan.derivative.free_dof
  return put(qacc, dof.ravel(), _flat(_solve_blocks(blocks, rows(force, dof))))


def mul_fast(m: Model, packed_m, packed_d, medium, blocks, x) -> jax.Array:
  """Return (M - h D) x (nv, W), the product that `fast` and `solve_free` invert."""
  p = m.plan.derivative
  out = inertia.mul_packed(m, packed_m - m.opt.timestep * rows(symmetric(m, packed_d, medium), p.to_m), x)
  return mul_free(m, out, blocks, x)


def mul_free(m: Model, out: jax.Array, blocks: jax.Array, x: jax.Array) -> jax.Array:
  """Replace the rows of `out` (nv, W) that belong to the blocks by the blocks' product with x."""
  p = m.plan.derivative
  return put(out, p.free_dof.ravel(), _flat(vector.mat_vec(blocks, rows(x, p.free_dof))))


def _flat(x: jax.Array) -> jax.Array:
  """Reshape vectors (n, 6, W) to rows (6 n, W)."""
  return x.reshape(6 * x.shape[0], x.shape[-1])


def mul_full(m: Model, packed_m, packed_d, trees, x) -> jax.Array:
  """Return (M - h D) x (nv, W), the product that `full` inverts."""
  return vector.mat_vec(_full_matrix(m, packed_m, packed_d, trees), x)


def _full_matrix(m, packed_m, packed_d, trees):
  return inertia.full(m, packed_m) - m.opt.timestep * (unpack(m.plan.derivative.packing, packed_d) + trees)


def _bias_slope(mat, arm, crb, spin):
  """Return the derivative (n, 6, 6, W) of the bias force of free bodies over velocity; this force depends on rotation only.

  Args:
    mat: (n, 3, 3, W) body frame.
    arm: (n, 3, W) from the body's origin to the centre of mass.
    crb: (n, 10, W) inertia about the centre of mass.
    spin: (n, 3, W) rotational velocity in the body frame.
  """
  xx, yy, zz, xy, xz, yz = vector.parts(crb[:, :6])
  inertia3, mass = vector.matrix((xx, xy, xz), (xy, yy, yz), (xz, yz, zz)), crb[:, 9:]

  def bias(spin):
    w = vector.mat_vec(mat, spin)
    pull = mass * vector.cross(w, vector.cross(w, arm))
    torque = vector.cross(arm, pull) + vector.cross(w, vector.mat_vec(inertia3, w))
    return jnp.concatenate([pull, vector.mat_t_vec(mat, torque)], axis=1)

  basis = jnp.broadcast_to(jnp.eye(3, dtype=spin.dtype)[:, None, :, None], (3, *spin.shape))
  columns = jnp.moveaxis(jax.vmap(lambda t: jax.jvp(bias, (spin,), (t,))[1])(basis), 0, 2)
  return jnp.concatenate([jnp.zeros_like(columns), columns], axis=2)


def _solve_blocks(a, b):
  """Solve systems a (n, 6, 6, W) for b (n, 6, W) by 3x3 blocks: eliminate the translation, then solve for the rotation."""
  p, q, r, s = (a[:, i : i + 3, j : j + 3] for i in (0, 3) for j in (0, 3))
  x, y = b[:, :3], b[:, 3:]
  inv = linalg.inverse3(p)
  schur = s - vector.mat_mat(r, vector.mat_mat(inv, q))
  rotation = vector.mat_vec(linalg.inverse3(schur), y - vector.mat_vec(r, vector.mat_vec(inv, x)))
  return jnp.concatenate([vector.mat_vec(inv, x - vector.mat_vec(q, rotation)), rotation], axis=1)
