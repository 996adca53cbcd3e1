"""Residuals of measured trajectories, cut into segments, and their exact Jacobian.

The unknowns are z = (parameters / scale, states at the starts of the segments): differences in tangent coordinates from a first
guess. A segment's rollout depends on the parameters and on its own start alone, so its tangents are P + nx columns however
many segments there are. They are pushed forward together, with segments as worlds of a batch (`pushed`); that is nearly all of
the work, and is done for a part of the segments on each core. `assembled` puts the parts together.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import mjx_lite as mjx
from mjx_lite.sysid.params import Param, apply

STATE = ("qpos", "qvel", "act")
JUMPS = (1e-1, 1e-3, 1e-5)  # allowed between segments in the passes of a fit, relative to the spread of the states


class Trajectory(NamedTuple):
  """A measured trajectory, in the conventions of C's `mj_step` and of `rollout`.

  `measured` maps names of sensors, or of Data's fields ('qpos', 'qvel', 'sensordata', 'ten_length', ...), to one row per step:
  state is that after the step, everything else what was computed within it, at the state before. NaN: not measured.
  """

  ctrl: Any  # (T, nu)
  measured: Mapping[str, Any]  # (T, n) each
  qpos: Any = None  # (nq,) at the start; qpos0 if None
  qvel: Any = None  # (nv,) zero if None
  act: Any = None  # (na,) zero if None


class Channel(NamedTuple):
  """One entry of `measured`: columns of a field of Data."""

  name: str
  field: str
  columns: tuple[int, ...]
  tangent: bool  # whether it is qpos of a model with rotations: then compared along velocities


class Structure(NamedTuple):
  """What decides the program."""

  params: tuple[Param, ...]
  sizes: tuple[int, ...]
  channels: tuple[Channel, ...]
  segments: int
  link: tuple[int, ...]  # segments that another one continues, the next in order
  starts: bool  # whether states at the starts are unknown


class Tables(NamedTuple):
  """Numbers of the problem, S segments of K steps."""

  m: mjx.Model
  d: mjx.Data  # all else of a start
  start: dict[str, jax.Array]  # guesses: qpos (S, nq), qvel (S, nv), act (S, na), time (S,)
  ctrl: jax.Array  # (S, K, nu)
  measured: dict[str, jax.Array]  # (S, K, n), finite
  weight: dict[str, jax.Array]  # (S, K, n) one over the noise, 0 where nothing was measured
  join: jax.Array  # (nx,) one over the jumps that are allowed between segments
  prior: jax.Array  # (S, nx) one over the uncertainty of a start, 0 where nothing is known
  scale: jax.Array  # (P,)
  spread: jax.Array  # (nx,) unit of the starts' differences


def channel(m: mjx.Model, d: mjx.Data, name: str) -> Channel:
  """Where a measured quantity is found."""
  sensor = mjx.name2id(m, mjx.ObjType.SENSOR, name)
  if sensor >= 0:
    first = int(m.sensor_adr[sensor])
    return Channel(name, "sensordata", tuple(range(first, first + int(m.sensor_dim[sensor]))), False)
  if not isinstance(getattr(d, name, None), jax.Array):
    known = [mjx.id2name(m, mjx.ObjType.SENSOR, i) or "unnamed" for i in range(m.nsensor)]
    raise ValueError(f"measured[{name!r}] is neither a sensor of the model ({', '.join(known)}) nor a field of Data.")
  turns = name == "qpos" and m.nq != m.nv
  return Channel(name, name, tuple(range(m.nv if turns else getattr(d, name).size)), turns)


def residual(p: Structure, z: jax.Array, t: Tables) -> jax.Array:
  """All residuals in units of their noise: measurements, jumps between segments, prior of the starts."""
  theta, delta = unknowns(p, z, t)
  misses, end = _segments(p, theta, delta, t)
  return jnp.concatenate([misses.ravel(), _jumps(p, end, delta, t).ravel(), _priors(p, delta, t)])


class Pushed(NamedTuple):
  """What some segments do, and its derivatives along the n = P + nx unknowns that they depend on."""

  misses: jax.Array  # (S, M)
  slope: jax.Array  # (S, M, n)
  end: dict[str, jax.Array]  # states at the end: (S, nq), ...; nothing where none is continued
  end_slope: dict[str, jax.Array]  # (n, S, nq), ...


def pushed(p: Structure, theta: jax.Array, delta: jax.Array, t: Tables) -> Pushed:
  """Segments with their tangents: forward mode, primal values once, tangent columns side by side.

  Args:
    p: structure.
    theta: (P,) parameters.
    delta: (S, nx) differences of the starts.
    t: tables of these segments, which may be some of all.
  """
  count, (S, nx) = theta.shape[0], delta.shape
  own = nx if p.starts else 0
  n = count + own
  of_theta = np.eye(n, count, dtype=theta.dtype) * t.scale
  of_delta = np.broadcast_to(np.eye(n, nx, -count, dtype=theta.dtype)[:, None], (n, S, nx)) * t.spread

  # tangents of the state from the first step on: a loop that finds them only in its body is traced a second time
  first = {**t.start, "qacc_warmstart": jnp.broadcast_to(t.d.qacc_warmstart, (S, t.m.nv))}
  still = {k: jnp.zeros((n, *x.shape), x.dtype) for k, x in first.items()}

  def push(columns):
    return jax.jvp(lambda a, b, c: _segments(p, a, b, t._replace(start=c)), (theta, delta, first), columns)

  (misses, end), (slope, end_slope) = jax.vmap(push, out_axes=(None, 0))((of_theta, of_delta, still))
  slope = jnp.moveaxis(slope, 0, -1)
  return Pushed(misses, slope, end, end_slope) if p.link else Pushed(misses, slope, {}, {})


def assembled(p: Structure, z: jax.Array, found: Pushed, t: Tables) -> tuple[jax.Array, jax.Array]:
  """The residuals and their Jacobian, of all segments' parts."""
  theta, delta = unknowns(p, z, t)
  count, (S, nx) = theta.shape[0], delta.shape
  r, J = [found.misses.ravel()], [_spread_out(found.slope, count, S)]
  if p.link:
    along = jax.vmap(lambda e: jax.jvp(lambda x: _jumps(p, x, delta, t), (found.end,), (e,)), out_axes=(None, 0))
    gap, of_end = along(found.end_slope)  # (L, nx), (n, L, nx)
    of_delta = jnp.broadcast_to(jnp.diag(t.spread)[:, None], (nx, S, nx))
    here = jax.vmap(lambda e: jax.jvp(lambda x: _jumps(p, found.end, x, t), (delta,), (e,))[1])(of_delta)
    link = np.array(p.link)
    block = _spread_out(jnp.moveaxis(of_end, 0, -1), count, S, link)
    next_start = jnp.zeros((len(link), nx, S, nx), z.dtype).at[np.arange(len(link)), :, link + 1].set(jnp.moveaxis(here, 0, -1))
    r.append(gap.ravel())
    J.append(block.at[:, count:].add(next_start.reshape(len(link) * nx, S * nx)))
  if p.starts:
    r.append(_priors(p, delta, t))
    J.append(jnp.concatenate([jnp.zeros((S * nx, count), z.dtype), jnp.diag((t.prior * t.spread).ravel())], axis=1))
  return jnp.concatenate(r), jnp.concatenate(J)


