"""Contact parameters, mixed from those of the two geoms or read from the explicit pair.

Tests: tests/collision/test_contact_rules.py, tests/collision/test_override.py.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mjx_lite.math import safe, vector
from mjx_lite.model.enums import MINMU
from mjx_lite.model.types import Model
from mjx_lite.ops.select import gather, rows


class Params(NamedTuple):
  """Contact parameters, one row per pair."""

  margin: jax.Array  # (n, W)
  gap: jax.Array  # (n, W)
  friction: jax.Array  # (n, 5, W)
  solref: jax.Array  # (n, 2, W)
  solreffriction: jax.Array  # (n, 2, W)
  solimp: jax.Array  # (n, 5, W)


class Pairs(NamedTuple):
  """Pairs of geoms: NumPy arrays (n,) if planned, traced arrays (n, W) if chosen per world at run time."""

  geom1: Any
  geom2: Any
  explicit: Any  # index of the explicit <pair>, -1 otherwise

  @property
  def may_be_explicit(self) -> bool:
    """Whether some pair is explicit, or may be explicit because the pairs are chosen at run time."""
    return not isinstance(self.explicit, np.ndarray) or bool((self.explicit >= 0).any())


def mix(m: Model, pairs: Pairs) -> Params:
  """Mix the contact parameters of pairs.

  The geom of higher priority decides. At equal priority friction is the larger of both, and solver parameters are averaged with
  the weights solmix (direct solref: the smaller of both). Margins and gaps add up. An explicit pair has its own parameters.
  With the flag OVERRIDE the option's `o_` fields replace all parameters except the gap.

  Source: `mj_contactParam`, `mj_setContact`.
  Gradient: at equal frictions half of the gradient goes to each geom.
  """
  own = m.pair_margin, m.pair_gap, m.pair_friction, m.pair_solref, m.pair_solreffriction, m.pair_solimp
  out = Params(*(_or_own(x, y, pairs) for x, y in zip(_from_geoms(m, pairs), own, strict=True)))
  if m.opt.use_override:
    given = (m.opt.o_margin, None, m.opt.o_friction, m.opt.o_solref, m.opt.o_solref, m.opt.o_solimp)
    both = zip(out, given, strict=True)
    out = Params(*(x if y is None else jnp.broadcast_to(y, (*x.shape[:-1], y.shape[-1])) for x, y in both))
  return out._replace(friction=jnp.maximum(out.friction, MINMU))


def reach(m: Model, pairs: Pairs) -> jax.Array:
  """Return margin plus gap (n, W) of pairs, by the rules of `mix` [m]."""
  margin = m.opt.o_margin if m.opt.use_override else m.pair_margin
  return _or_own(vector.add(_both(reach_of_geoms(m), pairs)), margin + m.pair_gap, pairs)


def reach_of_geoms(m: Model) -> jax.Array:
  """Return what each geom (ngeom, W) adds to the `reach` of its pairs that are not explicit [m]."""
  return (m.opt.o_margin / 2 if m.opt.use_override else m.geom_margin) + m.geom_gap


def adhesion(m: Model, pairs: Pairs) -> jax.Array:
  """Return the adhesive force (n, W) of the contacts of pairs [N].

  The force is the sum over both geoms, or that of the geom of higher priority. An explicit pair has its own force.

  Source: `mj_contactParam`.
  """
  first, second = _both(m.geom_priority[:, None], pairs)
  one, two = _both(m.geom_adhesion, pairs)
  return _or_own(one * (first >= second) + two * (second >= first), m.pair_adhesion, pairs)


def _both(x, pairs):
  """Return the rows of the first geoms and those of the second geoms."""
  return _rows(x, pairs.geom1), _rows(x, pairs.geom2)


def _rows(x, index) -> Any:
  if isinstance(index, np.ndarray):
    return x[index] if isinstance(x, np.ndarray) else rows(x, index)
  return gather(x, index)


def _or_own(x, own, pairs):
  """Return x, with the values of explicit pairs replaced by the pairs' own values."""
  if not pairs.may_be_explicit:
    return x
  theirs = _rows(own, pairs.explicit * (pairs.explicit >= 0))
  here = pairs.explicit >= 0
  here = here.reshape(len(x), *(1,) * (x.ndim - 2), -1)
  return jnp.where(here, theirs, x)


def _from_geoms(m, pairs):
  prio1, prio2 = (x[:, None] for x in _both(m.geom_priority[:, None], pairs))
  alike = (m.geom_priority == m.geom_priority[:1]).all()

  def both(x):
    return _both(x, pairs)

  def by_priority(x, equal):
    a, b = both(x)
    return equal if alike else jnp.where(prio1 > prio2, a, jnp.where(prio1 < prio2, b, equal))

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
  slide, spin, roll = jnp.split(friction, 3, axis=1)
  friction = jnp.concatenate([slide, slide, spin, roll, roll], axis=1)
  margin, gap = (vector.add(both(x)) for x in (m.geom_margin, m.geom_gap))
  return Params(margin=margin, gap=gap, friction=friction, solref=solref, solreffriction=jnp.zeros_like(solref), solimp=solimp)
