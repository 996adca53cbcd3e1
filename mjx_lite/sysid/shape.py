"""Change sizes of geoms, and the inertia of their bodies at constant density."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

import mjx_lite as mjx
from mjx_lite.sysid import inertia


def with_size(m: mjx.Model, bodies: np.ndarray, geom_size: jax.Array) -> mjx.Model:
  """Return the model with other geom sizes; masses and inertias of `bodies` are recomputed at constant density.

  The density of a body is its mass in `m` divided by the volume of all its geoms in `m`. All geoms of a body have this
  density. Bodies not in `bodies` keep their inertia. The new sizes apply to the geoms of all bodies. Dependent fields are
  recomputed (`with_params`).

  Args:
    m: the model.
    bodies: ids of the bodies whose inertia is recomputed. Each of their geoms must be a sphere, capsule, cylinder, ellipsoid or
      box, and must have mass.
    geom_size: (ngeom, 3) [m].

  Raises:
    ValueError: one of `bodies` has no geoms, or a geom of another shape.

  Gradient: exact for bodies of one geom; for bodies of several geoms as that of `sysid.inertia`.
  """
  mass, ipos, iquat, moments = m.body_mass, m.body_ipos, m.body_iquat, m.body_inertia
  for b in np.atleast_1d(bodies):
    geoms = np.flatnonzero(m.geom_bodyid == b)
    other = [mjx.GeomType(int(t)).name for t in m.geom_type[geoms] if int(t) not in SHAPES]
    if other or not len(geoms):
      reason = f"the shapes {', '.join(other)} are not supported" if other else "there are none"
      raise ValueError(f"the inertia of body {b} cannot be computed from the geoms of the body: {reason}.")
    volume, _ = _shapes(m, geoms, m.geom_size)
    new_volume, gyration = _shapes(m, geoms, geom_size)
    part = mass[b] / jnp.sum(volume) * new_volume
    total = jnp.sum(part)
    if len(geoms) == 1:
      x = inertia.Inertia(total, m.geom_pos[geoms[0]], m.geom_quat[geoms[0]], total * gyration[0])
    else:
      x = _composite(m, geoms, part, total, gyration)
    mass, ipos = mass.at[b].set(x.mass), ipos.at[b].set(x.ipos)
    iquat, moments = iquat.at[b].set(x.iquat), moments.at[b].set(x.inertia)
  return m.with_params(geom_size=geom_size, body_mass=mass, body_ipos=ipos, body_iquat=iquat, body_inertia=moments)


def _composite(m, geoms, part, total, gyration):
  """Compute the inertia of a body of several geoms with masses `part`."""
  pos = m.geom_pos[geoms]
  centre = jnp.sum(part[:, None] * pos, axis=0) / total
  axes = jax.vmap(inertia.matrix)(m.geom_quat[geoms])
  # second moments: half the trace of the inertia minus the inertia
  own = 0.5 * jnp.sum(gyration, axis=1, keepdims=True) - gyration
  turned = jnp.einsum("gij,gj,gkj->gik", axes, own, axes, precision="highest")
  away = pos - centre
  second = jnp.sum(part[:, None, None] * (turned + away[:, :, None] * away[:, None]), axis=0)
  return inertia.from_second_moments(total, centre, second / total)


def _shapes(m, geoms, size):
  """Return volumes (n,), and inertias per mass about the geoms' own axes (n, 3)."""
  found = [SHAPES[int(m.geom_type[g])](size[g]) for g in geoms]
  return jnp.stack([v for v, _ in found]), jnp.stack([i for _, i in found])


def _sphere(s):
  return 4 / 3 * jnp.pi * s[0] ** 3, 0.4 * s[0] ** 2 * jnp.ones(3, s.dtype)


def _cylinder(s):
  side = s[0] ** 2 / 4 + s[1] ** 2 / 3
  return 2 * jnp.pi * s[0] ** 2 * s[1], jnp.stack([side, side, s[0] ** 2 / 2])


def _capsule(s):
  """Compose a cylinder and two half spheres, whose centers of mass are at 3/8 of the radius."""
  r, h = s[0], s[1]
  (rod, rod_inertia), (ball, ball_inertia) = _cylinder(s), _sphere(s)
  side = rod * rod_inertia[0] + ball * (ball_inertia[0] + h * h + 0.75 * h * r)
  along = rod * rod_inertia[2] + ball * ball_inertia[2]
  return rod + ball, jnp.stack([side, side, along]) / (rod + ball)


def _ellipsoid(s):
  a, b, c = s * s / 5
  return 4 / 3 * jnp.pi * s[0] * s[1] * s[2], jnp.stack([b + c, a + c, a + b])


def _box(s):
  a, b, c = s * s / 3
  return 8 * s[0] * s[1] * s[2], jnp.stack([b + c, a + c, a + b])


# geom type -> function: size (3,) -> volume (), inertia per mass about the geom's axes (3,)
SHAPES: dict[int, Callable[[jax.Array], tuple[jax.Array, jax.Array]]] = {
  int(mjx.GeomType.SPHERE): _sphere, int(mjx.GeomType.CAPSULE): _capsule, int(mjx.GeomType.CYLINDER): _cylinder,
  int(mjx.GeomType.ELLIPSOID): _ellipsoid, int(mjx.GeomType.BOX): _box,
}  # fmt: skip