def _spread_out(slope, count, S, which=None):
  """Rows of segments `which`, (L, M, count + nx), as a matrix whose columns are those of all segments' starts; None: of all."""
  L, M, n = slope.shape
  which = np.arange(S) if which is None else which
  shared = slope[..., :count].reshape(L * M, count)
  if n == count:
    return shared
  own = jnp.zeros((L, M, S, n - count), slope.dtype).at[np.arange(L), :, which].set(slope[..., count:])
  return jnp.concatenate([shared, own.reshape(L * M, S * (n - count))], axis=1)


def unknowns(p: Structure, z: jax.Array, t: Tables) -> tuple[jax.Array, jax.Array]:
  """Parameters (P,) and the starts' differences (S, nx) in their own units."""
  count, nx = sum(p.sizes), t.spread.shape[0]
  theta = z[:count] * t.scale
  if not p.starts:
    return theta, jnp.zeros((p.segments, nx), z.dtype)
  return theta, z[count:].reshape(p.segments, nx) * t.spread


def _segments(p, theta, delta, t):
  """Weighted misses (S, M) and the states at the end of the segments."""
  m = apply(t.m, p.params, theta)
  start = _started(p, t.m, delta, t)
  fields = tuple(dict.fromkeys((*(c.field for c in p.channels), "qpos", "qvel")))

  def one(s, ctrl):
    end, seen = mjx.rollout(m, t.d.replace(**s), ctrl, record=fields, checkpoint=None)
    return {k: getattr(end, k) for k in STATE}, seen

  end, seen = jax.vmap(one)(start, t.ctrl)
  misses = []
  for c in p.channels:
    x, y = seen[c.field], t.measured[c.name]
    if c.tangent:
      miss = jax.vmap(jax.vmap(lambda a, b: mjx.differentiate_pos(m, 1, a, b)))(y, x)
    else:
      miss = x.reshape(*x.shape[:2], -1)[..., np.array(c.columns)] - y
    misses.append((miss * t.weight[c.name]).reshape(len(t.ctrl), -1))
  return jnp.concatenate(misses, axis=1), end


def _started(p, m, delta, t):
  """States at the starts."""
  if not p.starts:
    return t.start
  nv = m.nv
  turn = jax.vmap(lambda q, x: mjx.integrate_pos(m, q, x, 1))
  return dict(
    t.start, qpos=turn(t.start["qpos"], delta[:, :nv]), qvel=t.start["qvel"] + delta[:, nv : 2 * nv],
    act=t.start["act"] + delta[:, 2 * nv :],
  )  # fmt: skip


def _jumps(p, end, delta, t):
  """What a segment's end lacks to the next one's start (L, nx), weighted."""
  if not p.link:
    return jnp.zeros((0, delta.shape[1]), delta.dtype)
  link = np.array(p.link)
  start = _started(p, t.m, delta, t)
  away = jax.vmap(lambda a, b: mjx.differentiate_pos(t.m, 1, a, b))(end["qpos"][link], start["qpos"][link + 1])
  rest = [start[k][link + 1] - end[k][link] for k in ("qvel", "act")]
  return jnp.concatenate([away, *rest], axis=1) * t.join


def _priors(p, delta, t):
  """The starts' differences in units of what is allowed."""
  return (delta * t.prior).ravel() if p.starts else jnp.zeros(0, delta.dtype)


def misses(p: Structure, steps: int, r: np.ndarray, sigma: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
  """What the model does less what was measured (S, K, n) by channel, in its own units; zero where nothing was."""
  widths = [steps * len(c.columns) for c in p.channels]
  parts = np.split(r[: p.segments * sum(widths)].reshape(p.segments, -1), np.cumsum(widths)[:-1], axis=1)
  return {c.name: x.reshape(p.segments, steps, -1) * sigma[c.name] for c, x in zip(p.channels, parts, strict=True)}
