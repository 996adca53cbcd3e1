"""What `jax.export` needs to write down functions of Model and Data."""

import pickle
from typing import Any

from jax import export

from mjx_lite.core.status import Status
from mjx_lite.core.types import Contact, Data, Model, Option, Statistic

_done: list[Any] = []


def register() -> None:
  """Make Model, Data and their parts known to the serialisation of exported functions; once is enough."""
  for cls in (Model, Option, Statistic, Data, Contact, Status):
    if cls not in _done:
      _done.append(cls)
      export.register_pytree_node_serialization(
        cls, serialized_name=f"mjx_lite.{cls.__name__}", serialize_auxdata=pickle.dumps, deserialize_auxdata=pickle.loads
      )
