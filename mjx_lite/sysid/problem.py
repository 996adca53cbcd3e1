"""Residuals of measured trajectories, split into segments, and the exact Jacobian of the residuals.

The unknowns are z = (parameters / scale, states at the starts of the segments / spread). The states are differences from an
initial guess, in tangent coordinates. The rollout of a segment depends only on the parameters and on the segment's own start
state. So each segment has P + nx tangent columns, independent of the number of segments. `propagate_tangents` rolls out a batch
of segments in forward mode. The rollouts are nearly all of the work; each core computes a part of the segments.
`assemble_jacobian` builds the residuals and the Jacobian from all parts.

Tests: tests/sysid/test_fit.py.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import mjx_lite as mjx
from mjx_lite.sysid.params import Param, apply

STATE = ("qpos", "qvel", "act")
JUMPS = (1e-1, 1e-3, 1e-5)  # unit of jumps between segments in the passes of a fit, relative to the spread of the states


class Trajectory(NamedTuple):
  """A measured trajectory, in the conventions of C's `mj_step` and of `rollout`.

  `measured` maps names of sensors, or of Data's fields ('qpos', 'qvel', 'sensordata', 'ten_length', ...), to one row per step.
  State fields are those after the step. All other quantities are those computed within the step, at the state before the
  step. NaN marks a number that was not measured.
  """

  ctrl: Any  # (T, nu)
  measured: Mapping[str, Any]  # (T, n) each
  qpos: Any = None  # (nq,) at the start; qpos0 if None
  qvel: Any = None  # (nv,) at the start; zero if None
  act: Any = None  # (na,) at the start; zero if None


class Channel(NamedTuple):
  """One entry of `measured`: columns of a field of Data."""

  name: str
  field: str
  columns: tuple[int, ...]
  tangent: bool  # whether the field is qpos of a model with quaternions; the residual is then in tangent coordinates


class Structure(NamedTuple):
  """Static description of the problem; each structure compiles to its own program."""

  params: tuple[Param, ...]
  sizes: tuple[int, ...]
  channels: tuple[Channel, ...]
  segments: int
  link: tuple[int, ...]  # ids of the segments that the next segment continues
  starts: bool  # whether the states at the starts are unknowns


class Tables(NamedTuple):
  """Arrays of the problem, for S segments of K steps."""

  m: mjx.Model
  d: mjx.Data  # all other fields of the start states
  start: dict[str, jax.Array]  # initial guesses: qpos (S, nq), qvel (S, nv), act (S, na), time (S,)
  ctrl: jax.Array  # (S, K, nu)
  measured: dict[str, jax.Array]  # (S, K, n), finite
  weight: dict[str, jax.Array]  # (S, K, n) 1 / noise, 0 where nothing was measured
  join: jax.Array  # (nx,) weight of the jumps between segments: 1 / allowed jump
  prior: jax.Array  # (S, nx) 1 / standard deviation of a start, 0 where nothing is known
  scale: jax.Array  # (P,) unit of the parameters
  spread: jax.Array  # (nx,) unit of the differences of the starts


def channel(m: mjx.Model, d: mjx.Data, name: str) -> Channel:
  """Find the field and the columns of Data for the name of a measurement."""
  sensor = mjx.name2id(m, mjx.ObjType.SENSOR, name)
  if sensor >= 0:
    first = int(m.sensor_adr[sensor])
    return Channel(name, "sensordata", tuple(range(first, first + int(m.sensor_dim[sensor]))), False)
  if not isinstance(getattr(d, name, None), jax.Array):
    known = [mjx.id2name(m, mjx.ObjType.SENSOR, i) or "unnamed" for i in range(m.nsensor)]
    raise ValueError(f"measured[{name!r}] is neither a sensor of the model ({', '.join(known)}) nor a field of Data.")
  tangent = name == "qpos" and m.nq != m.nv
  return Channel(name, name, tuple(range(m.nv if tangent else getattr(d, name).size)), tangent)


def residual(p: Structure, z: jax.Array, t: Tables) -> jax.Array:
  """Compute all residuals in units of their noise: measurements, jumps between segments, priors of the starts."""
  theta, delta = unknowns(p, z, t)
  measurements, end = _simulate(p, theta, delta, t)
  return jnp.concatenate([measurements.ravel(), _jumps(p, end, delta, t).ravel(), _priors(p, delta, t)])


class Linearised(NamedTuple):
  """Residuals and end states of a batch of segments, and their derivatives along the n = P + nx unknowns of each segment."""

  residual: jax.Array  # (S, M) weighted residuals of the measurements
  jacobian: jax.Array  # (S, M, n) derivatives of `residual`
  end: dict[str, jax.Array]  # states at the end: (S, nq), ...; empty if no segment is continued
  end_tangent: dict[str, jax.Array]  # (n, S, nq), ... derivatives of `end`


def propagate_tangents(p: Structure, theta: jax.Array, delta: jax.Array, t: Tables) -> Linearised:
  """Roll out a batch of segments in forward mode: primal values once, the n tangent columns as a batch.

  Args:
    p: structure.
    theta: (P,) parameters.
    delta: (S, nx) differences of the starts.
    t: tables of these segments, which may be a subset of all segments.
  """
  count, (S, nx) = theta.shape[0], delta.shape
  n = count + (nx if p.starts else 0)
  theta_columns = np.eye(n, count, dtype=theta.dtype) * t.scale
  delta_columns = np.broadcast_to(np.eye(n, nx, -count, dtype=theta.dtype)[:, None], (n, S, nx)) * t.spread

  # zero tangents for all carried fields: otherwise JAX traces the loop a second time when its body adds tangents
  first = {**t.start, "qacc_warmstart": jnp.broadcast_to(t.d.qacc_warmstart, (S, t.m.nv))}
  zeros = {k: jnp.zeros((n, *x.shape), x.dtype) for k, x in first.items()}

  def push_forward(columns):
    return jax.jvp(lambda a, b, c: _simulate(p, a, b, t._replace(start=c)), (theta, delta, first), columns)

  columns = (theta_columns, delta_columns, zeros)
  (residual, end), (tangents, end_tangent) = jax.vmap(push_forward, out_axes=(None, 0))(columns)
  jacobian = jnp.moveaxis(tangents, 0, -1)
  return Linearised(residual, jacobian, end, end_tangent) if p.link else Linearised(residual, jacobian, {}, {})


def assemble_jacobian(p: Structure, z: jax.Array, found: Linearised, t: Tables) -> tuple[jax.Array, jax.Array]:
  """Assemble the residuals (R,) and their Jacobian (R, n) from the segments' residuals and derivatives."""
  theta, delta = unknowns(p, z, t)
  count, (S, nx) = theta.shape[0], delta.shape
  r, J = [found.residual.ravel()], [_all_columns(found.jacobian, count, S)]
  if p.link:
    along = jax.vmap(lambda e: jax.jvp(lambda x: _jumps(p, x, delta, t), (found.end,), (e,)), out_axes=(None, 0))
    jump, by_end = along(found.end_tangent)  # (L, nx), (n, L, nx)
    delta_columns = jnp.broadcast_to(jnp.diag(t.spread)[:, None], (nx, S, nx))
    by_start = jax.vmap(lambda e: jax.jvp(lambda x: _jumps(p, found.end, x, t), (delta,), (e,))[1])(delta_columns)
    link = np.array(p.link)
    block = _all_columns(jnp.moveaxis(by_end, 0, -1), count, S, link)
    zeros = jnp.zeros((len(link), nx, S, nx), z.dtype)
    next_start = zeros.at[np.arange(len(link)), :, link + 1].set(jnp.moveaxis(by_start, 0, -1))
    r.append(jump.ravel())
    J.append(block.at[:, count:].add(next_start.reshape(len(link) * nx, S * nx)))
  if p.starts:
    r.append(_priors(p, delta, t))
    J.append(jnp.concatenate([jnp.zeros((S * nx, count), z.dtype), jnp.diag((t.prior * t.spread).ravel())], axis=1))
  return jnp.concatenate(r), jnp.concatenate(J)


