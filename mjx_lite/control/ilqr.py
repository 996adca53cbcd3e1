"""Iterative LQR: Newton's method on a trajectory with Gauss-Newton's curvature and bounds on the controls."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import mjx_lite as mjx
from mjx_lite.control.dynamics import Cost, check_ctrl, ctrl_bounds, difference, half_square, hold, linearize, moved

ALPHAS = 0.5 ** np.arange(10)  # lengths of step that are tried at once
_QP_ITERATIONS = 10
_DAMPING = 1e-6  # of the controls' curvature, at the start


class Ilqr(NamedTuple):
  """A trajectory with the feedback that keeps to it: u = ctrl[t] + gain[t] x."""

  ctrl: jax.Array  # (T, nu)
  qpos: jax.Array  # (T + 1, nq)
  qvel: jax.Array  # (T + 1, nv)
  gain: jax.Array  # (T, nu, nx)
  cost: jax.Array  # ()
  iterations: jax.Array  # () those taken
  converged: jax.Array  # () whether an iteration gained less than the tolerance, or its quadratic model promised no more


def ilqr(
  m: mjx.Model,
  d: mjx.Data,
  ctrl: jax.Array,
  cost: Cost,
  *,
  steps: int = 1,
  bounds: tuple[jax.Array, jax.Array] | None = None,
  iterations: int = 100,
  tolerance: float = 1e-6,
) -> Ilqr:
  """Improve controls from a state. Compile it: `mjx.jit(lambda m, d, u: ilqr(m, d, u, cost))`.

  Derivatives of the steps are exact, those of the contacts too; all knots are linearised as one batch, and all lengths of
  step are simulated as one.

  Args:
    m: the model.
    d: the state to start from.
    ctrl: (T, nu), where to start from; zeros will do if they are not a saddle.
    cost: residuals along the trajectory and at its end.
    steps: steps for which each control is held.
    bounds: of the controls, (nu,) each; the model's ranges by default.
    iterations: at most so many.
    tolerance: gain of an iteration, relative to the cost, at which to stop.

  Reference: Tassa, Mansard and Todorov, Control-limited differential dynamic programming, ICRA 2014.
  """
  check_ctrl(m, jnp.asarray(ctrl))
  low, high = ctrl_bounds(m) if bounds is None else bounds
  ctrl = jnp.clip(jnp.asarray(ctrl, d.qpos.dtype), low, high)
  alphas = jnp.asarray(ALPHAS, ctrl.dtype)

  def forward(path, ctrl, k, K, alpha):
    """The trajectory with a part of the improvement; path is the one that was linearised."""

    def one(now, x):
      reference, u, k, K = x
      u = jnp.clip(u + alpha * k + K @ difference(m, now.replace(**reference), now), low, high)
      return hold(m, now, u, steps), (_state(now), u, half_square(cost.running(m, now, u)))

    last, (states, ctrl, running) = jax.lax.scan(one, d, (jax.tree.map(lambda x: x[:-1], path), ctrl, k, K))
    states = jax.tree.map(lambda x, y: jnp.concatenate([x, y[None]]), states, _state(last))
    return states, ctrl, jnp.sum(running) + half_square(cost.final(m, last))

  def improve(carry):
    path, ctrl, _, total, mu, count, _ = carry
    at = jax.tree.map(lambda x: x[:-1], path)
    A, B = jax.vmap(lambda s, u: linearize(m, d.replace(**s, ctrl=u), steps))(at, ctrl)
    quadratic = jax.vmap(lambda s, u: _quadratic(m, d.replace(**s), u, cost.running))(at, ctrl)
    end = d.replace(**jax.tree.map(lambda x: x[-1], path))
    k, K, promised = _backward(A, B, quadratic, _final(m, end, cost.final), low - ctrl, high - ctrl, mu)
    tried = jax.vmap(lambda alpha: forward(path, ctrl, k, K, alpha))(alphas)
    costs = jnp.where(jnp.isfinite(tried[2]), tried[2], jnp.inf)
    best = jnp.argmin(costs)
    new_path, new_ctrl, new_total = jax.tree.map(lambda x: x[best], tried)
    better = costs[best] < total
    # a promise that heavy damping made small is none
    small = jnp.where(better, total - new_total, promised) <= tolerance * total
    done = small & (better | (mu <= _DAMPING))
    path, ctrl, K = mjx.where(better, (new_path, new_ctrl, K), (path, ctrl, carry[2]))
    mu = jnp.where(better, mu / 5, jnp.maximum(mu, _DAMPING) * 10)
    return path, ctrl, K, jnp.where(better, new_total, total), mu, count + 1, done

  def proceed(carry):
    *_, mu, count, done = carry
    return (count < iterations) & ~done & (mu < 1e10)

  # the first trajectory: nothing to compare with yet, so no feedback
  K = jnp.zeros((*ctrl.shape, 2 * m.nv + m.na), ctrl.dtype)
  still = jax.tree.map(lambda x: jnp.broadcast_to(x, (len(ctrl) + 1, *x.shape)), _state(d))
  path, ctrl, total = forward(still, ctrl, jnp.zeros_like(ctrl), K, jnp.zeros((), ctrl.dtype))
  start = (path, ctrl, K, total, jnp.full((), _DAMPING, ctrl.dtype), jnp.zeros((), jnp.int32), jnp.zeros((), bool))
  path, ctrl, K, total, _, count, done = jax.lax.while_loop(proceed, improve, start)
  return Ilqr(ctrl, path["qpos"], path["qvel"], K, total, count, done)


def _state(d: mjx.Data) -> dict[str, jax.Array]:
  """What the next step needs."""
  names = ("time", "qpos", "qvel", "act", "history", "plastic", "qacc_warmstart")
  return {name: getattr(d, name) for name in names}


def _quadratic(m: mjx.Model, d: mjx.Data, u: jax.Array, residual: Callable[..., jax.Array]) -> tuple[jax.Array, jax.Array]:
  """Gradient and Gauss-Newton Hessian of the running cost in (x, u)."""
  nx = 2 * m.nv + m.na

  def move(z):
    return residual(m, moved(m, d, z[:nx]), u + z[nx:])

  zero = jnp.zeros(nx + m.nu, u.dtype)
  r, J = move(zero), jax.jacfwd(move)(zero)
  return J.T @ r, J.T @ J


def _final(m: mjx.Model, d: mjx.Data, residual: Callable[..., jax.Array]) -> tuple[jax.Array, jax.Array]:
  """The same of the final cost in x."""
  move = lambda x: residual(m, moved(m, d, x))  # noqa: E731
  zero = jnp.zeros(2 * m.nv + m.na, d.qpos.dtype)
  r, J = move(zero), jax.jacfwd(move)(zero)
  return J.T @ r, J.T @ J


def _backward(A, B, quadratic, final, low, high, mu):
  """Changes of the controls k (T, nu), feedback K (T, nu, nx), and what k should gain (), from the end to the start."""
  nx = A.shape[-1]

  def one(value, x):
    Vx, Vxx = value
    A, B, (g, H), low, high = x
    AB = jnp.concatenate([A, B], axis=1)
    g, H = g + AB.T @ Vx, H + AB.T @ Vxx @ AB
    Qu, Quu, Qux = g[nx:], H[nx:, nx:], H[nx:, :nx]
    k, K = _box(Quu + mu * jnp.eye(len(Qu), dtype=Qu.dtype), Qu, Qux, low, high)
    Vx = g[:nx] + K.T @ (Quu @ k + Qu) + Qux.T @ k
    Vxx = H[:nx, :nx] + K.T @ Quu @ K + K.T @ Qux + Qux.T @ K
    return (Vx, 0.5 * (Vxx + Vxx.T)), (k, K, -Qu @ k - 0.5 * k @ Quu @ k)

  k, K, gain = jax.lax.scan(one, final, (A, B, quadratic, low, high), reverse=True)[1]
  return k, K, jnp.sum(gain)


def _box(H, g, Hx, low, high):
  """Minimum k of k'H k / 2 + g'k between bounds, by projected Newton, and its feedback: none where k is at a bound."""
  value = lambda k: 0.5 * k @ H @ k + g @ k  # noqa: E731
  eye = jnp.eye(len(g), dtype=g.dtype)

  def free_of(k):
    slope = H @ k + g
    free = ~(((k <= low) & (slope > 0)) | ((k >= high) & (slope < 0)))
    return slope, free, jnp.where(free[:, None] & free, H, eye)

  def one(k, _):
    slope, free, Hf = free_of(k)
    step = -jnp.linalg.solve(Hf, jnp.where(free, slope, 0))
    tried = jnp.clip(k + jnp.asarray(ALPHAS, k.dtype)[:, None] * step, low, high)
    values = jax.vmap(value)(tried)
    best = jnp.argmin(values)
    return jnp.where(values[best] < value(k), tried[best], k), None

  k, _ = jax.lax.scan(one, jnp.clip(jnp.zeros_like(g), low, high), length=_QP_ITERATIONS)
  _, free, Hf = free_of(k)
  return k, -jnp.linalg.solve(Hf, jnp.where(free[:, None], Hx, 0))
