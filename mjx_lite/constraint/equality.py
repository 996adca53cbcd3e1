"""Equality constraints: connect, weld, and couplings of joints or tendons.

All points are computed together, then all rotations, then all couplings. The rows are sorted into the order of the constraints
at the end. Entries of J are computed only for the dofs that can move a row, and they are returned packed.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mjx_lite.constraint.rows import RowParams
from mjx_lite.math import quat, safe, spatial, vector
from mjx_lite.math.tree import SumPlan, mask_sum, plan_sum
from mjx_lite.model import topology
from mjx_lite.model.enums import EqType, ObjType
from mjx_lite.model.types import Model
from mjx_lite.ops.select import assemble_rows, join, rows

EQUALITIES = (EqType.CONNECT, EqType.WELD, EqType.JOINT, EqType.TENDON)


class EqualityPlan(NamedTuple):
  """Index tables. A *point* is the pair of anchors of a connect or weld; a *rotation* is that of a weld."""

  point: np.ndarray  # (npoint,) constraint
  body: np.ndarray  # (2, npoint)
  is_site: np.ndarray  # (npoint,) whether the constraint names sites, not bodies
  site: np.ndarray  # (2, npoint), 0 where the constraint names bodies
  anchor: np.ndarray  # (2, npoint) first column of eq_data's anchor
  entry_point: np.ndarray  # (ne,) point of each entry of J, one for every dof that moves the point
  entry_dof: np.ndarray
  entry_side: np.ndarray  # (2, ne) 1 where the dof moves the first or second body
  rotational: np.ndarray  # (nrotation,) points that are welds
  rotation_entry: np.ndarray  # entries of the welds' points
  scalar: np.ndarray  # (nscalar,) constraint of each coupling
  tendon: np.ndarray  # (nscalar,) whether the objects are tendons, not joints
  obj: np.ndarray  # (2, nscalar) joint or tendon; 0 where there is no second object
  coupled: np.ndarray  # (nscalar,) whether there is a second object
  raw: np.ndarray  # (n, 3) terms of the couplings' J: coupling, object 0 or 1, index into ten_J or -1
  entry_raw: SumPlan  # entry of a coupling <- terms
  order: np.ndarray  # index of each row in the concatenation (points, turns, couplings)
  row_eq: np.ndarray  # (nrow,) constraint of each row
  row_moves: np.ndarray  # (nrow, 1) whether some dof changes the row
  point_row: np.ndarray  # (npoint, 3) rows of each point
  rotation_row: np.ndarray  # (nrotation, 3) rows of each rotation
  scalar_row: np.ndarray  # (nscalar,) row of each coupling
  body_side: SumPlan  # body <- first sides of the points (+), then second sides (-); the world has none
  row_dof_row: np.ndarray  # (nentry,) row of each entry of J, in the order of `entries`
  row_dof_dof: np.ndarray


class Equality(NamedTuple):
  """Result of `rows_equality`."""

  params: RowParams
  entries: jax.Array  # (nentry, W) entries of J


class _CouplingTerms(NamedTuple):
  """Entries of J of the couplings, and the terms that are added to each entry."""

  term: list[tuple[int, int, int]]  # coupling, object 0 or 1, index into ten_J or -1
  entry: list[tuple[int, int]]  # coupling, dof
  entry_term: np.ndarray  # (nentry, nterm) 1 where a term belongs to an entry


class _RowOrder(NamedTuple):
  """Rows in the order of the constraints."""

  order: list[int]  # index of each row in the concatenation (points, turns, couplings)
  row_eq: list[int]  # constraint of each row
  first: dict[Any, int]  # first row of each constraint


def plan(s: dict[str, Any]) -> EqualityPlan:
  """Build the tables of rows and entries from the static fields of the model."""
  kind = s["eq_type"][: s["neq"] * (s["nv"] > 0)]  # C has no rows where nothing moves
  point = np.flatnonzero((kind == EqType.CONNECT) | (kind == EqType.WELD))
  scalar = np.flatnonzero((kind == EqType.JOINT) | (kind == EqType.TENDON))
  is_site = s["eq_objtype"][point] == ObjType.SITE
  obj = np.stack([s["eq_obj1id"], s["eq_obj2id"]]).astype(int)
  site = np.where(is_site, obj[:, point], 0)
  body = np.where(is_site, s["site_bodyid"][site] if s["nsite"] else 0, obj[:, point]).astype(int)
  weld = kind[point] == EqType.WELD
  rotational, tendon = np.flatnonzero(weld), kind[scalar] == EqType.TENDON

  moves = topology.moving_dofs(s)[body]  # (2, npoint, nv)
  entry_point, dof = np.nonzero(moves.any(axis=0))
  rotation_entry = np.flatnonzero(weld[entry_point]) if len(entry_point) else np.zeros(0, int)
  terms = _plan_coupling_terms(s, obj[:, scalar], tendon)
  row_order = _plan_row_order(kind, point, rotational, scalar)
  row, column = _plan_entries(point, scalar, entry_point, dof, rotation_entry, terms, row_order)
  first_row = np.array([row_order.first[e] for e in point], int)[:, None] + np.arange(3)
  return EqualityPlan(
    point=point,
    body=body,
    is_site=is_site,
    site=site,
    anchor=np.where(weld, [[3], [0]], [[0], [3]]),
    entry_point=entry_point,
    entry_dof=dof,
    entry_side=moves[:, entry_point, dof].astype(int),
    rotational=rotational,
    rotation_entry=rotation_entry,
    scalar=scalar,
    tendon=tendon,
    obj=np.maximum(obj[:, scalar], 0),
    coupled=obj[1, scalar] >= 0,
    raw=np.array(terms.term, int).reshape(-1, 3),
    entry_raw=plan_sum(terms.entry_term),
    order=np.array(row_order.order, int),
    row_eq=np.array(row_order.row_eq, int),
    row_moves=np.isin(row_order.row_eq, [*point[entry_point], *(scalar[i] for i, _ in terms.entry)])[:, None],
    point_row=first_row,
    rotation_row=first_row[rotational] + 3,
    scalar_row=np.array([row_order.first[e] for e in scalar], int),
    body_side=plan_sum(_signs_of_sides(s["nbody"], body)),
    row_dof_row=row,
    row_dof_dof=column,
  )


def _plan_coupling_terms(s: dict[str, Any], obj: np.ndarray, tendon: np.ndarray) -> _CouplingTerms:
  """List the terms of the couplings' J: one for a joint, and one for each dof of a tendon.

  Args:
    s: static fields of the model.
    obj: (2, nscalar) joint or tendon, -1 where there is no second object.
    tendon: (nscalar,) whether the objects are tendons.
  """
  term, key = [], []
  for i in range(len(tendon)):
    for side in (0, 1):
      o = obj[side, i]
      if o < 0:
        continue
      if tendon[i]:
        for a in range(s["ten_J_rowadr"][o], s["ten_J_rowadr"][o] + s["ten_J_rownnz"][o]):
          term.append((i, side, a))
          key.append((i, int(s["ten_J_colind"][a])))
      else:
        term.append((i, side, -1))
        key.append((i, int(s["jnt_dofadr"][o])))
  entry = sorted(set(key))
  entry_term = np.zeros((len(entry), len(term)))
  for r, x in enumerate(key):
    entry_term[entry.index(x), r] = 1
  return _CouplingTerms(term, entry, entry_term)


def _plan_row_order(kind: np.ndarray, point: np.ndarray, rotational: np.ndarray, scalar: np.ndarray) -> _RowOrder:
  """Sort the rows of points, turns and couplings into the order of the constraints."""
  npoint, nrotation = len(point), len(rotational)
  rotation_of = {int(p): t for t, p in enumerate(rotational)}
  order, row_eq, first = [], [], {}
  for e in range(len(kind)):
    if kind[e] in (EqType.JOINT, EqType.TENDON):
      own = [3 * npoint + 3 * nrotation + int(np.flatnonzero(scalar == e)[0])]
    else:
      p = int(np.flatnonzero(point == e)[0])
      own = [3 * p + k for k in range(3)]
      own += [3 * npoint + 3 * rotation_of[p] + k for k in range(3)] if p in rotation_of else []
    first[e] = len(order)
    order += own
    row_eq += [e] * len(own)
  return _RowOrder(order, row_eq, first)


def _plan_entries(
  point: np.ndarray,
  scalar: np.ndarray,
  entry_point: np.ndarray,
  dof: np.ndarray,
  rotation_entry: np.ndarray,
  terms: _CouplingTerms,
  row_order: _RowOrder,
) -> tuple[np.ndarray, np.ndarray]:
  """Return row and column (nentry,) of each entry of J: three of each entry of points, three of turns, one of couplings."""
  first = row_order.first
  row = np.concatenate(
    [
      (np.array([first[point[k]] for k in entry_point], int)[:, None] + np.arange(3)).ravel(),
      (np.array([first[point[entry_point[k]]] + 3 for k in rotation_entry], int)[:, None] + np.arange(3)).ravel(),
      np.array([first[scalar[i]] for i, _ in terms.entry], int),
    ]
  ).astype(int)
  column = np.concatenate([np.repeat(dof, 3), np.repeat(dof[rotation_entry], 3), np.array([v for _, v in terms.entry], int)])
  return row, column.astype(int)


def _signs_of_sides(nbody: int, body: np.ndarray) -> np.ndarray:
  """Return the signs (nbody, 2 npoint) of the points' sides on each body (2, npoint); zero on the world."""
  npoint = body.shape[1]
  signed = np.zeros((nbody, 2 * npoint))
  signed[body.ravel(), np.arange(2 * npoint)] = np.repeat([1, -1], npoint)
  signed[0] = 0
  return signed


