"""Groups of sensors that are computed together.

Tests: tests/sensor/test_sensors.py.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np


class Part(NamedTuple):
  """Sensors that one call computes."""

  ids: np.ndarray  # ids of the sensors
  tables: Any  # argument of the function


class Marked(NamedTuple):
  """Values of sensors, and a mask (W,) of the worlds in which a search ended at its limit; None without a search."""

  values: jax.Array
  lost: jax.Array | None


class Sensor(NamedTuple):
  """A type of sensor: an entry of the table.

  `plan(s, ids)` splits the sensors of the type into parts. `run(m, d, tables)` returns the values of one part, (values, W) or
  (sensors, values, W); `Marked` if the values come from a search.
  """

  plan: Callable[[dict[str, Any], np.ndarray], list[Part]]
  run: Callable[[Any, Any, Any], jax.Array | Marked]


def split(ids: np.ndarray, *keys: np.ndarray) -> list[tuple[tuple[int, ...], np.ndarray]]:
  """Group the sensors by distinct values of their keys."""
  label = [tuple(int(k[i]) for k in keys) for i in range(len(ids))]
  return [(x, ids[[y == x for y in label]]) for x in sorted(set(label))]


def spread(s: dict[str, Any], ids: np.ndarray) -> np.ndarray:
  """Return the indices in sensordata of all values of some sensors."""
  adr, dim = s["sensor_adr"][ids], s["sensor_dim"][ids]
  return np.concatenate([np.zeros(0, int), *(a + np.arange(n) for a, n in zip(adr, dim, strict=True))]).astype(int)
