"""Contact sensor: the contacts that match, the choice of the reported contacts, and their fields.

Tests: tests/sensor/test_sensors.py.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mjx_lite.constraint import contact_force
from mjx_lite.math import safe, spatial, vector
from mjx_lite.model.enums import ConDataField, ObjType
from mjx_lite.model.types import Data, Model
from mjx_lite.ops.select import gather, rows
from mjx_lite.sensor.acceleration import padded
from mjx_lite.sensor.group import Part, split
from mjx_lite.sensor.site_volume import volume

NONE, MINDIST, MAXFORCE, NETFORCE = range(4)  # how the matching contacts are reduced, sensor_intprm[1]


class ContactTables(NamedTuple):
  """Sensors of one specification, with the contact slots that can match, padded to the longest list."""

  fields: tuple[int, ...]  # ConDataField
  reduce: int
  num: int  # contacts reported
  shape: int  # shape of the sites that must contain the contacts, -1 for no site
  site: np.ndarray  # (n,)
  slot: np.ndarray  # (n, k)
  sign: Any  # (n, k, 1 or W) -1 where the normal is reversed, 0 where there is no match
  body: np.ndarray  # (2, n, k) bodies of the slots
  matching: "Matching | None"  # if the slots' geoms are chosen at run time, which then decide `sign` and `body`


class Matching(NamedTuple):
  """Masks of the geoms that are the two objects of the sensors, or part of them."""

  first: np.ndarray  # (n, ngeom)
  second: np.ndarray
  has_first: np.ndarray  # (n, 1, 1) whether the sensor has a first object
  has_second: np.ndarray  # the same for the second object


def plan(s: dict[str, Any], ids: np.ndarray) -> list[Part]:
  """Group the sensors by fields, reduction, size and shape of their site."""
  fields, reduce = s["sensor_intprm"][ids, 0], s["sensor_intprm"][ids, 1]
  at_site = s["sensor_objtype"][ids] == ObjType.SITE
  shape = np.full(len(ids), -1)
  shape[at_site] = s["site_type"][s["sensor_objid"][ids[at_site]]]
  out = []
  for (spec, reduction, dim, kind), members in split(ids, fields, reduce, s["sensor_dim"][ids], shape):
    chosen = tuple(int(f) for f in FIELDS if spec & (1 << f))
    num = dim // sum(FIELDS[f][0] for f in chosen)
    matching = _matching(s, members) if s["slot_chosen"] else None
    all_slots = np.arange(len(s["slot_body"]))
    slot, sign = padded([(all_slots, 0 * all_slots) if matching else _matches(s, i) for i in members])
    body = np.moveaxis(s["slot_body"][slot] if len(s["slot_body"]) else np.zeros((*slot.shape, 2), int), -1, 0)
    site = np.where(kind >= 0, s["sensor_objid"][members], 0).astype(int)
    out.append(
      Part(
        members,
        ContactTables(
          fields=chosen,
          reduce=reduction,
          num=num,
          shape=kind,
          site=site,
          slot=slot,
          sign=sign[..., None],
          body=body,
          matching=matching,
        ),
      )
    )
  return out


def _objects(s, i):
  return (s["sensor_objtype"][i], s["sensor_objid"][i]), (s["sensor_reftype"][i], s["sensor_refid"][i])


def _matches(s, i):
  """Return the slots that match a sensor's objects, and the sign of each: -1 where the normal must be reversed."""
  first, second = (
    [_is(s, *obj, s["slot_geom"][:, side], s["slot_body"][:, side]) for side in (0, 1)] for obj in _objects(s, i)
  )
  sign = _sign(first, second, *(np.array(kind != ObjType.UNKNOWN) for kind, _ in _objects(s, i)))
  slot = np.flatnonzero(sign)
  return slot, sign[slot]


def _sign(first, second, has_first, has_second):
  """Return the sign of each slot: -1 where the normal must be reversed, 0 where nothing matches. Source: `matchContact`."""
  has_both = has_first & has_second
  regular, reverse = first[0] & second[1], first[1] & second[0]
  involved = (first[0] | first[1]) & (second[0] | second[1]) & (regular | reverse | ~has_both)
  reversed_ = (has_both & ~regular) | (~has_both & has_first & ~first[0]) | (~has_first & has_second & ~second[1])
  return involved * (1 - 2 * reversed_)