class State(NamedTuple):
  """Fields of the state on which equality rows depend."""

  qpos: jax.Array
  qvel: jax.Array
  xpos: jax.Array
  xquat: jax.Array
  xmat: jax.Array
  subtree_com: jax.Array
  cdof: jax.Array
  cvel: jax.Array
  cdof_dot: jax.Array
  ten_length: jax.Array
  ten_J: jax.Array
  eq_active: jax.Array


def rows_equality(m: Model, p: EqualityPlan, x: State) -> Equality:
  """Build the rows of all equality constraints.

  Rows of inactive constraints are off, and so are rows that no dof changes.

  Source: `mj_instantiateEquality`, `mj_Jdotv`, `mj_diagApprox`.
  Gradient: exact; the norm of a violation has derivative zero where the violation is zero.
  """
  none = jnp.zeros((0, 1), x.qpos.dtype)
  pos, violation, bias, diag, entries = [none], [none], [none], [none], [none]
  if len(p.point):
    point = _points(m, p, x)
    pos.append(_flat(point.pos))
    bias.append(_flat(point.bias))
    entries.append(_flat(point.entries))
    invweight = rows(m.body_invweight0, p.body[0]) + rows(m.body_invweight0, p.body[1])
    diag.append(_each(invweight[:, 0]))
    rotation = _rotations(m, p, x, point) if len(p.rotational) else None
    pos_points = point.pos
    if rotation is not None:
      pos.append(_flat(rotation.pos))
      bias.append(_flat(rotation.bias))
      entries.append(_flat(rotation.entries))
      diag.append(_each(rows(invweight, p.rotational)[:, 1]))
      # the impedance of a weld depends on all six components
      square = vector.dot(pos_points, pos_points)
      spread = np.full(len(p.point), len(p.rotational))
      spread[p.rotational] = np.arange(len(p.rotational))
      extra = join([vector.dot(rotation.pos, rotation.pos), jnp.zeros((1, 1), square.dtype)], spread)
      norm = safe.sqrt(square + extra)
    else:
      norm = safe.norm(pos_points)
    violation.append(_each(norm))
    if rotation is not None:
      violation.append(_each(rows(norm, p.rotational)))
  if len(p.scalar):
    scalar = _couplings(m, p, x)
    pos.append(scalar.pos)
    violation.append(scalar.pos)
    bias.append(jnp.zeros((len(p.scalar), 1), x.qpos.dtype))
    entries.append(scalar.entries)
    diag.append(scalar.diag)
  pos, violation, bias, diag = (join(part, p.order) for part in (pos, violation, bias, diag))
  zero = jnp.zeros((len(p.order), 1), pos.dtype)
  params = RowParams(
    active=rows(x.eq_active, p.row_eq) & p.row_moves, pos=pos, violation=violation, margin=zero, diag=diag, scale=zero + 1,
    solref=rows(m.eq_solref, p.row_eq), solimp=rows(m.eq_solimp, p.row_eq), frictionloss=zero, bias=bias, stiff=True,
  )  # fmt: skip
  return Equality(params, join(entries))


