"""Passive forces of tendons: springs with a dead band that may yield, and dampers.

Tests: tests/tendon/test_tendon.py.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mjx_lite.math.groups import GroupPlan, group_sum, plan_groups
from mjx_lite.model.enums import TrnType
from mjx_lite.model.types import Model
from mjx_lite.ops.select import join, rows
from mjx_lite.tendon import tendon


class TendonForcePlan(NamedTuple):
  """Index tables, and which terms exist."""

  has_spring: bool
  has_damper: bool
  actuator: np.ndarray  # actuators on tendons
  actuator_out: np.ndarray  # first outputs of these actuators
  by_actuator: GroupPlan  # tendon <- actuators
  plastic: np.ndarray  # tendons whose springs yield
  plastic_adr: np.ndarray  # (n, 2) addresses of the dead bands of these tendons in the field `plastic`
  band_order: np.ndarray  # tendon -> row in the concatenation (tendon_lengthspring, dead bands in `plastic`)
  fixed: np.ndarray  # (n,) whether each yielding tendon is a fixed tendon


def plan(s: dict[str, Any], pruned: frozenset[str], t: tendon.TendonPlan) -> TendonForcePlan:
  """Build the index tables from the static fields of the model."""
  n = s["ntendon"]
  actuator = np.flatnonzero(s["actuator_trntype"] == TrnType.TENDON)
  plastic = np.flatnonzero(s["tendon_plasticadr"] >= 0)
  order = np.arange(n)
  order[plastic] = n + np.arange(len(plastic))
  reflected = "actuator_damping" not in pruned and len(actuator) > 0
  return TendonForcePlan(
    has_spring=n > 0 and "tendon_stiffness" not in pruned,
    has_damper=n > 0 and ("tendon_damping" not in pruned or reflected),
    actuator=actuator,
    actuator_out=s["actuator_outadr"][actuator],
    by_actuator=plan_groups(s["actuator_trnid"][actuator, 0], n),
    plastic=plastic,
    plastic_adr=s["tendon_plasticadr"][plastic][:, None] + np.arange(2),
    band_order=order,
    fixed=np.isin(plastic, t.path.fixed_tendon),
  )


class TendonForce(NamedTuple):
  """Result of `forces`, in joint space."""

  spring: jax.Array
  damper: jax.Array


def forces(m: Model, length: jax.Array, velocity: jax.Array, ten_J: jax.Array, plastic: jax.Array) -> TendonForce:
  """Compute the spring and damper forces of the tendons on the dofs (nv, W).

  Source: `mj_passive`; MuJoCo documentation, gePolynomial.
  Gradient: zero at the ends of the dead band, the derivative from inside.
  """
  p = m.plan.tendon_force
  spring = damper = jnp.zeros((m.nv, length.shape[-1]), length.dtype)
  if p.has_spring and m.opt.use_spring:
    spring = tendon.to_joints(m, ten_J, _spring(m, length, plastic))
  if p.has_damper and m.opt.use_damper:
    damper = tendon.to_joints(m, ten_J, _damper(m, velocity))
  return TendonForce(spring, damper)


def tension(m: Model, length: jax.Array, velocity: jax.Array, plastic: jax.Array) -> jax.Array:
  """Return the spring and damper force (ntendon, W) along the tendons, positive where it makes them longer."""
  p = m.plan.tendon_force
  out = jnp.zeros_like(length)
  if p.has_spring and m.opt.use_spring:
    out = out + _spring(m, length, plastic)
  if p.has_damper and m.opt.use_damper:
    out = out + _damper(m, velocity)
  return out


def actuator_tension(m: Model, actuator_force: jax.Array) -> jax.Array:
  """Return the force (ntendon, W) of the actuators along the tendons, from the forces of all outputs (nout, W)."""
  p = m.plan.tendon_force
  return group_sum(p.by_actuator, rows(m.actuator_gear, p.actuator_out)[:, 0] * rows(actuator_force, p.actuator_out))


def _spring(m, length, plastic):
  x = extension(m, length, plastic)
  k, higher = m.tendon_stiffness, m.tendon_stiffnesspoly
  return -x * (k + x * (higher[:, 0] + higher[:, 1] * x))


def _damper(m, velocity):
  first, higher = damping(m)
  speed = jnp.abs(velocity)
  return -velocity * (first + speed * (higher[:, 0] + higher[:, 1] * speed))


def slopes(m: Model, length: jax.Array, velocity: jax.Array, plastic: jax.Array) -> tuple[jax.Array, jax.Array]:
  """Return the stiffness and damping (ntendon, W) at a state, at least zero; the stiffness is zero within the dead band."""
  p = m.plan.tendon_force
  stiffness = slope = jnp.zeros_like(velocity)
  if p.has_spring and m.opt.use_spring:
    x, k, higher = extension(m, length, plastic), m.tendon_stiffness, m.tendon_stiffnesspoly
    stiffness = jnp.where(x == 0, 0, jnp.maximum(k + x * (2 * higher[:, 0] + 3 * higher[:, 1] * x), 0))
  if p.has_damper and m.opt.use_damper:
    first, higher = damping(m)
    speed = jnp.abs(velocity)
    slope = jnp.maximum(first + speed * (2 * higher[:, 0] + 3 * higher[:, 1] * speed), 0)
  return stiffness, slope


def damping(m: Model) -> tuple[jax.Array, jax.Array]:
  """Return the damping (ntendon, W) and its higher coefficients (ntendon, 2, W), with those of actuators on the tendons."""
  if "actuator_damping" in m.layout.pruned:
    return m.tendon_damping, m.tendon_dampingpoly
  return m.tendon_damping + reflected(m, m.actuator_damping), m.tendon_dampingpoly + reflected(m, m.actuator_dampingpoly)


def reflected(m: Model, x: jax.Array) -> jax.Array:
  """Sum by tendon a property x (nactuator, ..., W) of the actuators on tendons, times the square of their gear.

  Source: `mj_actuatorDamping`, `mj_actuatorArmature`.
  """
  p = m.plan.tendon_force
  gear = rows(m.actuator_gear, p.actuator_out)[:, 0]
  x = rows(x, p.actuator)
  return group_sum(p.by_actuator, x * (gear * gear).reshape(len(p.actuator), *(1,) * (x.ndim - 2), -1))


def extension(m: Model, length: jax.Array, plastic: jax.Array) -> jax.Array:
  """Return the signed extension (ntendon, W) of the tendons beyond the dead bands of their springs."""
  p = m.plan.tendon_force
  band = m.tendon_lengthspring
  if len(p.plastic):
    band = join([band, rows(plastic, p.plastic_adr)], p.band_order)
  return _stretch(length, band)


def _stretch(length, band):
  """Return the signed distance of lengths beyond their dead bands."""
  low, high = band[:, 0], band[:, 1]
  return jnp.where(length > high, length - high, jnp.where(length < low, length - low, 0))


def yielded(m: Model, plastic, length, ten_J, qpos, qvel) -> jax.Array:
  """Return `plastic` with the dead bands of yielding tendons moved; to be called once, after qpos was advanced.

  A spring that is stretched beyond `tendon_springyield` moves its dead band, so that the stretch equals this limit. If a band
  begins at zero and its spring is stretched, only the end of the band moves.

  Args:
    plastic: (nplastic, W).
    length: (ntendon, W) before qpos was advanced.
    ten_J: (nJten, W) before qpos was advanced.
    qpos: (nq, W) after qpos was advanced.
    qvel: (nv, W) the velocity that qpos was advanced with.

  Source: MuJoCo 4.0 documentation, tendon springyield.
  Gradient: that of the branch taken.
  """
  p = m.plan.tendon_force
  if not len(p.plastic) or not m.opt.use_spring:
    return plastic
  after = length + m.opt.timestep * tendon.velocity(m, ten_J, qvel)
  if p.fixed.any():
    after = jnp.where(np.isin(np.arange(m.ntendon), p.plastic[p.fixed])[:, None], tendon.fixed_length(m, qpos), after)
  band = rows(plastic, p.plastic_adr)
  low, high = band[:, 0], band[:, 1]
  x = _stretch(rows(after, p.plastic), band)
  limit = jnp.maximum(rows(m.tendon_springyield, p.plastic), 0)
  moved = jnp.where(x > limit, x - limit, jnp.where(x < -limit, x + limit, 0))
  anchored = (low == 0) & (high > 0) & (x > 0)
  band = jnp.stack([low + jnp.where(anchored, 0, moved), high + moved], axis=1)
  return put(m, plastic, band)


def put(m: Model, plastic: jax.Array, band: jax.Array) -> jax.Array:
  """Write the dead bands (n, 2, W) of the yielding tendons, or (n, 2) without a world axis, to `plastic`."""
  adr = m.plan.tendon_force.plastic_adr
  if not len(adr):
    return plastic
  return plastic.at[adr.ravel()].set(band.reshape(adr.size, *band.shape[2:]))


def initial(m: Model, plastic: jax.Array) -> jax.Array:
  """Write the dead bands of the model to `plastic`; with or without a world axis."""
  return put(m, plastic, rows(m.tendon_lengthspring, m.plan.tendon_force.plastic))
