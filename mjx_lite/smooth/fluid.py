"""Forces of the medium on moving bodies: on the box of a body's inertia, or on the body's geoms as ellipsoids.

Both laws act on *items*: the box of a body, or the ellipsoid of a geom. The velocity of the item's centre relative to the wind,
in the item's frame, gives a torque and a force at this centre. All items share the changes of frame and the sum to joints.

Tests: tests/parity/test_passive.py, tests/gradients/test_passive_gradients.py.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mjx_lite.math import safe, spatial, vector
from mjx_lite.math.tree import SumPlan, mask_sum, plan_sum
from mjx_lite.model.enums import GeomType
from mjx_lite.model.types import Model
from mjx_lite.ops.select import join, rows
from mjx_lite.smooth.com import ComPlan


class FluidPlan(NamedTuple):
  """Items of the fluid model. The set of ellipsoids is fixed by `put_model`; their coefficients are traced."""

  box: np.ndarray  # bodies
  ellipsoid: np.ndarray  # geoms
  body: np.ndarray  # item (boxes, then ellipsoids) -> body
  semiaxis: np.ndarray  # (nellipsoid, 3) semi-axis -> entry of the flattened geom_size
  capped: np.ndarray  # (nellipsoid, 3) mask of the semi-axes that a capsule's cap lengthens by its radius
  dof_item: SumPlan  # dof <- items that the dof moves
  has_density: bool
  has_viscosity: bool

  @property
  def exists(self) -> bool:
    """Whether there is a medium, and an item that moves in it."""
    return (self.has_density or self.has_viscosity) and len(self.body) > 0


# geom type -> column of geom_size of each semi-axis; other types use columns 0, 1, 2
_COLUMNS = {GeomType.SPHERE: (0, 0, 0), GeomType.CAPSULE: (0, 0, 1), GeomType.CYLINDER: (0, 0, 1)}


def plan(s: dict[str, Any], pruned: frozenset[str], com: ComPlan, is_ellipsoid: np.ndarray) -> FluidPlan:
  """Choose the items from the static fields of the model.

  Args:
    s: static fields of the model.
    pruned: float fields whose terms are left out.
    com: plan with the bodies that each dof moves.
    is_ellipsoid: (ngeom,) geoms with fluidshape 'ellipsoid'.
  """
  moved = com.moved_body.matrix
  moves = np.any(moved, axis=0)
  owner = s["geom_bodyid"]
  by_geoms = np.zeros(s["nbody"], bool)
  by_geoms[owner[is_ellipsoid]] = True
  box = np.flatnonzero(moves & ~by_geoms)
  ellipsoid = np.flatnonzero(is_ellipsoid & moves[owner])
  body = np.concatenate([box, owner[ellipsoid]]).astype(int)
  kind = s["geom_type"][ellipsoid]
  columns = np.array([_COLUMNS.get(GeomType(int(t)), (0, 1, 2)) for t in kind], int).reshape(-1, 3)
  capped = (kind == GeomType.CAPSULE)[:, None] & np.array([False, False, True])
  return FluidPlan(
    box=box,
    ellipsoid=ellipsoid,
    body=body,
    semiaxis=3 * ellipsoid[:, None] + columns,
    capped=capped,
    dof_item=plan_sum(moved[:, body]),
    has_density="density" not in pruned,
    has_viscosity="viscosity" not in pruned,
  )


def fluid(m: Model, cdof, cvel, xipos, ximat, geom_xpos, geom_xmat, subtree_com, drag_only: bool = False) -> jax.Array:
  """Return the joint-space force (nv, W) of the medium, or only its drag; a body without mass gets no force.

  Source: `mj_inertiaBoxFluidModel`, `mj_ellipsoidFluidModel`.
  Gradient: exact also at rest, where only viscosity has a derivative (the other terms are quadratic in the velocity).
  """
  p = m.plan.fluid
  point = join([rows(xipos, p.box), rows(geom_xpos, p.ellipsoid)])
  mat = join([rows(ximat, p.box), rows(geom_xmat, p.ellipsoid)])
  arm = point - rows(subtree_com, m.body_rootid[p.body])
  omega, shift = spatial.split(rows(cvel, p.body))
  omega, shift = vector.mat_t_vec(mat, omega), vector.mat_t_vec(mat, shift + vector.cross(omega, arm) - m.opt.wind)

  nbox = len(p.box)
  torque, force = [], []
  for law, part in ((_box, slice(0, nbox)), (_ellipsoid, slice(nbox, None))):
    if len(p.body[part]):
      found = law(m, p, omega[part], shift[part], drag_only)
      torque.append(found[0])
      force.append(found[1])
  torque, force = (vector.mat_vec(mat, join(x)) for x in (torque, force))
  heavy = rows(m.body_mass, p.body)[:, None] >= safe.MINVAL
  wrench = jnp.where(heavy, spatial.join(torque + vector.cross(arm, force), force), 0)
  return vector.dot(cdof, mask_sum(p.dof_item, wrench))


def _next(x: jax.Array, k: int) -> jax.Array:
  """Return the components (i + k) mod 3 of 3-vectors."""
  return jnp.concatenate([x[..., k:, :], x[..., :k, :]], axis=-2)


def _box(m: Model, p: FluidPlan, omega, shift, drag_only):
  """Return torque and force on the inertia boxes of bodies: of a sphere in Stokes flow, plus quadratic drag per face.

  All terms are drag.
  """
  del drag_only
  mass = rows(m.body_mass, p.box)[:, None]
  mass = jnp.where(mass < safe.MINVAL, 1, mass)
  x, y, z = (rows(m.body_inertia, p.box)[:, k] for k in range(3))
  side = jnp.stack([y + z - x, x + z - y, x + y - z], axis=-2)
  size = jnp.sqrt(jnp.maximum(safe.MINVAL, side) / mass * 6)
  torque = force = jnp.zeros_like(omega)
  if p.has_viscosity:
    diameter = (size[:, :1] + size[:, 1:2] + size[:, 2:]) / 3
    torque = torque - jnp.pi * diameter**3 * m.opt.viscosity * omega
    force = force - 3 * jnp.pi * diameter * m.opt.viscosity * shift
  if p.has_density:
    a, b = _next(size, 1), _next(size, 2)
    torque = torque - m.opt.density * size * (a**4 + b**4) / 64 * jnp.abs(omega) * omega
    force = force - m.opt.density / 2 * a * b * jnp.abs(shift) * shift
  return torque, force


def _ellipsoid(m: Model, p: FluidPlan, omega, shift, drag_only):
  """Return torque and force on geoms as ellipsoids: added mass, Magnus and Kutta lift, drag.

  Source: `mj_addedMassForces`, `mj_viscousForces`; MuJoCo documentation, Fluid forces.
  """
  prm = rows(m.geom_fluid, p.ellipsoid)
  interaction, blunt, slender, angular, kutta, magnus = (prm[:, k : k + 1] for k in range(6))
  flat = m.geom_size.reshape(3 * m.ngeom, m.geom_size.shape[-1])
  size = rows(flat, p.semiaxis)
  radius = rows(flat, p.semiaxis[:, 0])[:, None]
  size = size + jnp.where(p.capped[..., None], radius, 0)
  torque = force = jnp.zeros_like(omega)
  if p.has_viscosity:
    diameter = 2 / 3 * (size[:, :1] + size[:, 1:2] + size[:, 2:])
    torque = torque - m.opt.viscosity * jnp.pi * diameter**3 * omega
    force = force - m.opt.viscosity * 3 * jnp.pi * diameter * shift
  if p.has_density:
    drag, lift = _drag_and_lift(size, omega, shift, blunt, slender, kutta, magnus)
    torque = torque - m.opt.density * _angular_drag(size, omega, angular, slender)
    force = force - m.opt.density * drag
    if not drag_only:
      mass, inertia = prm[:, 6:9] * shift, prm[:, 9:12] * omega
      torque = torque + m.opt.density * (vector.cross(mass, shift) + vector.cross(inertia, omega))
      force = force + m.opt.density * (vector.cross(mass, omega) + lift)
  return interaction * torque, interaction * force


def _angular_drag(size, omega, angular, slender):
  """Return the quadratic drag torque per density, to be subtracted."""
  a, b = _next(size, 1), _next(size, 2)
  moment = 8 / 15 * jnp.pi * size * jnp.maximum(a, b) ** 4
  largest, middle, _ = _sorted(size)
  most = 8 / 15 * jnp.pi * middle * largest**4
  return safe.norm(omega * (angular * moment + slender * (most - moment)))[:, None] * omega


def _drag_and_lift(size, omega, shift, blunt, slender, kutta, magnus):
  """Return the quadratic drag, to be subtracted, and Magnus and Kutta lift, per density; both are finite at speed zero."""
  volume = 4 / 3 * jnp.pi * size[:, :1] * size[:, 1:2] * size[:, 2:]
  direction, speed = safe.normalize_with_norm(shift)
  speed = speed[:, None]
  largest, middle, _ = _sorted(size)
  section = _next(size, 1) * _next(size, 2) / (largest * middle)
  normal = section * section * direction  # normal of the cross-section that faces the velocity; not a unit vector
  along, squared = vector.dot(normal, direction)[:, None], vector.dot(normal, normal)[:, None]
  most = jnp.pi * largest * middle
  seen = most * jnp.sqrt(squared / along)
  drag = speed * (blunt * seen + slender * (most - seen))
  lift = kutta * along / squared * seen * speed**2 * vector.cross(vector.cross(normal, direction), direction)
  return drag * shift, magnus * volume * vector.cross(omega, shift) + lift


def _sorted(size):
  """Return the largest, middle and smallest semi-axis (n, 1, W)."""
  x, y, z = size[:, :1], size[:, 1:2], size[:, 2:]
  largest, smallest = jnp.maximum(jnp.maximum(x, y), z), jnp.minimum(jnp.minimum(x, y), z)
  return largest, x + y + z - largest - smallest, smallest