def _matching(s, ids):
  geom, body = np.arange(s["ngeom"]), np.asarray(s["geom_bodyid"])
  first, second = (np.array([_is(s, *_objects(s, i)[k], geom, body) for i in ids]) for k in (0, 1))
  has_first, has_second = (s[k][ids][:, None, None] != ObjType.UNKNOWN for k in ("sensor_objtype", "sensor_reftype"))
  return Matching(first, second, has_first, has_second)


def _matched(m, d, t):
  """Return the tables with `sign` and `body` for the present geoms of the slots."""
  p, geom = t.matching, [d.contact.geom[:, side] for side in (0, 1)]
  first, second = ([jnp.asarray(table)[:, g] for g in geom] for table in (p.first, p.second))
  body = [jnp.asarray(m.geom_bodyid)[g] for g in geom]
  return t._replace(sign=_sign(first, second, p.has_first, p.has_second), body=body)


def _is(s, kind, obj, geom, body):
  """Return whether the sides of slots are an object, or part of the object."""
  if kind in (ObjType.UNKNOWN, ObjType.SITE):
    return np.ones(len(geom), bool)
  if kind == ObjType.GEOM:
    return geom == obj
  if kind == ObjType.BODY:
    return body == obj
  above = np.asarray(body, int)  # a subtree: the body or one of its ancestors
  while (above > obj).any():
    above = np.where(above > obj, s["body_parentid"][above], above)
  return above == obj


class _Found(NamedTuple):
  """Contacts of all slots of all sensors."""

  number: jax.Array  # (n, W) number of matching contacts
  force: jax.Array  # (n, k, 6, W) force, torque in the contact frame [N, N m]
  frame: jax.Array  # (n, k, 3, 3, W)


def _number(m, d, t, x):
  return jnp.broadcast_to(x.number[:, None, None], (*t.slot.shape, 1, x.number.shape[-1])).astype(d.qpos.dtype)


def _flip_z(t, v):
  """Flip the third component with the direction of the contact."""
  one = np.ones_like(t.sign) if isinstance(t.sign, np.ndarray) else jnp.ones_like(t.sign)
  return v * jnp.stack([one, one, t.sign], axis=-2).astype(v.dtype)


def _relative(m, d, t, point):
  """Return the velocity (angular, linear) of the second body relative to the first, at points (n, k, 3, W)."""
  sides = []
  for body in t.body:
    com = rows(d.subtree_com, m.body_rootid)
    spin, com = (gather(x, body)[None] if t.matching else rows(x, body) for x in (d.cvel, com))
    omega, v = spatial.split(spin)
    sides.append((omega, v + vector.cross(omega, point - com)))
  return sides[1][0] - sides[0][0], sides[1][1] - sides[0][1]


def _angvel(m, d, t, x):
  return _flip_z(t, vector.mat_vec(x.frame, _relative(m, d, t, rows(d.contact.pos, t.slot))[0]))


def _linvel(m, d, t, x):
  return _flip_z(t, vector.mat_vec(x.frame, _relative(m, d, t, rows(d.contact.pos, t.slot))[1]))


# field of a contact -> its size, and the function that computes the field for every slot; in MuJoCo's order
FIELDS: dict[int, tuple[int, Any]] = {
  ConDataField.FOUND: (1, _number),
  ConDataField.FORCE: (3, lambda m, d, t, x: _flip_z(t, x.force[:, :, :3])),
  ConDataField.TORQUE: (3, lambda m, d, t, x: _flip_z(t, x.force[:, :, 3:])),
  ConDataField.DIST: (1, lambda m, d, t, x: rows(d.contact.dist, t.slot)[:, :, None]),
  ConDataField.POS: (3, lambda m, d, t, x: rows(d.contact.pos, t.slot)),
  ConDataField.NORMAL: (3, lambda m, d, t, x: x.frame[:, :, 0] * t.sign[:, :, None]),
  ConDataField.TANGENT: (3, lambda m, d, t, x: x.frame[:, :, 1] * t.sign[:, :, None]),
  ConDataField.LINVEL: (3, _linvel),
  ConDataField.ANGVEL: (3, _angvel),
}


