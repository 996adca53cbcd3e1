"""Operators on vectors: mass matrix, positions, applied forces.

Tests: tests/transforms/test_step.py, tests/transforms/test_promises.py.
"""

from typing import Any

import jax

from mjx_lite.integrate import advance
from mjx_lite.model.types import Data, Model
from mjx_lite.pipeline.position import mass_factor
from mjx_lite.smooth import (
  applied,
  inertia,
  mass,
)


def full_m(m: Model, d: Data) -> jax.Array:
  """Return the dense mass matrix M (nv, nv)."""
  return inertia.full(m, d.M)


def mul_m(m: Model, d: Data, vec: jax.Array) -> jax.Array:
  """Return M times a vector (nv,).

  Args:
    m: the model.
    d: Data after `crb`.
    vec: (nv,).
  """
  return mass.mul(m, d.cinert, d.cdof, d.M, vec)


def solve_m(m: Model, d: Data, vec: jax.Array) -> jax.Array:
  """Return M^-1 times a vector (nv,).

  Args:
    m: the model.
    d: Data after `crb`.
    vec: (nv,).
  """
  return mass.solve(m, mass_factor(m, d), vec)


def xfrc_accumulate(m: Model, d: Data) -> jax.Array:
  """Return the joint-space force (nv,) of xfrc_applied."""
  return applied.xfrc_accumulate(m, d.cdof, d.xipos, d.subtree_com, d.xfrc_applied)


def integrate_pos(m: Model, qpos: jax.Array, qvel: jax.Array, dt: Any) -> jax.Array:
  """Return qpos (nq,) after moving with velocity qvel (nv,) for dt [s].

  Args:
    m: the model.
    qpos: (nq,).
    qvel: (nv,).
    dt: [s].
  """
  return advance.integrate_pos(m, qpos, qvel, dt)


def differentiate_pos(m: Model, dt: Any, qpos1: jax.Array, qpos2: jax.Array) -> jax.Array:
  """Return the velocity (nv,) that takes qpos1 to qpos2 in dt [s].

  Args:
    m: the model.
    dt: [s].
    qpos1: start position (nq,).
    qpos2: end position (nq,).
  """
  return advance.differentiate_pos(m, qpos1, qpos2, dt)
