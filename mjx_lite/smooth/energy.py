"""Potential and kinetic energy.

Tests: tests/sensor/test_energy.py, tests/gradients/test_passive_gradients.py.
"""

import jax
import jax.numpy as jnp

from mjx_lite.math import safe, vector
from mjx_lite.model.types import Model
from mjx_lite.ops.select import rows
from mjx_lite.smooth import mass
from mjx_lite.smooth.passive import joint_extensions
from mjx_lite.tendon import force as tendon_force


def potential(m: Model, qpos, xipos, ten_length, plastic) -> jax.Array:
  """Return the energy (W,) [J] of gravity and of the springs.

  Source: `mj_energyPos`.
  """
  energy = jnp.zeros(qpos.shape[-1:], qpos.dtype)
  if m.opt.use_gravity:
    height = vector.dot(xipos, m.opt.gravity)
    energy = energy - vector.total(m.body_mass * height)
  if m.opt.use_spring:
    energy = energy + _joint_springs(m, qpos, plastic) + _tendon_springs(m, ten_length, plastic)
  return energy


def kinetic(m: Model, cinert, cdof, packed_m, qvel) -> jax.Array:
  """Return the kinetic energy (W,) [J], armature included. Source: `mj_energyVel`."""
  return vector.total(qvel * mass.mul(m, cinert, cdof, packed_m, qvel)) / 2


def polynomial(x: jax.Array, first: jax.Array, higher: jax.Array) -> jax.Array:
  """Return the energy of a spring with force `-x (a + b x + c x^2)`, where a = first and (b, c) = higher (n, 2, W)."""
  return x * x * (first / 2 + x * (higher[:, 0] / 3 + x * higher[:, 1] / 4))


def _joint_springs(m, qpos, plastic):
  p = m.plan.passive
  if not p.has_spring:
    return 0
  x = joint_extensions(m, qpos, plastic)
  total = 0
  for joints, size in ((p.scalar, x.scalar), (p.free, safe.norm(x.shift)), (p.rotational, safe.norm(x.rotation))):
    if len(joints):
      stored = polynomial(size, rows(m.jnt_stiffness, joints), rows(m.jnt_stiffnesspoly, joints))
      total = total + vector.total(stored)
  return total


def _tendon_springs(m, length, plastic):
  if not m.plan.tendon_force.has_spring:
    return 0
  x = tendon_force.extension(m, length, plastic)
  return vector.total(polynomial(x, m.tendon_stiffness, m.tendon_stiffnesspoly))
