"""Tendons: lengths, and the Jacobian of the lengths in MuJoCo's packed form.

All straight segments of a model are one batch, and all segments around a sphere or cylinder are another, for any number of
tendons. A taut segment pulls on the bodies at its ends with unit force. An entry of the Jacobian is the power of the pulls
on the bodies that the dof moves, `cdof . wrench`. For each tendon, the sum of these pulls is the product of a small 0/1 matrix
with the wrenches; the tendons are padded to one size.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mjx_lite.math import safe, spatial, vector
from mjx_lite.math.groups import GroupPlan, group_sum, plan_groups
from mjx_lite.math.tree import SumPlan, mask_sum, plan_sum
from mjx_lite.model import topology
from mjx_lite.model.enums import GeomType, WrapType
from mjx_lite.model.types import Model
from mjx_lite.ops.select import join, rows
from mjx_lite.tendon.wrap import wrap


class Path(NamedTuple):
  """Segments of all tendons, derived from their wrap objects."""

  fixed_wrap: np.ndarray  # wrap objects that are joints of fixed tendons
  fixed_tendon: np.ndarray
  straight: np.ndarray  # (n, 2) sites
  straight_tendon: np.ndarray
  straight_pulley: np.ndarray  # number of the pulley before the segment, from 1; 0 for none
  around: np.ndarray  # (n, 2) sites
  around_geom: np.ndarray
  around_side: np.ndarray  # side site, -1 for none
  around_tendon: np.ndarray
  around_pulley: np.ndarray
  pulley: np.ndarray  # wrap objects that are pulleys


class TendonPlan(NamedTuple):
  """Index tables of lengths and Jacobian."""

  path: Path
  cylinder: np.ndarray  # (n,) whether the geom of a segment around a geom is a cylinder
  sided: np.ndarray  # segments around geoms with a side site
  length: GroupPlan  # tendon <- joints of fixed tendons, straight segments, segments around geoms
  fixed_length: GroupPlan  # tendon <- joints of fixed tendons
  joint_adr: np.ndarray  # qpos address of each joint of a fixed tendon
  fixed_entry: GroupPlan  # entries of fixed tendons <- their joints
  movable: np.ndarray  # tendons whose length can change
  moving: np.ndarray  # straight segments between different bodies
  pull: np.ndarray  # pulls on moving bodies, in the concatenation of all pulls
  pull_root: np.ndarray  # (npull,) root body of the pulled body's tree
  every_tendon: np.ndarray  # tendon of all pulls
  every_root: np.ndarray  # root body of the tree of all pulls
  every_body: SumPlan  # body <- all pulls; no pulls for the world
  table: np.ndarray  # (nspatial, most pulls) pulls of each tendon, padded with npull
  mask: np.ndarray  # (nspatial, most rows, most pulls) distinct 0/1 rows over the pulls
  entry_row: np.ndarray  # entry of a spatial tendon -> row of the product
  spatial_dof: np.ndarray  # entry of a spatial tendon -> dof
  order: np.ndarray  # packed entry -> row in the concatenation (fixed, spatial)
  entry_tendon: np.ndarray  # (nJten,) tendon of each packed entry
  entry_dof: np.ndarray  # (nJten,) dof of each packed entry
  dense: np.ndarray  # (ntendon * nv,) packed entry of J, nJten where J is zero
  by_tendon: GroupPlan  # tendon <- entries
  by_dof: GroupPlan  # dof <- entries


class Tendon(NamedTuple):
  """Result of `tendon`."""

  ten_length: jax.Array
  ten_J: jax.Array


def plan(s: dict[str, Any]) -> TendonPlan:
  """Build the index tables from the static fields of the model."""
  path, nv = _path(s), s["nv"]
  entry_tendon = np.repeat(np.arange(s["ntendon"]), s["ten_J_rownnz"]).astype(int)
  entry_dof = np.asarray(s["ten_J_colind"][: s["nJten"]], int)
  around_kind = s["geom_type"][path.around_geom] if len(path.around_geom) else np.zeros(0, int)

  # fixed tendons: one or more joints per entry
  joint = s["wrap_objid"][path.fixed_wrap]
  fixed = np.flatnonzero(np.isin(entry_tendon, path.fixed_tendon))
  number = {(t, v): i for i, (t, v) in enumerate(zip(entry_tendon[fixed], entry_dof[fixed], strict=True))}
  entry_of_joint = [number[t, v] for t, v in zip(path.fixed_tendon, s["jnt_dofadr"][joint], strict=True)]

  # spatial tendons: pulls at the ends of straight segments, at the ends of segments around geoms, and where they touch geoms
  body = s["site_bodyid"][path.straight] if len(path.straight) else np.zeros((0, 2), int)
  moving = np.flatnonzero(body[:, 0] != body[:, 1])
  ends = s["site_bodyid"][path.around] if len(path.around) else np.zeros((0, 2), int)
  geom = s["geom_bodyid"][path.around_geom] if len(path.around_geom) else np.zeros(0, int)
  pull_body = np.concatenate([body[moving, 0], body[moving, 1], ends[:, 0], ends[:, 1], geom, geom]).astype(int)
  t0, t1 = path.straight_tendon[moving], path.around_tendon
  changing = t1[np.any(ends != geom[:, None], axis=1)]
  pull_tendon = np.concatenate([t0, t0, t1, t1, t1, t1])
  moves = topology.moving_dofs(s)
  every = pull_tendon.astype(int), s["body_rootid"][pull_body].astype(int)
  on_body = (pull_body == np.arange(s["nbody"])[:, None]) & (pull_body > 0)
  pull = np.flatnonzero(moves[pull_body].any(axis=1))
  pull_body, pull_tendon = pull_body[pull], pull_tendon[pull]
  spatial_entry = np.setdiff1d(np.arange(len(entry_tendon)), fixed)
  table, mask, entry_row = _products(entry_tendon[spatial_entry], entry_dof[spatial_entry], pull_tendon, moves[pull_body])
  dense = np.full((s["ntendon"], nv), len(entry_dof))
  dense[entry_tendon, entry_dof] = np.arange(len(entry_dof))
  return TendonPlan(
    path=path, cylinder=around_kind == GeomType.CYLINDER, sided=np.flatnonzero(path.around_side >= 0),
    length=plan_groups(np.concatenate([path.fixed_tendon, path.straight_tendon, path.around_tendon]), s["ntendon"]),
    fixed_length=plan_groups(path.fixed_tendon, s["ntendon"]), joint_adr=s["jnt_qposadr"][joint].astype(int),
    fixed_entry=plan_groups(np.array(entry_of_joint, int), len(fixed)),
    movable=np.intersect1d(np.concatenate([path.fixed_tendon, t0, changing]), entry_tendon), moving=moving, pull=pull,
    pull_root=s["body_rootid"][pull_body].astype(int), every_tendon=every[0], every_root=every[1],
    every_body=plan_sum(on_body), table=table, mask=mask,
    entry_row=entry_row, spatial_dof=entry_dof[spatial_entry],
    order=np.argsort(np.r_[fixed, spatial_entry]).astype(int), entry_tendon=entry_tendon, entry_dof=entry_dof,
    dense=dense.ravel(), by_tendon=plan_groups(entry_tendon, s["ntendon"]), by_dof=plan_groups(entry_dof, nv),
  )  # fmt: skip


def _path(s) -> Path:
  """List the segments in the order of the tendons. Source: `mj_tendon`."""
  kind, obj, side = s["wrap_type"], s["wrap_objid"], s["wrap_sideid"]
  fixed, straight, around, pulleys = [], [], [], []
  for t in range(s["ntendon"]):
    first, pulley = int(s["tendon_adr"][t]), 0
    last = first + int(s["tendon_num"][t]) - 1
    k = first
    if kind[first] == WrapType.JOINT:
      fixed += [(i, t) for i in range(first, last + 1)]
      continue
    while k < last:
      if WrapType.PULLEY in (kind[k], kind[k + 1]):
        if kind[k] == WrapType.PULLEY:
          pulleys.append(k)
          pulley = len(pulleys)
        k += 1
      elif kind[k + 1] in (WrapType.SPHERE, WrapType.CYLINDER):
        around.append((obj[k], obj[k + 2], obj[k + 1], side[k + 1], t, pulley))
        k += 2
      else:
        straight.append((obj[k], obj[k + 1], t, pulley))
        k += 1
  f, a, b = (np.array(x, int).reshape(-1, n) for x, n in ((fixed, 2), (straight, 4), (around, 6)))
  return Path(
    fixed_wrap=f[:, 0], fixed_tendon=f[:, 1], straight=a[:, :2], straight_tendon=a[:, 2], straight_pulley=a[:, 3],
    around=b[:, :2], around_geom=b[:, 2], around_side=b[:, 3], around_tendon=b[:, 4], around_pulley=b[:, 5],
    pulley=np.array(pulleys, int),
  )  # fmt: skip


def _products(tendon, dof, pull_tendon, pull_moves):
  """Return the padded table of pulls, the distinct 0/1 rows over the pulls, and the row of each entry."""
  present = np.unique(tendon)
  pulls = [np.flatnonzero(pull_tendon == t) for t in present]
  distinct, row = [], np.zeros(len(tendon), int)
  for i, t in enumerate(present):
    entries = np.flatnonzero(tendon == t)
    moved = pull_moves[np.ix_(pulls[i], dof[entries])].T
    unique, inverse = np.unique(moved, axis=0, return_inverse=True)
    distinct.append(unique)
    row[entries] = inverse.ravel()
  npull, nrow = (max((x.shape[k] for x in distinct), default=0) for k in (1, 0))
  table, mask = np.full((len(present), npull), len(pull_tendon)), np.zeros((len(present), nrow, npull))
  for i, (x, unique) in enumerate(zip(pulls, distinct, strict=True)):
    table[i, : len(x)] = x
    mask[i, : unique.shape[0], : unique.shape[1]] = unique
  return table, mask, np.searchsorted(present, tendon) * nrow + row


def tendon(m: Model, qpos, site_xpos, geom_xpos, geom_xmat, subtree_com, cdof) -> Tendon:
  """Compute the lengths (ntendon, W) and the packed Jacobian (nJten, W) of the tendons.

  Where a path touches a geom, the pull acts on a point fixed in the geom's body. The path is the shortest path, so sliding of
  this point does not change the length.

  Source: `mj_tendon`. The points that MuJoCo draws (`wrap_xpos`, `ten_wrapadr`, ...) are not computed.
  Gradient: zero for a segment of length zero; the pull of this segment is along x, as in C.
  """
  p = m.plan.tendon
  parts, pulls = _segments(m, p, site_xpos, geom_xpos, geom_xmat)
  if len(p.path.fixed_wrap):
    parts.insert(0, rows(m.wrap_prm, p.path.fixed_wrap) * rows(qpos, p.joint_adr))
  return Tendon(group_sum(p.length, join(parts)), _jacobian(m, p, pulls, subtree_com, cdof))


def on_bodies(m: Model, tension: jax.Array, site_xpos, geom_xpos, geom_xmat, subtree_com) -> jax.Array:
  """Return the wrench (nbody, 6, W) of spatial tendons on every body, about its tree's centre of mass; zero for the world.

  Args:
    tension: (ntendon, W), positive where it makes the tendon longer; the tension of fixed tendons does not act on bodies.
    site_xpos: (nsite, 3, W).
    geom_xpos: (ngeom, 3, W).
    geom_xmat: (ngeom, 3, 3, W).
    subtree_com: (nbody, 3, W).

  Source: `mj_rnePostConstraint`.
  """
  p = m.plan.tendon
  _, pulls = _segments(m, p, site_xpos, geom_xpos, geom_xmat)
  point, force = (join([x[k] for x in pulls]) for k in (0, 1))
  force = force * rows(tension, p.every_tendon)[:, None]
  wrench = spatial.join(vector.cross(point - rows(subtree_com, p.every_root), force), force)
  return mask_sum(p.every_body, wrench)


def _segments(m, p, site_xpos, geom_xpos, geom_xmat):
  """Return the lengths of the segments of spatial tendons, and the segments' pulls (point, force) at unit tension."""
  path, parts, pulls = p.path, [], []
  if len(path.straight):
    a, b = rows(site_xpos, path.straight[:, 0]), rows(site_xpos, path.straight[:, 1])
    parts.append(shared(m, safe.norm(b - a), path.straight_pulley))
    a, b = rows(a, p.moving), rows(b, p.moving)
    u = shared(m, safe.normalize(b - a), path.straight_pulley[p.moving])
    pulls += [(a, -u), (b, u)]
  if len(path.around):
    a, b = rows(site_xpos, path.around[:, 0]), rows(site_xpos, path.around[:, 1])
    radius = rows(m.geom_size, path.around_geom)[:, 0]
    side = rows(site_xpos, path.around_side[p.sided])
    pose = rows(geom_xpos, path.around_geom), rows(geom_xmat, path.around_geom)
    w = wrap(a, b, *pose, radius, side, p.cylinder, p.sided)
    # without wrapping, both points are the other end, and the second part has length zero
    to = jnp.where(w.wrapped[:, None], w.point1, a)
    free = jnp.where(w.wrapped, safe.norm(b - w.point1), 0)
    parts.append(shared(m, safe.norm(w.point0 - a) + w.length + free, path.around_pulley))
    u0, u1 = (shared(m, safe.normalize(x), path.around_pulley) for x in (w.point0 - a, b - to))
    on = w.wrapped[:, None]
    pulls += [(a, -u0), (b, u1), (w.point0, jnp.where(on, u0, 0)), (w.point1, jnp.where(on, -u1, 0))]
  return parts, pulls