def _flat(x):
  """Reshape (n, 3, W) to (3 n, W)."""
  return x.reshape(3 * x.shape[0], x.shape[-1])


def _each(x):
  """Repeat each value for its three rows."""
  return jnp.repeat(x, 3, axis=0)


class _Part(NamedTuple):
  pos: jax.Array  # (n, 3, W) violation
  bias: jax.Array  # (n, 3, W) Jdot v
  entries: jax.Array  # (ne, 3, W)


def _points(m, p, x):
  """Compute the difference of the two anchors of each point."""
  anchors, arms, jdotv = [], [], []
  acc = mask_sum(m.plan.com.ancestor_dof, x.cdof_dot, x.qvel[:, None])
  for k in (0, 1):
    body = p.body[k]
    anchor = _anchor(m, p, x, k)
    arm = anchor - rows(x.subtree_com, m.body_rootid[body])
    angular, linear = spatial.split(rows(x.cvel, body))
    angular_acc, linear_acc = spatial.split(rows(acc, body))
    velocity = linear + vector.cross(angular, arm)
    anchors.append(anchor)
    arms.append(arm)
    jdotv.append(linear_acc + vector.cross(angular_acc, arm) + vector.cross(angular, velocity))
  angular, linear = spatial.split(rows(x.cdof, p.entry_dof))
  entries = vector.add(
    sign * side[:, None, None].astype(linear.dtype) * (linear + vector.cross(angular, rows(arm, p.entry_point)))
    for sign, side, arm in zip((1, -1), p.entry_side, arms, strict=True)
  )
  return _Part(anchors[0] - anchors[1], jdotv[0] - jdotv[1], entries)


