"""Elasto-plastic joint springs: the reference of a spring yields by following its joint beyond a limit.

Tests: tests/parity/test_passive.py, tests/gradients/test_passive_gradients.py.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mjx_lite.math import quat, safe
from mjx_lite.model.enums import JointType
from mjx_lite.model.types import Model
from mjx_lite.ops.select import join, rows


class PlasticPlan(NamedTuple):
  """Addresses of the joints' references in `plastic`; the entries of tendons come after them."""

  reference: np.ndarray  # qpos address -> row in the concatenation (qpos_spring, plastic)
  initial: np.ndarray  # plastic entry of a joint -> qpos address
  scalar: np.ndarray  # slide and hinge joints that yield
  scalar_adr: np.ndarray  # qpos addresses of `scalar`
  ball: np.ndarray  # ball joints that yield
  ball_adr: np.ndarray  # (n, 4) qpos addresses of the quaternions of `ball`
  order: np.ndarray  # plastic entry of a joint -> row in the concatenation (scalar, ball)


def plan(s: dict[str, Any]) -> PlasticPlan:
  """Compute the addresses from the static fields of the model."""
  address, kind, qpos = s["jnt_plasticadr"], s["jnt_type"], s["jnt_qposadr"]
  scalar = np.flatnonzero((address >= 0) & ((kind == JointType.SLIDE) | (kind == JointType.HINGE)))
  ball = np.flatnonzero((address >= 0) & (kind == JointType.BALL))
  ball_adr = qpos[ball][:, None] + np.arange(4)
  entry = np.concatenate([address[scalar], (address[ball][:, None] + np.arange(4)).ravel()]).astype(int)
  adr = np.concatenate([qpos[scalar], ball_adr.ravel()]).astype(int)
  reference = np.arange(s["nq"])
  reference[adr] = s["nq"] + entry
  order = np.argsort(entry)
  return PlasticPlan(
    reference=reference, initial=adr[order], scalar=scalar, scalar_adr=qpos[scalar], ball=ball, ball_adr=ball_adr, order=order
  )


def initial(m: Model) -> jax.Array:
  """Return the initial reference of every plastic joint; entries of tendons are zero. With or without a world axis."""
  p = m.plan.plastic
  rest = jnp.zeros((m.nplastic - len(p.initial), *m.qpos_spring.shape[1:]), m.qpos_spring.dtype)
  return jnp.concatenate([rows(m.qpos_spring, p.initial), rest])


def reference(m: Model, plastic: jax.Array) -> jax.Array:
  """Return the configuration (nq, W) at which the joint springs are at rest."""
  p = m.plan.plastic
  return join([m.qpos_spring, plastic], p.reference) if len(p.initial) else m.qpos_spring


def advance(m: Model, qpos: jax.Array, plastic: jax.Array) -> jax.Array:
  """Return the references after the joints moved to qpos: each reference follows its joint to a distance of springyield.

  Source: MuJoCo documentation, joint springyield; `mj_advance`.
  Gradient: that of the elastic side at exactly the yield limit.
  """
  p = m.plan.plastic
  if not len(p.initial) or not m.opt.use_spring:
    return plastic
  limit = jnp.maximum(m.jnt_springyield, 0)
  at = rows(qpos, p.scalar_adr)
  away = at - rows(plastic, m.jnt_plasticadr[p.scalar])
  most = rows(limit, p.scalar)
  excess = jnp.where(jnp.abs(away) > most, away - jnp.sign(away) * most, 0)
  scalar = rows(plastic, m.jnt_plasticadr[p.scalar]) + excess
  parts = [scalar]
  if len(p.ball):
    old = rows(plastic, m.jnt_plasticadr[p.ball][:, None] + np.arange(4))
    rotation = quat.sub(safe.normalize(rows(qpos, p.ball_adr)), old)
    angle = safe.norm(rotation)
    share = safe.divide(jnp.maximum(angle - rows(limit, p.ball), 0), angle)
    yields = share > 0
    moved = quat.integrate(old, rotation, jnp.where(yields, share, 0)[:, None])
    new = jnp.where(yields[:, None], moved, old)
    parts.append(new.reshape(4 * len(p.ball), new.shape[-1]))
  return join([join(parts, p.order), plastic[len(p.order) :]])