def shared(m: Model, x: jax.Array, pulley: np.ndarray) -> jax.Array:
  """Multiply values x (n, ..., W) of segments by the fraction of the tendon's force in the segments' branch.

  Args:
    pulley: (n,) number of the pulley before each segment, 0 for none.
  """
  if not pulley.any():
    return x
  divisor = rows(m.wrap_prm, m.plan.tendon.path.pulley)
  part = rows(1 / jnp.concatenate([jnp.ones_like(divisor[:1]), divisor]), pulley)
  return x * part.reshape(len(pulley), *(1,) * (x.ndim - 2), part.shape[-1])


def fixed_length(m: Model, qpos: jax.Array) -> jax.Array:
  """Return the lengths (ntendon, W) of the fixed tendons, 0 for spatial tendons."""
  p = m.plan.tendon
  return group_sum(p.fixed_length, rows(m.wrap_prm, p.path.fixed_wrap) * rows(qpos, p.joint_adr))


def _jacobian(m, p, pulls, subtree_com, cdof):
  """Return the packed entries (nJten, W) of the pulls (point, force) and of the fixed tendons."""
  parts = []
  if len(p.path.fixed_wrap):
    parts.append(group_sum(p.fixed_entry, rows(m.wrap_prm, p.path.fixed_wrap)))
  if len(p.entry_row):
    point, force = (rows(join([x[k] for x in pulls]), p.pull) for k in (0, 1))
    wrench = spatial.join(vector.cross(point - rows(subtree_com, p.pull_root), force), force)
    padded = rows(jnp.concatenate([wrench, jnp.zeros_like(wrench[:1])]), p.table)
    total = vector.combine_rows(p.mask.astype(wrench.dtype), padded.reshape(*p.table.shape, *wrench.shape[1:]))
    total = total.reshape(p.mask.shape[0] * p.mask.shape[1], *wrench.shape[1:])
    parts.append(vector.dot(rows(cdof, p.spatial_dof), rows(total, p.entry_row)))
  if not parts:
    return jnp.zeros((0, cdof.shape[-1]), cdof.dtype)
  return join(parts, p.order)


def velocity(m: Model, ten_J: jax.Array, qvel: jax.Array) -> jax.Array:
  """Return the rates of the lengths: J qvel (ntendon, W)."""
  p = m.plan.tendon
  return group_sum(p.by_tendon, ten_J * rows(qvel, p.entry_dof))


def to_joints(m: Model, ten_J: jax.Array, force: jax.Array) -> jax.Array:
  """Return the joint-space force (nv, W) of tendon forces (ntendon, W): J' force."""
  p = m.plan.tendon
  return group_sum(p.by_dof, ten_J * rows(force, p.entry_tendon))


def dense(m: Model, ten_J: jax.Array) -> jax.Array:
  """Return the dense J (ntendon, nv, W)."""
  padded = jnp.concatenate([ten_J, jnp.zeros_like(ten_J, shape=(1, ten_J.shape[-1]))])
  return rows(padded, m.plan.tendon.dense).reshape(m.ntendon, m.nv, ten_J.shape[-1])
