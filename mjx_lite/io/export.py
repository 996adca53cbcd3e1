"""Registration of Model and Data with `jax.export`, which needs it to serialise functions of these classes.

Tests: tests/io/test_readout.py.
"""

import pickle
from typing import Any

from jax import export

from mjx_lite.model.status import Status
from mjx_lite.model.types import Contact, Data, Model, Option, Statistic

_done: list[Any] = []


def register() -> None:
  """Register Model, Data and their parts for the serialisation of exported functions; a second call has no effect."""
  for cls in (Model, Option, Statistic, Data, Contact, Status):
    if cls not in _done:
      _done.append(cls)
      export.register_pytree_node_serialization(
        cls, serialized_name=f"mjx_lite.{cls.__name__}", serialize_auxdata=pickle.dumps, deserialize_auxdata=pickle.loads
      )
