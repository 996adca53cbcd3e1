"""Bodies on which the contact slots act: constants of the model, or chosen at run time for each world.

A side is a body on which a slot acts. Two bodies of one tree may share a side, as their spatial velocities are about the same
point.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mjx_lite.math.groups import scatter_add
from mjx_lite.math.tree import SumPlan, mask_sum, plan_sum
from mjx_lite.model import topology
from mjx_lite.ops import linear
from mjx_lite.ops.select import gather, rows

_BITS = 31  # dofs in one integer


class FixedSides(NamedTuple):
  """Sides of slots whose geoms are constant; the argument `body` is not used.

  A slot has one side, or two where its bodies belong to different trees.
  """

  slot: np.ndarray  # (nside,)
  root: np.ndarray  # (nside,) root body of the side's tree
  one_sided: bool  # every slot has exactly one side
  slot_side: SumPlan  # slot <- sides
  side_dof: SumPlan  # side <- signed dofs
  body_side: SumPlan  # body <- signed sides; bodies without dofs have none
  body_dof: SumPlan | None  # body <- dofs; None unless there are fewer bodies than different sides

  def at_root(self, x: jax.Array, body: Any) -> jax.Array:
    """Return x (nbody, ...) at the root of each side's tree: (nside, ...)."""
    return rows(x, self.root)

  def from_dofs(self, x: jax.Array, y: jax.Array, body: Any) -> jax.Array:
    """Sum x * y over the dofs that move each side: (nside, ...). `relative` converts the sum to slots."""
    if self.body_dof is None:
      return mask_sum(self.side_dof, x, y)
    return mask_sum(self.body_side.transpose, mask_sum(self.body_dof, x, y))

  def to_dofs(self, x: jax.Array, body: Any) -> jax.Array:
    """Apply the transpose of `from_dofs`."""
    if self.body_dof is None:
      return mask_sum(self.side_dof.transpose, x)
    return mask_sum(self.body_dof.transpose, mask_sum(self.body_side, x))

  def to_slots(self, x: jax.Array) -> jax.Array:
    """Sum the sides of each slot: (ncon, ...)."""
    return x if self.one_sided else mask_sum(self.slot_side, x)

  def relative(self, x: jax.Array) -> jax.Array:
    """Return the relative value per slot (ncon, ...), second body minus first, from sides that already have signs."""
    return self.to_slots(x)

  def from_slots(self, x: jax.Array) -> jax.Array:
    """Apply the transpose of `relative`."""
    return rows(x, self.slot)

  def moves(self, body: Any, dtype: Any, selected: jax.Array | slice = slice(None)) -> jax.Array | np.ndarray:
    """Return the signs (nside, nv, 1) of the dofs that move each side; `selected` selects sides."""
    moves = self.side_dof.matrix[:, :, None].astype(dtype)
    return moves[selected] if isinstance(selected, slice) else jnp.asarray(moves).at[selected].get(mode="promise_in_bounds")

  def add_to(self, sums: jax.Array, x: jax.Array, body_row: np.ndarray, body: Any) -> jax.Array:
    """Add the sides (nside, ...), without signs, to sums (n, ...).

    `body_row` (nbody,) is the row of each body in `sums`; the sides on a body with -1 are dropped.
    """
    matrix, unsigned = np.zeros((len(sums), len(self.slot))), np.abs(self.body_side.matrix)
    np.add.at(matrix, body_row[body_row >= 0], unsigned[body_row >= 0])
    return sums + mask_sum(plan_sum(matrix), x)


