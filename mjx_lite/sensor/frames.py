"""Frames of objects of several kinds at once: poses, velocities, accelerations.

Tests: tests/sensor/test_sensors.py.
"""

from typing import Any, NamedTuple

import jax
import numpy as np

from mjx_lite.math import quat, spatial, vector
from mjx_lite.model.enums import ObjType
from mjx_lite.model.types import Data, Model
from mjx_lite.ops.select import join, rows


class Frame(NamedTuple):
  """Names of the fields that hold the frame of a kind of object."""

  body: str | None  # mjModel's field of the object's body, None: the object is a body
  pos: str  # field of Data with the position
  mat: str  # field of Data with the rotation matrix
  size: str  # mjModel's number of objects of this kind


# kind of object with a frame
FRAMES = {
  ObjType.BODY: Frame(None, "xipos", "ximat", "nbody"),
  ObjType.XBODY: Frame(None, "xpos", "xmat", "nbody"),
  ObjType.GEOM: Frame("geom_bodyid", "geom_xpos", "geom_xmat", "ngeom"),
  ObjType.SITE: Frame("site_bodyid", "site_xpos", "site_xmat", "nsite"),
  ObjType.CAMERA: Frame("cam_bodyid", "cam_xpos", "cam_xmat", "ncam"),
}
# kind -> field of Data with a quaternion, and field of mjModel with the local quaternion to apply after it
_QUATS = {
  ObjType.BODY: ("xiquat", None), ObjType.XBODY: ("xquat", None), ObjType.GEOM: ("geom_xquat", None),
  ObjType.SITE: ("site_xquat", None), ObjType.CAMERA: ("xquat", "cam_quat"),
}  # fmt: skip


class Objects(NamedTuple):
  """n objects, grouped by kind."""

  parts: tuple[tuple[int, np.ndarray], ...]  # kind, ids
  order: np.ndarray  # object -> row in the concatenation of the parts
  body: np.ndarray  # (n,)
  root: np.ndarray  # (n,) root body of the tree


def plan(s: dict[str, Any], kinds: np.ndarray, ids: np.ndarray) -> Objects:
  """Group objects (n,) by kind; a body is of kind BODY (inertial frame) or XBODY (body frame)."""
  kinds, ids = np.asarray(kinds, int), np.asarray(ids, int)
  parts, order, body = [], [], np.zeros(len(ids), int)
  for kind in np.unique(kinds):
    members = np.flatnonzero(kinds == kind)
    owner = FRAMES[ObjType(int(kind))].body
    parts.append((int(kind), ids[members]))
    order.append(members)
    body[members] = ids[members] if owner is None else s[owner][ids[members]]
  return Objects(tuple(parts), np.argsort(np.concatenate([np.zeros(0, int), *order])), body, s["body_rootid"][body])


def position(d: Data, o: Objects) -> jax.Array:
  """Return the origins (n, 3, W) [m]."""
  return join([rows(getattr(d, FRAMES[ObjType(k)].pos), ids) for k, ids in o.parts], o.order)


def orientation(d: Data, o: Objects) -> jax.Array:
  """Return the rotation matrices (n, 3, 3, W), axes in columns."""
  return join([rows(getattr(d, FRAMES[ObjType(k)].mat), ids) for k, ids in o.parts], o.order)


def quaternion(m: Model, d: Data, o: Objects) -> jax.Array:
  """Return the orientations (n, 4, W). A camera has the frame fixed to its body, even if the camera tracks."""
  parts = []
  for kind, ids in o.parts:
    field, local = _QUATS[ObjType(kind)]
    if local is None:
      parts.append(rows(getattr(d, field), ids))
    else:
      body = getattr(m, FRAMES[ObjType(kind)].body or "")[ids]
      parts.append(quat.mul(rows(getattr(d, field), body), rows(getattr(m, local), ids)))
  return join(parts, o.order)


class Motion(NamedTuple):
  """Motion of the origins of frames, or torque and force, in world axes."""

  angular: jax.Array  # (n, 3, W)
  linear: jax.Array  # (n, 3, W)


def _at(d: Data, o: Objects, about_com: jax.Array, pos: jax.Array) -> Motion:
  """Shift a spatial vector about the trees' centres of mass to the origins of the frames."""
  omega, v = spatial.split(rows(about_com, o.body))
  return Motion(omega, v + vector.cross(omega, pos - rows(d.subtree_com, o.root)))


def velocity(d: Data, o: Objects) -> Motion:
  """Return the velocities of the frames. Source: `mj_objectVelocity`."""
  return _at(d, o, d.cvel, position(d, o))


def acceleration(d: Data, o: Objects) -> Motion:
  """Return the accelerations of the frames relative to free fall. Source: `mj_objectAcceleration`."""
  pos = position(d, o)
  omega, v = _at(d, o, d.cvel, pos)
  alpha, a = _at(d, o, d.cacc, pos)
  return Motion(alpha, a + vector.cross(omega, v))


def wrench(d: Data, o: Objects) -> Motion:
  """Return torque about the origins and force, on the bodies from their parents. Source: `mju_transformSpatial`."""
  torque, force = spatial.split(rows(d.cfrc_int, o.body))
  return Motion(torque - vector.cross(position(d, o) - rows(d.subtree_com, o.root), force), force)