def _anchor(m, p, x, side):
  """Compute the anchors (npoint, 3, W) of one side of the points, in the world frame."""
  body = p.body[side]
  local = jnp.where((p.anchor[side] == 3)[:, None, None], *(rows(m.eq_data, p.point)[:, a : a + 3] for a in (3, 0)))
  if p.is_site.any():
    local = jnp.where(p.is_site[:, None, None], rows(m.site_pos, p.site[side]), local)
  return rows(x.xpos, body) + vector.mat_vec(rows(x.xmat, body), local)


def _weld_frames(m, p, x):
  """Compute the orientations of the two frames that each weld keeps parallel."""
  data = rows(m.eq_data, p.point[p.rotational])
  body1, body2 = p.body[:, p.rotational]
  quat1, quat2 = rows(x.xquat, body1), rows(x.xquat, body2)
  offset1, offset2 = data[:, 6:10], None
  if p.is_site[p.rotational].any():
    at_site = p.is_site[p.rotational][:, None, None]
    one = np.eye(4, 1, dtype=quat1.dtype)[None]
    offset1 = jnp.where(at_site, rows(m.site_quat, p.site[0, p.rotational]), offset1)
    offset2 = jnp.where(at_site, rows(m.site_quat, p.site[1, p.rotational]), one)
  return quat.mul(quat1, offset1), quat.mul(quat2, offset2) if offset2 is not None else quat2


def on_bodies(m: Model, p: EqualityPlan, x: State, efc_force: jax.Array) -> jax.Array:
  """Compute the wrench (nbody, 6, W) of connects and welds on every body, about the centre of mass of the body's tree.

  The wrench on the world body is zero.

  Source: `mj_rnePostConstraint`.
  """
  push = rows(efc_force, p.point_row)
  torque = jnp.zeros_like(push)
  if len(p.rotational):
    quat1, quat2 = _weld_frames(m, p, x)
    force = rows(efc_force, p.rotation_row)
    pure = jnp.concatenate([jnp.zeros_like(force[:, :1]), force], axis=-2)
    scale = rows(m.eq_data, p.point[p.rotational])[:, 10:11]
    weld_torque = 0.5 * scale * quat.mul(quat.mul(quat2, pure), quat.conjugate(quat1))[:, 1:]
    torque = assemble_rows([(p.rotational, weld_torque)], len(p.point), weld_torque)
  sides = []
  for k in (0, 1):
    arm = _anchor(m, p, x, k) - rows(x.subtree_com, m.body_rootid[p.body[k]])
    sides.append(spatial.join(torque + vector.cross(arm, push), push))
  return mask_sum(p.body_side, jnp.concatenate(jnp.broadcast_arrays(*sides)))


def on_tendons(m: Model, p: EqualityPlan, x: State, efc_force: jax.Array) -> jax.Array:
  """Compute the tension (ntendon, W) that couplings exert on tendons."""
  on_tendon = np.flatnonzero(p.tendon)
  force = rows(efc_force, p.scalar_row[on_tendon])
  second = on_tendon[p.coupled[on_tendon]]
  dif = rows(x.ten_length, p.obj[1, second]) - rows(m.tendon_length0, p.obj[1, second])
  pull = -_slope(rows(m.eq_data, p.scalar[second]), dif) * rows(efc_force, p.scalar_row[second])
  tendon = np.concatenate([p.obj[0, on_tendon], p.obj[1, second]])
  return mask_sum(plan_sum(tendon == np.arange(m.ntendon)[:, None]), join([force, pull]))


