"""A group of sensors that are computed together, and how sensors are put into groups."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np


class Part(NamedTuple):
  """Sensors that one call computes."""

  who: np.ndarray  # sensors
  tables: Any  # what the function needs


class Marked(NamedTuple):
  """Values of sensors, and the worlds (W,) in which the search for one ended at its limit; None if nothing was searched."""

  values: jax.Array
  lost: jax.Array | None


class Sensor(NamedTuple):
  """A type of sensor: an entry of the table.

  `plan(s, who)` cuts the sensors of the type into parts; `run(m, d, tables)` gives the values of one part, (numbers, W) or
  (sensors, numbers, W), `Marked` where they are the result of a search.
  """

  plan: Callable[[dict[str, Any], np.ndarray], list[Part]]
  run: Callable[[Any, Any, Any], jax.Array | Marked]


def split(who: np.ndarray, *keys: np.ndarray) -> list[tuple[tuple[int, ...], np.ndarray]]:
  """Sensors by distinct values of their keys."""
  label = [tuple(int(k[i]) for k in keys) for i in range(len(who))]
  return [(x, who[[y == x for y in label]]) for x in sorted(set(label))]


def spread(s: dict[str, Any], who: np.ndarray) -> np.ndarray:
  """Places in sensordata of all numbers of some sensors."""
  adr, dim = s["sensor_adr"][who], s["sensor_dim"][who]
  return np.concatenate([np.zeros(0, int), *(a + np.arange(n) for a, n in zip(adr, dim, strict=True))]).astype(int)