def _all_columns(jacobian, count, S, ids=None):
  """Expand rows (L, M, count + nx) of the segments `ids` (default: all) to a matrix (L M, count + S nx) of all unknowns."""
  L, M, n = jacobian.shape
  ids = np.arange(S) if ids is None else ids
  theta_part = jacobian[..., :count].reshape(L * M, count)
  if n == count:
    return theta_part
  start_part = jnp.zeros((L, M, S, n - count), jacobian.dtype).at[np.arange(L), :, ids].set(jacobian[..., count:])
  return jnp.concatenate([theta_part, start_part.reshape(L * M, S * (n - count))], axis=1)


def unknowns(p: Structure, z: jax.Array, t: Tables) -> tuple[jax.Array, jax.Array]:
  """Split z into parameters (P,) and differences of the starts (S, nx), in physical units."""
  count, nx = sum(p.sizes), t.spread.shape[0]
  theta = z[:count] * t.scale
  if not p.starts:
    return theta, jnp.zeros((p.segments, nx), z.dtype)
  return theta, z[count:].reshape(p.segments, nx) * t.spread


def _simulate(p, theta, delta, t):
  """Roll out the segments; return weighted residuals (S, M) and the states at the end of the segments."""
  m = apply(t.m, p.params, theta)
  start = _start_states(p, t.m, delta, t)
  fields = tuple(dict.fromkeys((*(c.field for c in p.channels), "qpos", "qvel")))

  def one(s, ctrl):
    end, record = mjx.rollout(m, t.d.replace(**s), ctrl, record=fields, checkpoint=None)
    return {k: getattr(end, k) for k in STATE}, record

  end, record = jax.vmap(one)(start, t.ctrl)
  residuals = []
  for c in p.channels:
    x, y = record[c.field], t.measured[c.name]
    if c.tangent:
      difference = jax.vmap(jax.vmap(lambda a, b: mjx.differentiate_pos(m, 1, a, b)))(y, x)
    else:
      difference = x.reshape(*x.shape[:2], -1)[..., np.array(c.columns)] - y
    residuals.append((difference * t.weight[c.name]).reshape(len(t.ctrl), -1))
  return jnp.concatenate(residuals, axis=1), end


