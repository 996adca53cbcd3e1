"""Split trajectories into segments of equal length.

Tests: tests/sysid/test_fit.py.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np

import mjx_lite as mjx
from mjx_lite.sysid.problem import Channel, Trajectory


class Segments(NamedTuple):
  """S segments of K steps, in order of time within each trajectory; the last segment of a trajectory may be padded."""

  start: dict[str, np.ndarray]  # initial guesses of the start states: qpos (S, nq), qvel (S, nv), act (S, na), time (S,)
  ctrl: np.ndarray  # (S, K, nu)
  measured: dict[str, np.ndarray]  # (S, K, n) finite
  mask: dict[str, np.ndarray]  # (S, K, n) whether the number was measured; n = nv for qpos with rotations
  first: np.ndarray  # ids of the segments at which a trajectory starts
  link: tuple[int, ...]  # ids of the segments that the next segment continues
  rows: tuple[tuple[int, int], ...]  # trajectory and first step of each segment
  length: tuple[int, ...]  # number of steps of each trajectory


def split(
  m: mjx.Model, d: mjx.Data, trajectories: Sequence[Trajectory], channels: Sequence[Channel], segment: int | None
) -> Segments:
  """Split trajectories into segments; check the shapes of the trajectories."""
  for i, t in enumerate(trajectories):
    _check(m, i, t, channels)
  if segment is not None and segment < 1:
    raise ValueError(f"segment={segment} is not possible: the number of steps of a segment must be at least 1.")
  longest = max(len(t.ctrl) for t in trajectories)
  length = min(segment or longest, longest)
  if length < longest and (m.nhistory or m.nplastic):
    raise ValueError(
      "segment= is not possible for a model with delays or plastic joints: the state must consist of qpos, qvel and act alone. "
      "Use segment=None."
    )
  rows = [(i, a) for i, t in enumerate(trajectories) for a in range(0, len(t.ctrl), length)]
  first = np.array([j for j, (_, a) in enumerate(rows) if a == 0])
  link = tuple(j - 1 for j, (_, a) in enumerate(rows) if a)

  def fill(x, a, width):
    values = np.asarray(x, float)[a : a + length]
    out = np.full((length, width), np.nan)
    out[: len(values)] = values.reshape(len(values), width)
    return out

  ctrl = np.stack([np.nan_to_num(fill(trajectories[i].ctrl, a, m.nu)) for i, a in rows])
  measured, mask = {}, {}
  for c in channels:
    width = m.nq if c.tangent else len(c.columns)
    missing = np.full((longest, width), np.nan)
    x = np.stack([fill(trajectories[i].measured.get(c.name, missing), a, width) for i, a in rows])
    mask[c.name] = _by_dof(m, np.isfinite(x)) if c.tangent else np.isfinite(x)
    measured[c.name] = np.where(np.isfinite(x), x, np.asarray(m.qpos0) if c.tangent else 0)
  lengths = tuple(len(t.ctrl) for t in trajectories)
  return Segments(
    start=_start_states(m, d, trajectories, rows),
    ctrl=ctrl,
    measured=measured,
    mask=mask,
    first=first,
    link=link,
    rows=tuple(rows),
    length=lengths,
  )


def _check(m, i, t, channels):
  """Raise ValueError for arrays of the wrong shape."""
  ctrl = np.shape(t.ctrl)
  if len(ctrl) != 2 or ctrl[1] != m.nu or not ctrl[0]:
    raise ValueError(f"ctrl of trajectory {i} has shape {ctrl}; the required shape is (steps, {m.nu}).")
  for c in channels:
    width, shape = m.nq if c.tangent else len(c.columns), np.shape(t.measured.get(c.name, ()))
    if c.name in t.measured and (shape[:1] != ctrl[:1] or int(np.prod(shape[1:])) != width):
      raise ValueError(f"measured[{c.name!r}] of trajectory {i} has shape {shape}; the required shape is {(ctrl[0], width)}.")


def _by_dof(m, finite):
  """Return for each degree of freedom (..., nv) whether all its coordinates in `finite` (..., nq) are measured."""
  out = np.zeros((*finite.shape[:-1], m.nv), bool)
  ends = [*m.jnt_qposadr[1:], m.nq], [*m.jnt_dofadr[1:], m.nv]
  for kind, q, v, q1, v1 in zip(m.jnt_type, m.jnt_qposadr, m.jnt_dofadr, *ends, strict=True):
    free = kind == mjx.JointType.FREE
    if free:
      out[..., v : v + 3] = finite[..., q : q + 3]
    skip = 3 if free else 0
    out[..., v + skip : v1] = finite[..., q + skip : q1].all(axis=-1, keepdims=True)
  return out


def _start_states(m, d, trajectories, rows):
  """Return the states at the starts of segments: given, measured, or simulated with the initial model."""
  paths = [_path(m, d, t, any(i == j and a for j, a in rows)) for i, t in enumerate(trajectories)]
  h = float(m.opt.timestep)
  out = {k: np.stack([paths[i][k][a] for i, a in rows]) for k in ("qpos", "qvel", "act")}
  return {**out, "time": np.array([a * h for _, a in rows])}


def _path(m, d, t, segmented):
  """Guess the states (T, ...) before every step; the first state is given."""
  given = dict(qpos=t.qpos, qvel=t.qvel, act=t.act)
  start = {k: np.asarray(getattr(d, k) if x is None else x, float) for k, x in given.items()}
  if not segmented:
    return {k: x[None] for k, x in start.items()}
  state = d.replace(**{k: jax.numpy.asarray(x, d.qpos.dtype) for k, x in start.items()})
  measured = {k: np.asarray(x, float).reshape(len(t.ctrl), -1) for k, x in t.measured.items() if k in start}
  complete = {k: x for k, x in measured.items() if np.isfinite(x).all()}
  if "qpos" in complete and "qvel" not in complete:
    before = np.concatenate([start["qpos"][None], complete["qpos"][:-1]])
    velocity = jax.vmap(lambda a, b: mjx.differentiate_pos(m, m.opt.timestep, a, b))
    complete["qvel"] = np.asarray(velocity(before, complete["qpos"]))
  if set(complete) < {"qpos", "qvel"} or (m.na and "act" not in complete):
    _, simulated = mjx.jit(lambda m, d, u: mjx.rollout(m, d, u, record=("qpos", "qvel", "act")))(
      m, state, jax.numpy.asarray(t.ctrl, d.qpos.dtype)
    )
    complete = {**{k: np.asarray(x) for k, x in simulated.items()}, **complete}
  complete.setdefault("act", np.zeros((len(t.ctrl), m.na)))
  return {k: np.concatenate([start[k][None], complete[k][:-1]]) for k in start}