def _rotations(m, p, x, point):
  """Compute the relative rotation of the welds: the vector part of a quaternion times torquescale."""
  eq = p.point[p.rotational]
  data = rows(m.eq_data, eq)
  scale = data[:, 10:11]
  body1, body2 = p.body[:, p.rotational]
  quat1, quat2 = _weld_frames(m, p, x)
  inverse = quat.conjugate(quat2)

  def half_product(axis, q=quat1, b=inverse):
    """Return the vector part of half the product b (0, axis) q."""
    pure = jnp.concatenate([jnp.zeros_like(axis[:, :1]), axis], axis=-2)
    return 0.5 * quat.mul(quat.mul(b, pure), q)[:, 1:]

  error = quat.mul(inverse, quat1)[:, 1:] * scale
  # rate of change of (half back (0, w) left) at constant qvel: product rule
  omega1, omega2 = rows(x.cvel, body1)[:, :3], rows(x.cvel, body2)[:, :3]
  relative = omega1 - omega2
  quat1_dot, quat2_dot = (
    0.5 * quat.mul(jnp.concatenate([jnp.zeros_like(w[:, :1]), w], axis=-2), q) for w, q in ((omega1, quat1), (omega2, quat2))
  )
  acc = mask_sum(m.plan.com.ancestor_dof, x.cdof_dot, x.qvel[:, None])
  relative_acc = rows(acc, body1)[:, :3] - rows(acc, body2)[:, :3]
  bias = half_product(relative, b=quat.conjugate(quat2_dot)) + half_product(relative_acc) + half_product(relative, q=quat1_dot)

  entry_rotation = np.searchsorted(p.rotational, p.entry_point[p.rotation_entry])
  sides = (p.entry_side[0] - p.entry_side[1])[p.rotation_entry][:, None, None].astype(error.dtype)
  axis = sides * rows(x.cdof, p.entry_dof[p.rotation_entry])[:, :3]
  entries = half_product(axis, rows(quat1, entry_rotation), rows(inverse, entry_rotation)) * rows(scale, entry_rotation)
  return _Part(error, bias * scale, entries)


class _Coupling(NamedTuple):
  pos: jax.Array
  diag: jax.Array
  entries: jax.Array


def _couplings(m, p, x):
  """Compute the couplings: the first object's value is a quartic polynomial of the second's.

  Values of joints and tendons are relative to their references.
  """
  value, weight = [], []
  for obj in p.obj:
    joint, tendon = np.where(p.tendon, 0, obj), np.where(p.tendon, obj, 0)
    adr = m.jnt_qposadr[joint] if m.njnt else joint
    value.append(
      _choose(
        p.tendon,
        lambda adr=adr: rows(x.qpos, adr) - rows(m.qpos0, adr),
        lambda t=tendon: rows(x.ten_length, t) - rows(m.tendon_length0, t),
      )
    )
    weight.append(
      _choose(
        p.tendon,
        lambda j=joint: rows(m.dof_invweight0, m.jnt_dofadr[j]),
        lambda t=tendon: rows(m.tendon_invweight0, t),
      )
    )
  coupled = p.coupled[:, None]
  a = rows(m.eq_data, p.scalar)
  dif = jnp.where(coupled, value[1], 0)
  along = a[:, 1] * dif + a[:, 2] * dif**2 + a[:, 3] * dif**3 + a[:, 4] * dif**4
  slope = _slope(a, dif)
  factor = jnp.where((p.raw[:, 1] == 0)[:, None], 1, -rows(slope, p.raw[:, 0]))
  from_tendon = p.raw[:, 2] >= 0
  if from_tendon.any():
    own = jnp.where(from_tendon[:, None], rows(x.ten_J, np.maximum(p.raw[:, 2], 0)), 1)
    factor = factor * own
  diag = weight[0] + jnp.where(coupled, weight[1], 0)
  return _Coupling(value[0] - a[:, 0] - along, diag, mask_sum(p.entry_raw, factor))


def _slope(a, x):
  """Return the derivative of the quartic polynomial of a coupling."""
  return a[:, 1] + 2 * a[:, 2] * x + 3 * a[:, 3] * x**2 + 4 * a[:, 4] * x**3


def _choose(is_tendon, joint_values, tendon_values):
  """Select the values of the couplings by the kind of object; a kind that does not occur is not traced."""
  if not is_tendon.any():
    return joint_values()
  if is_tendon.all():
    return tendon_values()
  return jnp.where(is_tendon[:, None], tendon_values(), joint_values())
