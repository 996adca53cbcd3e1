"""Derivatives of whole steps: linearization in tangent coordinates, and Hessian-vector products.

Tests: tests/gradients/test_transition_jac.py.
"""

import contextlib
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from mjx_lite.api import one_world
from mjx_lite.model.types import Data, Model
from mjx_lite.ops import lanes
from mjx_lite.pipeline import differentiate_pos, fwd_actuation, integrate_pos, inverse, step


class TransitionJac(NamedTuple):
  """Linearized step: x' = A x + B u, s = C x + D u.

  x = (dqpos (nv), dqvel (nv), dact (na)) are tangent coordinates, and u = dctrl (nu). s is sensordata (nsensordata), computed
  within the step, before the integration.
  """

  A: jax.Array
  B: jax.Array
  C: jax.Array
  D: jax.Array


class InverseJac(NamedTuple):
  """Linearized inverse dynamics. Rows are outputs, and columns (nv) are tangent coordinates.

  f is `qfrc_inverse` (nv), s is sensordata (nsensordata).
  """

  DfDq: jax.Array  # with respect to position
  DfDv: jax.Array  # velocity
  DfDa: jax.Array  # acceleration
  DsDq: jax.Array
  DsDv: jax.Array
  DsDa: jax.Array


def _columns(function: Callable[[jax.Array], jax.Array], n: int, d: Data) -> jax.Array:
  """Return the Jacobian (outputs, n, W) at 0. Columns are an axis before the world axis, so each primal is computed once."""
  width = d.qpos.shape[-1]
  with lanes.packed(for_derivatives=True) if lanes.packs() else contextlib.nullcontext():
    _, linear = jax.linearize(function, jnp.zeros((n, width), d.qpos.dtype))
  columns = jnp.broadcast_to(jnp.eye(n, dtype=d.qpos.dtype)[..., None], (n, n, width))
  if width == 1 and jax.default_backend() == "cpu":  # in a kernel a loop, whose code is that of one column
    return jnp.moveaxis(jax.lax.map(linear, columns), 0, 1)
  return jax.vmap(linear, in_axes=1, out_axes=1)(columns)


def _transition_jac(m: Model, d: Data) -> TransitionJac:
  nv, na, nu = m.nv, m.na, m.nu
  one = jnp.ones((), d.qpos.dtype)

  def move(x):
    dq, dv, da, du = jnp.split(x, [nv, 2 * nv, 2 * nv + na])
    qpos = integrate_pos(m, d.qpos, dq, one)
    moved = step(m, d.replace(qpos=qpos, qvel=d.qvel + dv, act=d.act + da, ctrl=d.ctrl + du))
    dqpos = differentiate_pos(m, one, jax.lax.stop_gradient(moved.qpos), moved.qpos)
    return jnp.concatenate([dqpos, moved.qvel, moved.act, moved.sensordata])

  jac, nx = _columns(move, 2 * nv + na + nu, d), 2 * nv + na
  return TransitionJac(jac[:nx, :nx], jac[:nx, nx:], jac[nx:, :nx], jac[nx:, nx:])


def _inverse_jac(m: Model, d: Data, *, actuation: bool) -> InverseJac:
  def force(x):
    dq, dv, da = jnp.split(x, 3)
    qpos = integrate_pos(m, d.qpos, dq, jnp.ones((), dq.dtype))
    at = inverse(m, d.replace(qpos=qpos, qvel=d.qvel + dv, qacc=d.qacc + da))
    applied = fwd_actuation(m, at).qfrc_actuator if actuation else 0
    return jnp.concatenate([at.qfrc_inverse - applied, at.sensordata])

  jac = _columns(force, 3 * m.nv, d)
  return InverseJac(*(part for rows in (jac[: m.nv], jac[m.nv :]) for part in jnp.split(rows, 3, axis=1)))


_NATIVE, _NATIVE_INVERSE = one_world(_transition_jac), one_world(_inverse_jac)


def transition_jac(m: Model, d: Data) -> TransitionJac:
  """Return the exact derivative of a step with respect to state and control.

  `jax.vmap` batches it in the engine's layout, and all columns are computed together. The start position moves along a velocity
  (`integrate_pos`), and the end position is compared with the reached position (`differentiate_pos`), so A is square of size
  2 nv + na. The derivative with respect to a control outside its range is zero (at the ends of the range, the one-sided
  differences of `mjd_transitionFD` show the inner derivative).

  Source: `mjd_transitionFD`.
  """
  return _NATIVE(m, d)


def inverse_jac(m: Model, d: Data, *, actuation: bool = False) -> InverseJac:
  """Return the exact derivative of inverse dynamics with respect to position, velocity and acceleration.

  `jax.vmap` batches it in the engine's layout, as `transition_jac`. Positions move along velocities (`integrate_pos`), so
  every part has nv columns; C stores the transposes.

  Args:
    m: the model.
    d: the Data: qpos, qvel, qacc and the inputs.
    actuation: subtract the actuators' forces. The derivative is then that of the force that other sources have to supply.

  Source: `mjd_inverseFD`.
  """
  return _NATIVE_INVERSE(m, d, actuation=bool(actuation))


def hvp(function: Callable[..., jax.Array], primal: Any, tangent: Any) -> Any:
  """Return the Hessian of a scalar function times a direction, by forward mode over reverse mode.

  The function may take any number of steps.

  Args:
    function: from a pytree to a scalar.
    primal: the pytree at which the Hessian is taken.
    tangent: direction, a pytree like primal.
  """
  return jax.jvp(jax.grad(function), (primal,), (tangent,))[1]
