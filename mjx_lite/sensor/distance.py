"""Sensors of distances between geoms, or between all geoms of two bodies.

Tests: tests/sensor/test_sensors.py.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from mjx_lite.collision.query import distance
from mjx_lite.math import safe
from mjx_lite.model.enums import ObjType
from mjx_lite.model.types import Data, Model
from mjx_lite.ops.select import rows
from mjx_lite.sensor.group import Marked, Part


class DistanceTables(NamedTuple):
  """Pairs of geoms of all sensors."""

  ids: np.ndarray  # sensors (n,)
  sensor: np.ndarray  # (npair,) sensor of each pair
  geom1: np.ndarray  # (npair,)
  geom2: np.ndarray  # (npair,)
  pair: np.ndarray  # (n, k) pairs of each sensor in C's order, padded with the last pair; -1 for a sensor without pairs


def plan(s: dict[str, Any], ids: np.ndarray) -> list[Part]:
  """Pair every geom of the first object with every geom of the second; a sensor of a body without geoms has no pair."""
  lists = []
  for i in ids:
    sides = []
    for kind, obj in (("sensor_objtype", "sensor_objid"), ("sensor_reftype", "sensor_refid")):
      is_body, x = s[kind][i] == ObjType.BODY, s[obj][i]
      sides.append(s["body_geomadr"][x] + np.arange(s["body_geomnum"][x]) if is_body else np.array([x]))
    lists.append([(int(a), int(b)) for a in sides[0] for b in sides[1]])
  count = np.array([len(x) for x in lists])
  first, k = np.cumsum(count) - count, np.arange(count.max(initial=0))
  pair = np.where(k < count[:, None], first[:, None] + np.minimum(k, count[:, None] - 1), -1)
  geom1, geom2 = np.array([p for x in lists for p in x], int).reshape(-1, 2).T
  return [Part(ids, DistanceTables(ids, np.repeat(ids, count), geom1, geom2, pair))]


def _nearest(m: Model, d: Data, t: DistanceTables) -> distance.Distance:
  """Return the least distance (n, W) over each sensor's pairs and its segment (n, 6, W); cutoff and zero beyond the cutoff."""
  limit = rows(m.sensor_cutoff, t.ids)
  if not t.pair.size:
    return distance.Distance(limit, jnp.zeros((len(t.ids), 6, 1), limit.dtype), jnp.zeros(1, bool))
  found = distance.distances(m, d.geom_xpos, d.geom_xmat, rows(m.sensor_cutoff, t.sensor), t.geom1, t.geom2)
  exists = (t.pair >= 0)[..., None]
  dist, fromto = rows(found.dist, np.maximum(t.pair, 0)), rows(found.fromto, np.maximum(t.pair, 0))
  dist = jnp.where(exists, dist, limit[:, None])
  best = jnp.argmin(dist, axis=1)[:, None]
  segment = jnp.take_along_axis(jnp.where(exists[:, :, None], fromto, 0), best[:, :, None], axis=1)[:, 0]
  return distance.Distance(jnp.take_along_axis(dist, best, axis=1)[:, 0], segment, found.lost)


def dist(m: Model, d: Data, t: DistanceTables) -> Marked:
  """Return the distance between the surfaces, at most the cutoff [m].

  Source: `mj_computeSensorPos`, case mjSENS_GEOMDIST.
  """
  found = _nearest(m, d, t)
  return Marked(found.dist, found.lost)


def normal(m: Model, d: Data, t: DistanceTables) -> Marked:
  """Return the direction from the first surface to the second; zero beyond the cutoff, zero with zero gradient at contact."""
  _, segment, lost = _nearest(m, d, t)
  return Marked(safe.normalize(segment[:, 3:] - segment[:, :3]) * _differs(segment), lost)


def _differs(segment):
  return jnp.any(segment[:, 3:] != segment[:, :3], axis=1, keepdims=True).astype(segment.dtype)


def fromto(m: Model, d: Data, t: DistanceTables) -> Marked:
  """Return the nearest points of the two surfaces [m]; zero beyond the cutoff."""
  found = _nearest(m, d, t)
  return Marked(found.fromto, found.lost)