def contact(m: Model, d: Data, t: ContactTables) -> jax.Array:
  """Return the fields of the matching contacts.

  Source: `mj_computeSensorAcc`, case mjSENS_CONTACT; MuJoCo documentation, sensor/contact.
  Gradient: that of the fields; the choice of the contacts and their number have none.
  """
  n, k = t.slot.shape
  size = sum(FIELDS[f][0] for f in t.fields)
  if not k:
    return jnp.zeros((n, t.num * size, 1), d.qpos.dtype)
  c, t = d.contact, _matched(m, d, t) if t.matching else t
  match = (t.sign != 0) & (rows(c.exclude, t.slot) >= 0)
  if t.shape >= 0:
    match = match & volume.contains(t.shape, volume.gather(m, d, t.site[:, None]), rows(c.pos, t.slot))
  needs_force = t.reduce in (MAXFORCE, NETFORCE) or {ConDataField.FORCE, ConDataField.TORQUE} & set(t.fields)
  force = c.pos  # not used
  if needs_force:
    force = rows(contact_force.local(m, d.efc_force, c), t.slot)
  x = _Found(jnp.sum(match, axis=1), force, rows(c.frame, t.slot))
  if t.reduce == NETFORCE:
    return _net(d, t, x, match, size)

  # the reported contacts: the first ones, or the first ones by a criterion
  key = jnp.zeros((), d.qpos.dtype)
  if t.reduce == MINDIST:
    key = rows(c.dist, t.slot)
  elif t.reduce == MAXFORCE:
    key = -vector.dot(x.force[:, :, :3], x.force[:, :, :3])
  key = jax.lax.stop_gradient(jnp.where(match, key, jnp.inf))
  num = min(t.num, k)
  chosen = jnp.argmin(key, axis=1)[:, None] if num == 1 else jnp.argsort(key, axis=1, stable=True)[:, :num]
  parts = [FIELDS[f][1](m, d, t, x) for f in t.fields]
  width = max(p.shape[-1] for p in (*parts, key))
  values = jnp.concatenate([jnp.broadcast_to(p, (*p.shape[:-1], width)) for p in parts], axis=2)
  out = jnp.take_along_axis(values, jnp.broadcast_to(chosen, (n, num, width))[:, :, None], axis=1)
  out = jnp.where((np.arange(num)[:, None] < x.number[:, None])[:, :, None], out, 0)
  out = jnp.concatenate([out, jnp.zeros((n, t.num - num, size, width), out.dtype)], axis=1)
  return out.reshape(n, t.num * size, width)


def _net(d, t, x, match, size):
  """Reduce all contacts to one: the sum of the wrenches about the centre of the contacts, in world axes."""
  pos = rows(d.contact.pos, t.slot)
  local = jnp.where(match[:, :, None], x.force * t.sign[:, :, None], 0)
  push, torque = (vector.mat_t_vec(x.frame, local[:, :, i]) for i in (slice(0, 3), slice(3, 6)))
  weight = safe.norm(local[:, :, :3])
  centre = safe.quotient(jnp.sum(pos * weight[:, :, None], axis=1), jnp.sum(weight, axis=1)[:, None])
  values = {
    ConDataField.FOUND: x.number[:, None].astype(pos.dtype), ConDataField.FORCE: jnp.sum(push, axis=1),
    ConDataField.TORQUE: jnp.sum(torque + vector.cross(pos - centre[:, None], push), axis=1), ConDataField.POS: centre,
  }  # fmt: skip
  width = centre.shape[-1]
  found, axes = (x.number > 0)[:, None].astype(pos.dtype), np.eye(3, dtype=pos.dtype)[..., None]
  values.update({ConDataField.NORMAL: found * axes[0], ConDataField.TANGENT: found * axes[1]})
  zero = jnp.zeros((len(t.slot), 1, width), pos.dtype)
  parts = [jnp.broadcast_to(values.get(f, zero), (len(t.slot), FIELDS[f][0], width)) for f in t.fields]
  rest = jnp.zeros((len(t.slot), (t.num - 1) * size, width), pos.dtype)
  return jnp.concatenate([*parts, rest], axis=1)
