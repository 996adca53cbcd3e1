"""MuJoCo as a function from two posed shapes to contacts, and random poses that meet it where it is interesting."""

import functools

import mujoco
import numpy as np

from mjx_lite.collision.convex import hulls as hulls_
from mjx_lite.io import fields


def _frustum(corners: int) -> np.ndarray:
  """Corners of a frustum whose caps are regular polygons: polygons of 4 and of more corners."""
  angle = 2 * np.pi * np.arange(corners) / corners
  ring = np.stack([np.cos(angle), np.sin(angle)], axis=1)
  return np.concatenate([np.c_[r * ring, np.full(corners, z)] for r, z in ((0.5, -0.3), (0.35, 0.3))])


def _cloud(count: int) -> np.ndarray:
  """Points near an ellipsoid: a hull of triangles."""
  x = np.random.default_rng(5).normal(size=(count, 3))
  return x / np.linalg.norm(x, axis=1, keepdims=True) * [0.6, 0.4, 0.3]


MESHES = {"mesh": _frustum(6), "cloud": _cloud(40)}  # by the name of the geom type in this module


@functools.cache
def model(type_a: str, type_b: str) -> mujoco.MjModel:
  """Two geoms and their pair; 'cloud' is a mesh too."""
  size = {
    'plane': '0 0 1', 'sphere': '1', 'capsule': '1 1', 'ellipsoid': '1 1 1', 'cylinder': '1 1', 'box': '1 1 1',
  }  # fmt: skip

  def shape(kind):
    return f'type="mesh" mesh="{kind}"' if kind in MESHES else f'type="{kind}" size="{size[kind]}"'

  meshes = "".join(f'<mesh name="{k}" vertex="{" ".join(map(str, x.ravel()))}"/>' for k, x in MESHES.items())
  return mujoco.MjModel.from_xml_string(f"""
    <mujoco>
      <asset>{meshes}</asset>
      <worldbody>
        <body mocap="true"><geom name="a" {shape(type_a)} contype="0" conaffinity="0"/></body>
        <body><freejoint/><geom name="b" {shape(type_b)} contype="0" conaffinity="0"/></body>
      </worldbody>
      <contact><pair geom1="a" geom2="b"/></contact>
    </mujoco>""")


@functools.cache
def hulls(type_a: str, type_b: str) -> list[hulls_.GeomHulls | None]:
  """Hulls of the two geoms, None for one that is no mesh."""
  m = model(type_a, type_b)
  mesh = [int(m.geom_dataid[g]) if m.geom_type[g] == mujoco.mjtGeom.mjGEOM_MESH else -1 for g in (0, 1)]
  tables = hulls_.plan(fields.every(m), np.array([x for x in mesh if x >= 0], int))
  return [None if x < 0 else hulls_.GeomHulls(tables, tables.start[[x]], tables.nvert[[x]]) for x in mesh]


def contacts(type_a, type_b, pos, mat, size, margin):
  """Contacts of N posed pairs, as `mj_collision` leaves them.

  Args:
    pos: (N, 2, 3); mat: (N, 2, 3, 3); size: (N, 2, 3); margin: (N,).

  Returns:
    A list of N arrays (ncon, 13): dist, pos, frame; only contacts with dist < margin.
  """
  m = model(type_a, type_b)
  d = mujoco.MjData(m)
  mujoco.mj_forward(m, d)
  # bounding spheres that never filter (0 marks a plane)
  m.geom_rbound[:] = [0 if t == "plane" else 1e6 for t in (type_a, type_b)]
  m.pair_gap[0] = 0
  out = []
  for n in range(len(pos)):
    m.geom_size[:] = size[n]
    m.pair_margin[0] = margin[n]
    d.geom_xpos[:] = pos[n]
    d.geom_xmat[:] = mat[n].reshape(2, 9)
    mujoco.mj_collision(m, d)
    c = d.contact
    rows = np.concatenate([c.dist[:, None], c.pos.reshape(-1, 3), c.frame.reshape(-1, 9)], axis=1)
    out.append(rows[rows[:, 0] < margin[n]].copy())
  return out


def _rotations(rng, n):
  q = rng.normal(size=(n, 4))
  w, x, y, z = (q / np.linalg.norm(q, axis=1, keepdims=True)).T
  rows = (
    (1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)),
    (2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)),
    (2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)),
  )
  return np.moveaxis(np.array(rows), -1, 0)


def _turns(axis, angle):
  """Rotations about coordinate axes: axis (N,) in 0..2, angle (N,)."""
  c, s, i = np.cos(angle), np.sin(angle), np.arange(len(axis))
  mat = np.zeros((len(axis), 3, 3))
  mat[i, axis, axis] = 1
  u, v = (axis + 1) % 3, (axis + 2) % 3
  mat[i, u, u], mat[i, v, v], mat[i, u, v], mat[i, v, u] = c, c, -s, s
  return mat


def turn(axis: int, angle: float) -> np.ndarray:
  """Rotation matrix about a coordinate axis."""
  return _turns(np.array([axis]), np.array([angle]))[0]


def poses(rng: np.random.Generator, n: int, kind: str):
  """Poses of n pairs: `(pos, mat, size, margin)` as `contacts` takes them.

  Args:
    kind: 'random' turns and places freely, from apart to deep. 'aligned' turns by multiples of 45 degrees, places on a
      grid and draws from few sizes, so that faces and edges meet exactly. 'tilted' is 'aligned' with a small generic
      offset in turn and place, and the whole scene turned: the neighbourhood of every special position.
  """
  if kind == "random":
    mat = np.stack([_rotations(rng, n), _rotations(rng, n)], axis=1)
    size = rng.uniform(0.1, 1, size=(n, 2, 3))
    away = rng.normal(size=(n, 3))
    away *= (rng.uniform(0, 2.2, size=n) / np.linalg.norm(away, axis=1))[:, None]
    pos = rng.normal(size=(n, 2, 3))
    pos[:, 1] = pos[:, 0] + away
    return pos, mat, size, rng.choice([0, 0.01, 0.3], size=n)
  size = rng.choice([0.25, 0.5, 1], size=(n, 2, 3))
  pos = rng.integers(-12, 13, size=(n, 2, 3)) / 8
  pos[:, 0] = 0
  turns = [_turns(rng.integers(3, size=n), rng.choice([0, 0, 1, 2, 3], size=n) * np.pi / 4) for _ in range(4)]
  mat = np.stack([turns[0] @ turns[1], turns[2] @ turns[3]], axis=1)
  if kind == "tilted":
    tilt = 10 ** rng.uniform(-6, -1, size=n)
    mat[:, 1] = _turns(rng.integers(3, size=n), tilt) @ mat[:, 1] @ _turns(rng.integers(3, size=n), -0.7 * tilt)
    pos[:, 1] += rng.normal(size=(n, 3)) * tilt[:, None]
    scene = _rotations(rng, n)
    mat = scene[:, None] @ mat
    pos = np.einsum("nij,nkj->nki", scene, pos) + rng.normal(size=(n, 1, 3))
  return pos, mat, size, rng.choice([0, 0.01, 0.25], size=n)
