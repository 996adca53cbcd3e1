"""Constants that follow from the sizes of geoms: bounding boxes and spheres, and coefficients of added mass in a fluid.

Tests: tests/smooth/test_set_const.py, tests/math/test_quotient.py.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mjx_lite.math import safe, vector
from mjx_lite.model.enums import GeomType
from mjx_lite.model.types import Model
from mjx_lite.ops.select import put, rows


class GeomConstPlan(NamedTuple):
  """Geoms by type, and the geoms that the fluid model treats as ellipsoids."""

  kinds: tuple[tuple[int, np.ndarray], ...]
  fluid: tuple[tuple[int, np.ndarray], ...]


class GeomConst(NamedTuple):
  """Result of `geom_const`, by Model's names."""

  geom_aabb: jax.Array
  geom_rbound: jax.Array
  geom_fluid: jax.Array


def plan(s: dict[str, Any], is_ellipsoid: np.ndarray) -> GeomConstPlan:
  """Group the geoms, from the static fields of the model.

  Args:
    s: static fields of the model.
    is_ellipsoid: (ngeom,) geoms with fluidshape 'ellipsoid'.
  """

  def groups(keep):
    return tuple((int(t), np.flatnonzero(keep & (s["geom_type"] == t))) for t in np.unique(s["geom_type"][keep]))

  return GeomConstPlan(groups(np.isin(s["geom_type"], list(_EXTENTS))), groups(is_ellipsoid))


def geom_const(m: Model) -> GeomConst:
  """Compute bounds and fluid coefficients of the geoms; meshes, height fields and other shapes keep their bounds.

  Source: `mj_setConst`, `SetFluidCoefs`.
  Gradient: where several semi-axes are the largest, a mean over these axes.
  """
  p = m.plan.geom_const
  aabb, rbound, fluid = m.geom_aabb, m.geom_rbound, m.geom_fluid
  for kind, geoms in p.kinds:
    size = rows(m.geom_size, geoms)
    half = _EXTENTS[kind](size)
    aabb = put(aabb, geoms, jnp.concatenate([jnp.zeros_like(half), half], axis=-2))
    rbound = put(rbound, geoms, _RADII[kind](half))
  for kind, geoms in p.fluid:
    axes = _EXTENTS.get(kind, _all)(rows(m.geom_size, geoms))
    given = jnp.broadcast_to(rows(m.geom_fluid, geoms)[:, :6], (len(geoms), 6, axes.shape[-1]))
    fluid = put(fluid, geoms, jnp.concatenate([given, added_mass(axes)], axis=-2))
  return GeomConst(aabb, rbound, fluid)


def _all(size):
  return size


def _round(length):
  """Return a function for the half extents of a shape that is round about z: radius, radius, length."""
  return lambda size: jnp.concatenate([size[:, :1], size[:, :1], length(size)], axis=-2)


# half extents (n, 3, W) of the axis-aligned box around a geom, from its size (n, 3, W)
_EXTENTS = {
  GeomType.SPHERE: _round(lambda size: size[:, :1]),
  GeomType.CAPSULE: _round(lambda size: size[:, :1] + size[:, 1:2]),
  GeomType.CYLINDER: _round(lambda size: size[:, 1:2]),
  GeomType.ELLIPSOID: _all,
  GeomType.BOX: _all,
}
# radius (n, W) of the sphere around a geom, from its half extents
_RADII = {
  GeomType.SPHERE: lambda half: half[:, 0],
  GeomType.CAPSULE: lambda half: half[:, 2],
  GeomType.CYLINDER: lambda half: safe.norm(half[:, 1:]),
  GeomType.ELLIPSOID: lambda half: jnp.maximum(jnp.maximum(half[:, 0], half[:, 1]), half[:, 2]),
  GeomType.BOX: safe.norm,
}

# the Kronrod rule with 15 points on [0, 1], with eight decimals as in C
_X = np.array([
  0.00427231, 0.02544604, 0.06756779, 0.12923441, 0.20695638, 0.29707742, 0.39610752, 0.5, 0.60389248, 0.70292258,
  0.79304362, 0.87076559, 0.93243221, 0.97455396, 0.99572769,
])  # fmt: skip
_WEIGHTS = np.array([0.01146766, 0.03154605, 0.05239501, 0.07032663, 0.08450236, 0.09517529, 0.10221647])
_L = _X**3 / (1 - _X) ** 2  # maps [0, 1] to all positive numbers
_DL = (3 * _X**2 - _X**3) / (1 - _X) ** 3 * np.concatenate([_WEIGHTS, [0.10474107], _WEIGHTS[::-1]])


def added_mass(axes: jax.Array) -> jax.Array:
  """Return the virtual masses and virtual inertias per density (n, 6, W) of ellipsoids.

  Args:
    axes: (n, 3, W) semi-axes [m].

  Source: `SetFluidCoefs`; Lamb, Hydrodynamics, sections 114 and 115.
  Gradient: where two semi-axes are equal, the inertia about the third axis is at its minimum, zero, and its gradient is zero.
  """
  x, y, z = (axes[..., k, :] for k in range(3))
  kx, ky, kz = _kappa(x, y, z), _kappa(y, z, x), _kappa(z, x, y)
  volume = 4 / 3 * np.pi * x * y * z
  eps = 1e-14  # mjEPS

  def inertia(a, b, ka, kb):
    a2, b2 = a * a, b * b
    den = jnp.abs(2 * (a2 - b2) + (a2 + b2) * (ka - kb))
    return safe.quotient(volume / 5 * (a2 - b2) ** 2 * jnp.abs(kb - ka), den, eps)

  mass = [safe.quotient(volume * k, 2 - k, eps) for k in (kx, ky, kz)]
  return jnp.stack([*mass, inertia(y, z, ky, kz), inertia(z, x, kz, kx), inertia(x, y, kx, ky)], axis=-2)


def _kappa(x, y, z):
  """Return x y z times the integral over l > 0 of ((x^2 + l)^3 (y^2 + l) (z^2 + l))^-1/2."""
  x2, y2, z2 = (1 / (a * a) for a in (x, y, z))
  scale = (x * x * x * y * z) ** 0.4
  l = scale * _L.astype(x.dtype)[:, None, None]
  ratio = 1 + l * x2
  f = scale * _DL.astype(x.dtype)[:, None, None] / (ratio * jnp.sqrt(ratio * (1 + l * y2) * (1 + l * z2)))
  return vector.total(f) * x2