class ChosenSides(NamedTuple):
  """Sides of slots whose geoms are chosen at run time.

  Every slot has two sides: first all first bodies, then all second bodies. `body` (2 ncon, W) holds these bodies.
  """

  slot: np.ndarray  # (2 ncon,)
  sign: np.ndarray  # (2 ncon,) -1 on the first bodies, 1 on the second
  root: np.ndarray  # (nbody,)
  moved: np.ndarray  # (nbody, nv) whether a dof moves a body
  body_dof: SumPlan  # body <- dofs
  dof_body: SumPlan  # its transpose

  @property
  def tree(self) -> np.ndarray:
    """The tree (nv,) of each dof: trees are numbered in the order of their roots."""
    body = np.argmax(self.moved, axis=0)  # the first body that a dof moves
    return np.unique(self.root[body], return_inverse=True)[1]

  def is_of_tree(self, body: jax.Array, tree: int) -> jax.Array:
    """Return whether bodies (W,) are moved by dofs of a tree."""
    is_member = self.moved[:, self.tree == tree].any(axis=1)
    return gather(jnp.asarray(is_member)[:, None], body[None])[0]

  def signs(self, body1: jax.Array, body2: jax.Array, dtype: Any) -> list[jax.Array]:
    """Return for each dof 1 if it moves the second bodies (W,) alone, -1 if it moves the first bodies alone, else 0."""
    moved = np.pad(self.moved > 0, ((0, 0), (0, -self.moved.shape[1] % _BITS))).reshape(len(self.moved), -1, _BITS)
    bits = jnp.asarray((moved << np.arange(_BITS)).sum(axis=2).astype(np.int32)[..., None])
    one, two = (gather(bits, x[None])[0] for x in (body1, body2))
    found = []
    for i in range(self.moved.shape[1]):
      first, second = (x[i // _BITS] & np.int32(1 << i % _BITS) for x in (one & ~two, two & ~one))
      found.append(jnp.where(second != 0, 1, jnp.where(first != 0, -1, 0)).astype(dtype))
    return found

  def at_root(self, x: jax.Array, body: jax.Array) -> jax.Array:
    """Return x (nbody, ...) at the root of each side's tree: (nside, ...)."""
    return gather(rows(x, self.root), body)

  def from_dofs(self, x: jax.Array, y: jax.Array, body: jax.Array) -> jax.Array:
    """Sum x * y over the dofs that move each side: (nside, ...). `relative` converts the sum to slots."""
    return gather(self.motion(x, y), body)

  def motion(self, x: jax.Array, y: jax.Array) -> jax.Array:
    """Sum x * y over the dofs that move each body: (nbody, ...)."""
    return linear.materialize(mask_sum(self.body_dof, x, y))

  def to_dofs(self, x: jax.Array, body: jax.Array) -> jax.Array:
    """Apply the transpose of `from_dofs`."""
    return mask_sum(self.dof_body, self.to_bodies(x, body))

  def relative(self, x: jax.Array) -> jax.Array:
    """Return the relative value per slot (ncon, ...): second body minus first."""
    n = len(self.slot) // 2
    return x[n:] - x[:n]

  def from_slots(self, x: jax.Array) -> jax.Array:
    """Apply the transpose of `relative`."""
    return jnp.concatenate([-x, x])

  def to_slots(self, x: jax.Array) -> jax.Array:
    """Sum the two sides of each slot: (ncon, ...)."""
    n = len(self.slot) // 2
    return x[:n] + x[n:]

  def moves(self, body: Any, dtype: Any, selected: jax.Array | slice = slice(None)) -> jax.Array:
    """Return the signs (nside, nv, W) of the dofs that move each side; `selected` selects sides."""
    moves = gather(jnp.asarray(self.moved, dtype)[..., None], body[selected])
    return moves * jnp.asarray(self.sign, dtype)[selected].reshape(-1, *(1,) * (moves.ndim - 1))

  def are_moving(self, body: Any, dtype: Any) -> jax.Array:
    """Return 1 for sides (nside, W) that some dof moves, 0 for sides on the static world."""
    return gather(np.any(self.moved, axis=1).astype(dtype)[:, None], body)

  def to_bodies(self, x: jax.Array, body: jax.Array) -> jax.Array:
    """Sum the sides on each body, without signs: (nbody, ...)."""
    return scatter_add(jnp.zeros((len(self.root), *x.shape[1:]), x.dtype), x, body)

  def add_to(self, sums: jax.Array, x: jax.Array, body_row: np.ndarray, body: jax.Array) -> jax.Array:
    """Add the sides (nside, ...), without signs, to sums (n, ...).

    `body_row` (nbody,) is the row of each body in `sums`; the sides on a body with -1 are dropped.
    """
    return scatter_add(sums, x, gather(body_row.astype(np.int32)[:, None], body))


def plan_fixed(s: dict[str, Any], slot_body: np.ndarray) -> FixedSides:
  """Build the sides of slots on constant bodies (ncon, 2)."""
  ncon, nbody, moves = len(slot_body), s["nbody"], topology.moving_dofs(s).astype(float)
  sides: list[tuple[int, int, np.ndarray, list[tuple[int, int]]]] = []
  for c, (b1, b2) in enumerate(slot_body):
    moving = [(b, sign) for b, sign in ((int(b1), -1), (int(b2), 1)) if moves[b].any()]
    for root in sorted({int(s["body_rootid"][b]) for b, _ in moving}):
      members = [(b, sign) for b, sign in moving if s["body_rootid"][b] == root]
      sides.append((c, root, np.sum([sign * moves[b] for b, sign in members], axis=0), members))
  slot, root = (np.array([x[k] for x in sides], int) for k in (0, 1))
  slot_side, body_side = np.zeros((ncon, len(sides))), np.zeros((nbody, len(sides)))
  slot_side[slot, np.arange(len(sides))] = 1
  for i, (_, _, _, members) in enumerate(sides):
    for b, sign in members:
      body_side[b, i] += sign
  side_dof = np.array([x[2] for x in sides]).reshape(len(sides), s["nv"])
  one_sided = len(sides) == ncon and np.array_equal(slot, np.arange(ncon))
  body_dof = plan_sum(moves) if nbody < len(np.unique(side_dof, axis=0)) else None
  return FixedSides(
    slot=slot,
    root=root,
    one_sided=one_sided,
    slot_side=plan_sum(slot_side),
    side_dof=plan_sum(side_dof),
    body_side=plan_sum(body_side),
    body_dof=body_dof,
  )


def plan_chosen(s: dict[str, Any], ncon: int) -> ChosenSides:
  """Build the sides of slots on bodies that are chosen at run time."""
  moves = topology.moving_dofs(s).astype(float)
  body_dof = plan_sum(moves)
  sign, slot = np.repeat([-1, 1], ncon), np.tile(np.arange(ncon), 2)
  return ChosenSides(
    slot=slot, sign=sign, root=np.asarray(s["body_rootid"], int), moved=moves, body_dof=body_dof, dof_body=body_dof.transpose
  )


def count_pairs(s: dict[str, Any], pair_body: np.ndarray) -> int:
  """Count the different pairs of bodies (n, 2), without the pairs of one moving body and the static world."""
  moving = np.any(topology.moving_dofs(s), axis=1)[pair_body]
  return len(np.unique(pair_body[moving.sum(axis=1) != 1], axis=0))


def from_geoms(m: Any, geom: jax.Array) -> jax.Array:
  """Return the bodies (2 ncon, W) of the sides, from the slots' geoms (ncon, 2, W)."""
  return jnp.asarray(m.geom_bodyid.astype(np.int32))[jnp.concatenate([geom[:, 0], geom[:, 1]])]
