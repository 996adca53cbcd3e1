"""What went wrong in a world, as data: a bit and a counter per kind.

Exceptions are never raised from traced values; a stage that cannot do what it was asked for marks the world.
"""

import enum

import jax
import jax.numpy as jnp
import numpy as np

from mjx_lite.core import describe
from mjx_lite.core.pytree import Replaceable, array, pytree


class Warning(enum.IntEnum):
  """Kinds of trouble; bit `1 << kind` of `Status.bits` and entry `kind` of `Status.count`."""

  CONTACTFULL = 0  # more contacts than slots
  CNSTRFULL = 1  # more constraint rows than slots
  BADQPOS = 2  # NaN, inf or |x| > 1e10 in qpos: world was reset
  BADQVEL = 3  # the same in qvel
  BADQACC = 4  # the same in qacc
  BADCTRL = 5  # the same in ctrl: all controls of the world were taken as zero
  SOLVER = 6  # the solver stopped at its iteration limit without reaching the tolerance
  RESET = 7  # the world was reset to qpos0
  PAIRFULL = 8  # more candidate pairs within reach than go to the narrow phase
  SUBSTEPS = 9  # an adaptive step needed more substeps than it may take: its last one was too long
  CCD = 10  # the search for a convex contact ended at its limit: its distance is not proved to `collision.shortest.DOUBT`


@pytree
class Status(Replaceable):
  """Trouble of one world since its Data was made or reset."""

  def __repr__(self) -> str:
    return describe.parts(self)

  bits: jax.Array = array(dtype="int")  # of the last step
  count: jax.Array = array(len(Warning), dtype="int")  # since the last reset by the user


def clear_bits(status: Status) -> Status:
  """Forget the last step, keep the counters."""
  return status.replace(bits=jnp.zeros_like(status.bits))


def mark(status: Status, kind: Warning, where: jax.Array) -> Status:
  """Mark the worlds in which `where` (W,) holds."""
  one_hot = (np.arange(len(Warning)) == kind).astype(status.count.dtype)[:, None]
  return Status(
    bits=status.bits | jnp.where(where, 1 << int(kind), 0).astype(status.bits.dtype),
    count=status.count + one_hot * where.astype(status.count.dtype),
  )


def merge(before: Status, after: Status) -> Status:
  """Trouble of a step of several parts, counted once: the bits of both, the counts of before and of what came after."""
  bits = before.bits | after.bits
  new = ((bits & ~before.bits) >> jnp.arange(len(Warning))[:, None]) & 1
  return Status(bits=bits, count=before.count + new.astype(before.count.dtype))
