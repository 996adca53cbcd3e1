"""Parameters of a contact from those of its two geoms, or from its explicit pair."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mjx_lite.core.enums import MINMU
from mjx_lite.core.select import join, rows
from mjx_lite.core.types import Model
from mjx_lite.math import safe, vector


class Params(NamedTuple):
  """Contact parameters, one row per pair."""

  margin: jax.Array  # (n, W)
  gap: jax.Array  # (n, W)
  friction: jax.Array  # (n, 5, W)
  solref: jax.Array  # (n, 2, W)
  solreffriction: jax.Array  # (n, 2, W)
  solimp: jax.Array  # (n, 5, W)


def mix(m: Model, geom1: np.ndarray, geom2: np.ndarray, explicit: np.ndarray) -> Params:
  """Contact parameters of candidate pairs.

  The geom of higher priority decides; at equal priority friction is the larger, solver parameters are averaged with the
  weights solmix (direct solref: the smaller). Margins and gaps add up. An explicit pair has its own. With the flag OVERRIDE
  the option's `o_` fields stand for all but the gap.

  Source: `mj_contactParam`, `mj_setContact`.
  Gradient: at equal frictions that of the first geom and the second, half each.
  """
  dynamic, given, order = _both_kinds(explicit)
  mixed, own = _from_geoms(m, geom1[dynamic], geom2[dynamic]), _from_pairs(m, explicit[given])
  out = Params(*(join([a, b], order) for a, b in zip(mixed, own, strict=True)))
  if m.opt.use_override:
    given = (m.opt.o_margin, None, m.opt.o_friction, m.opt.o_solref, m.opt.o_solref, m.opt.o_solimp)
    pairs = zip(out, given, strict=True)
    out = Params(*(x if y is None else jnp.broadcast_to(y, (*x.shape[:-1], y.shape[-1])) for x, y in pairs))
  return out._replace(friction=jnp.maximum(out.friction, MINMU))


def adhesion(m: Model, geom1: np.ndarray, geom2: np.ndarray, explicit: np.ndarray) -> jax.Array:
  """Force (n, W) by which contacts of candidate pairs pull [N]; arguments as of `mix`.

  The sum of both geoms', or that of the geom of higher priority. An explicit pair has its own.

  Source: `mj_contactParam`.
  """
  dynamic, given, order = _both_kinds(explicit)
  first, second = (x[dynamic] for x in (geom1, geom2))
  prior = m.geom_priority[first], m.geom_priority[second]
  counts = (prior[0] >= prior[1]), (prior[1] >= prior[0])
  shares = (rows(m.geom_adhesion, g) * k[:, None] for g, k in zip((first, second), counts, strict=True))
  return join([vector.add(shares), rows(m.pair_adhesion, explicit[given])], order)


def _both_kinds(explicit):
  """Candidates that the filters let through, explicit pairs, and where they are when the latter follow the former."""
  dynamic, given = np.flatnonzero(explicit < 0), np.flatnonzero(explicit >= 0)
  order = np.zeros(len(explicit), int)
  order[np.concatenate([dynamic, given])] = np.arange(len(explicit))
  return dynamic, given, order


def _from_pairs(m, k):
  fields = (m.pair_margin, m.pair_gap, m.pair_friction, m.pair_solref, m.pair_solreffriction, m.pair_solimp)
  return Params(*(rows(x, k) for x in fields))


def _from_geoms(m, g1, g2):
  prio1, prio2 = m.geom_priority[g1], m.geom_priority[g2]
  first, second = ((prio1 > prio2)[:, None, None], (prio1 < prio2)[:, None, None])

  def both(x):
    return rows(x, g1), rows(x, g2)

  def by_priority(x, equal):
    a, b = both(x)
    return jnp.where(first, a, jnp.where(second, b, equal))

  mix1, mix2 = both(m.geom_solmix)
  zero1, zero2 = mix1 < safe.MINVAL, mix2 < safe.MINVAL
  total = jnp.where(zero1 | zero2, 1, mix1 + mix2)
  w = jnp.where(zero1 & zero2, 0.5, jnp.where(zero1, 0, jnp.where(zero2, 1, mix1 / total)))[:, None]

  ref1, ref2 = both(m.geom_solref)
  standard = (ref1[:, :1] > 0) & (ref2[:, :1] > 0)
  solref = by_priority(m.geom_solref, jnp.where(standard, w * ref1 + (1 - w) * ref2, jnp.minimum(ref1, ref2)))
  imp1, imp2 = both(m.geom_solimp)
  solimp = by_priority(m.geom_solimp, w * imp1 + (1 - w) * imp2)
  friction = by_priority(m.geom_friction, jnp.maximum(*both(m.geom_friction)))
  friction = rows(jnp.swapaxes(friction, 0, 1), np.array([0, 0, 1, 2, 2]))
  margin, gap = (vector.add(both(x)) for x in (m.geom_margin, m.geom_gap))
  return Params(margin, gap, jnp.swapaxes(friction, 0, 1), solref, jnp.zeros_like(solref), solimp)
