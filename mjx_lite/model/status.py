"""Run-time trouble of a world as data: one bit and one counter per kind.

Traced values never raise exceptions. A stage that fails in a world sets the bit of that world instead.
"""

import enum
import functools

import jax
import jax.numpy as jnp
import numpy as np

from mjx_lite.model import describe
from mjx_lite.model.pytree import Replaceable, array, pytree


class Warning(enum.IntEnum):
  """Kinds of trouble. A kind is bit `1 << kind` of `Status.bits` and entry `kind` of `Status.count`."""

  CONTACTFULL = 0  # more contacts than slots
  CNSTRFULL = 1  # more constraint rows than slots
  BADQPOS = 2  # NaN, inf or |x| > 1e10 in qpos: world was reset
  BADQVEL = 3  # the same for qvel
  BADQACC = 4  # the same for qacc
  BADCTRL = 5  # the same for ctrl: all controls of the world were set to zero
  SOLVER = 6  # the solver reached its iteration limit before the tolerance
  RESET = 7  # the world was reset to qpos0
  PAIRFULL = 8  # more candidate pairs in range than the narrow phase accepts
  SUBSTEPS = 9  # an adaptive step reached its limit of substeps: the last substep was too long
  CCD = 10  # the search for a convex contact reached its limit: the distance may be off by more than `collision.shortest.DOUBT`


@pytree
class Status(Replaceable):
  """Trouble of one world since its Data was made or reset."""

  def __repr__(self) -> str:
    return describe.parts(self)

  bits: jax.Array = array(dtype="int")  # of the last step
  count: jax.Array = array(len(Warning), dtype="int")  # since the last reset by the user
  # the largest numbers in a step: of contacts, and of pairs within reach for each group in `Model.capacity.pair_max`; empty
  # without capacities, which suffice if they are as large
  most: jax.Array = array("nlimit", dtype="int")


def clear_bits(status: Status) -> Status:
  """Clear the bits of the last step, and keep the counters."""
  return status.replace(bits=jnp.zeros_like(status.bits))


def mark(status: Status, kind: Warning, where: jax.Array) -> Status:
  """Mark the worlds in which the mask `where` (W,) is true."""
  one_hot = (np.arange(len(Warning)) == kind).astype(status.count.dtype)[:, None]
  return status.replace(
    bits=status.bits | jnp.where(where, 1 << int(kind), 0).astype(status.bits.dtype),
    count=status.count + one_hot * where.astype(status.count.dtype),
  )


def mark_found(status: Status, found: jax.Array, limits: tuple[int, ...]) -> Status:
  """Record the numbers of contacts and of pairs within reach, and mark the worlds in which pairs do not fit.

  Args:
    status: the status before.
    found: (nlimit, W) as in `Status.most`.
    limits: (nlimit,) numbers that fit.
  """
  pairs = [x > limit for x, limit in list(zip(found, limits, strict=True))[1:]]
  if pairs:
    status = mark(status, Warning.PAIRFULL, functools.reduce(jnp.logical_or, pairs))
  return status.replace(most=jnp.maximum(status.most, found))


def merge(before: Status, after: Status) -> Status:
  """Merge the status of a step in parts: the bits of both, and the counters of `before`.

  A kind that is new in `after` is counted once.
  """
  bits = before.bits | after.bits
  new = ((bits & ~before.bits) >> jnp.arange(len(Warning))[:, None]) & 1
  return after.replace(bits=bits, count=before.count + new.astype(before.count.dtype))
