"""Derivatives of whole steps: linearisation in tangent coordinates, Hessian-vector products."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from mjx_lite.api import one_world
from mjx_lite.core.types import Data, Model
from mjx_lite.forward import differentiate_pos, integrate_pos, step


class TransitionJac(NamedTuple):
  """x' = A x + B u, s = C x + D u in tangent coordinates x = (dqpos (nv), dqvel (nv), dact (na)), u = dctrl (nu).

  s is sensordata (nsensordata), as it is computed within the step, before the integration.
  """

  A: jax.Array
  B: jax.Array
  C: jax.Array
  D: jax.Array


def _transition_jac(m: Model, d: Data) -> TransitionJac:
  """Native form: the tangent columns are an axis before the world axis, so each primal value is computed once."""
  nv, na, nu, width = m.nv, m.na, m.nu, d.qpos.shape[-1]
  one = jnp.ones((), d.qpos.dtype)

  def move(x):
    dq, dv, da, du = jnp.split(x, [nv, 2 * nv, 2 * nv + na])
    qpos = integrate_pos(m, d.qpos, dq, one)
    moved = step(m, d.replace(qpos=qpos, qvel=d.qvel + dv, act=d.act + da, ctrl=d.ctrl + du))
    dqpos = differentiate_pos(m, one, jax.lax.stop_gradient(moved.qpos), moved.qpos)
    return jnp.concatenate([dqpos, moved.qvel, moved.act, moved.sensordata])

  n = 2 * nv + na + nu
  _, linear = jax.linearize(move, jnp.zeros((n, width), d.qpos.dtype))
  columns = jnp.broadcast_to(jnp.eye(n, dtype=d.qpos.dtype)[..., None], (n, n, width))
  jac = jax.vmap(linear, in_axes=1, out_axes=1)(columns)
  nx = 2 * nv + na
  return TransitionJac(jac[:nx, :nx], jac[:nx, nx:], jac[nx:, :nx], jac[nx:, nx:])


_NATIVE = one_world(_transition_jac)


def transition_jac(m: Model, d: Data) -> TransitionJac:
  """Exact derivative of a step with respect to state and control.

  Batched by `jax.vmap`, in the engine's layout; the columns are computed together. The position at the end is compared
  with the one that is reached (`differentiate_pos`), positions at the start move along velocities (`integrate_pos`), so A is
  square of size 2 nv + na. A step from a state outside its own range of controls has no derivative with respect to these
  (one-sided differences of `mjd_transitionFD` at the ends of the range show the inner one).

  Source: `mjd_transitionFD`.
  """
  return _NATIVE(m, d)


def hvp(function: Callable[..., jax.Array], primal: Any, tangent: Any) -> Any:
  """Hessian of a scalar function times a direction, by forward mode over reverse mode; any number of steps inside.

  Args:
    function: from a pytree to a scalar.
    primal: where.
    tangent: direction, a pytree like primal.
  """
  return jax.jvp(jax.grad(function), (primal,), (tangent,))[1]