def _start_states(p, m, delta, t):
  """Return the states at the starts: the initial guesses plus delta."""
  if not p.starts:
    return t.start
  nv = m.nv
  displace = jax.vmap(lambda q, x: mjx.integrate_pos(m, q, x, 1))
  return dict(
    t.start, qpos=displace(t.start["qpos"], delta[:, :nv]), qvel=t.start["qvel"] + delta[:, nv : 2 * nv],
    act=t.start["act"] + delta[:, 2 * nv :],
  )  # fmt: skip


def _jumps(p, end, delta, t):
  """Compute the weighted differences from each linked segment's end to the start of the next segment (L, nx)."""
  if not p.link:
    return jnp.zeros((0, delta.shape[1]), delta.dtype)
  link = np.array(p.link)
  start = _start_states(p, t.m, delta, t)
  positions = jax.vmap(lambda a, b: mjx.differentiate_pos(t.m, 1, a, b))(end["qpos"][link], start["qpos"][link + 1])
  velocities, activations = (start[k][link + 1] - end[k][link] for k in ("qvel", "act"))
  return jnp.concatenate([positions, velocities, activations], axis=1) * t.join


def _priors(p, delta, t):
  """Compute the differences of the starts in units of their standard deviation, flat (S nx,)."""
  return (delta * t.prior).ravel() if p.starts else jnp.zeros(0, delta.dtype)


def channel_residuals(p: Structure, steps: int, r: np.ndarray, sigma: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
  """Return simulated minus measured values (S, K, n) by channel, in the units of the channel; zero where not measured."""
  widths = [steps * len(c.columns) for c in p.channels]
  by_channel = np.split(r[: p.segments * sum(widths)].reshape(p.segments, -1), np.cumsum(widths)[:-1], axis=1)
  return {c.name: x.reshape(p.segments, steps, -1) * sigma[c.name] for c, x in zip(p.channels, by_channel, strict=True)}
