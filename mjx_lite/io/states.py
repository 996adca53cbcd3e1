"""States from which put_model chooses capacities: C's simulation under random controls, from starts that are always the same.

The number of steps depends on the model alone, and every trajectory is short, so that the round-off of another machine does not
grow to other contacts.

Tests: tests/io/test_capacity_choice.py.
"""

import copy
from collections.abc import Iterator
from typing import NamedTuple

import mujoco
import numpy as np

_STARTS = 16  # trajectories
_STEPS = 90_000  # steps of all trajectories times nv ...
_FEWEST, _MOST = 1_500, 6_000  # ... within these bounds
_HOLD = 100  # steps with the same controls
_POSES = 8  # poses of each trajectory that are returned
_PRESSED = 0.05  # largest depth of a start in the floor, in units of stat.meansize
_ROUND_JOINTS = (mujoco.mjtJoint.mjJNT_FREE, mujoco.mjtJoint.mjJNT_BALL)


class States(NamedTuple):
  """What C meets.

  Attributes:
    ncon: (n,) number of contacts in each step.
    is_drawn: (n,) whether the step's trajectory has a random start; others start at qpos0 or at a keyframe, as it is.
    posed: (k,) indices of some of the steps.
    xpos: (k, ngeom, 3) positions of the geoms in these steps [m].
    xmat: (k, ngeom, 3, 3) rotations of the geoms in these steps.
  """

  ncon: np.ndarray
  is_drawn: np.ndarray
  posed: np.ndarray
  xpos: np.ndarray
  xmat: np.ndarray


def simulate(m: mujoco.MjModel) -> States:
  """Simulate from qpos0 and the keyframes: as they are; with joints anywhere in their ranges, on the floor; and turned.

  Controls are uniform in their ranges, in [-1, 1] without a range. C resets worlds that become unstable. A trajectory ends
  where C stops with an error, as for want of memory.
  """
  m = _with_fixed_options(m)
  d, rng = mujoco.MjData(m), np.random.default_rng(0)
  low, high = np.where(m.actuator_ctrllimited[:, None], m.actuator_ctrlrange, [-1.0, 1.0]).T if m.nu else np.zeros((2, 0))
  length = int(np.clip(_STEPS // max(m.nv, 1), _FEWEST, _MOST)) // _STARTS
  seen = set(np.linspace(0, length - 1, _POSES, dtype=int).tolist())
  ncon, is_drawn, posed, xpos, xmat = [], [], [], [], []
  handler = mujoco.get_mju_user_warning()
  mujoco.set_mju_user_warning(lambda _: None)
  try:
    for drawn in _starts(m, d, rng):
      for step in range(length):
        if step % _HOLD == 0:
          d.ctrl[:] = rng.uniform(low, high)
        try:
          mujoco.mj_step(m, d)
        except mujoco.FatalError:
          break
        if step in seen:
          posed.append(len(ncon))
          xpos.append(d.geom_xpos.copy())
          xmat.append(d.geom_xmat.reshape(-1, 3, 3).copy())
        ncon.append(d.ncon)
        is_drawn.append(drawn)
  finally:
    mujoco.set_mju_user_warning(handler)
  return States(
    ncon=np.array(ncon, int),
    is_drawn=np.array(is_drawn, bool),
    posed=np.array(posed, int),
    xpos=np.reshape(xpos, (-1, m.ngeom, 3)),
    xmat=np.reshape(xmat, (-1, m.ngeom, 3, 3)),
  )


def _with_fixed_options(m: mujoco.MjModel) -> mujoco.MjModel:
  """Return a copy whose solver and integrator are always the same: fast and stable, and no choice of options changes shapes."""
  m = copy.copy(m)
  m.opt.solver, m.opt.cone = mujoco.mjtSolver.mjSOL_NEWTON, mujoco.mjtCone.mjCONE_PYRAMIDAL
  m.opt.integrator, m.opt.jacobian = mujoco.mjtIntegrator.mjINT_IMPLICITFAST, mujoco.mjtJacobian.mjJAC_AUTO
  m.opt.iterations, m.opt.ls_iterations, m.opt.noslip_iterations, m.opt.ccd_iterations = 20, 20, 0, 35
  m.opt.tolerance, m.opt.ls_tolerance, m.opt.ccd_tolerance, m.opt.impratio = 1e-4, 0.01, 1e-6, 1.0
  m.opt.enableflags &= int(mujoco.mjtEnableBit.mjENBL_OVERRIDE)
  m.opt.disableflags &= ~int(mujoco.mjtDisableBit.mjDSBL_AUTORESET | mujoco.mjtDisableBit.mjDSBL_WARMSTART)
  return m


def _starts(m: mujoco.MjModel, d: mujoco.MjData, rng: np.random.Generator) -> Iterator[bool]:
  """Put the starts of the trajectories into the MjData, one after the other; return whether a start is drawn."""
  for k in range(_STARTS):
    mujoco.mj_resetData(m, d)
    if key := (k // 4) % (m.nkey + 1):
      mujoco.mj_resetDataKeyframe(m, d, key - 1)
    if k % 4:
      _fold(m, d, rng, turned=k % 4 > 1)
      d.qvel[:] = rng.uniform(-1, 1, m.nv)
      _lay(m, d, rng.uniform(0, _PRESSED * m.stat.meansize) * (k % 4 == 3))
    yield k % 4 > 0


def _fold(m: mujoco.MjModel, d: mujoco.MjData, rng: np.random.Generator, turned: bool) -> None:
  """Draw joint positions from their ranges, unlimited hinges from all angles; if `turned`, rotations of free bodies too."""
  for kind, adr, limited, (low, high) in zip(m.jnt_type, m.jnt_qposadr, m.jnt_limited, m.jnt_range, strict=True):
    if kind in _ROUND_JOINTS:
      quat = rng.uniform(-1, 1, 4)
      at = adr + 3 * (kind == mujoco.mjtJoint.mjJNT_FREE)
      if turned or kind == mujoco.mjtJoint.mjJNT_BALL:
        d.qpos[at : at + 4] = quat / np.linalg.norm(quat)
    elif limited:
      d.qpos[adr] = rng.uniform(low, high)
    elif kind == mujoco.mjtJoint.mjJNT_HINGE:
      d.qpos[adr] = rng.uniform(-np.pi, np.pi)


def _lay(m: mujoco.MjModel, d: mujoco.MjData, depth: float) -> None:
  """Move each free body up or down until the box of one of its geoms is `depth` [m] below the highest plane."""
  mujoco.mj_kinematics(m, d)
  mat, solid = d.geom_xmat.reshape(-1, 3, 3), (m.geom_contype | m.geom_conaffinity) > 0
  center = d.geom_xpos + np.einsum("gij,gj->gi", mat, m.geom_aabb[:, :3])
  tree = m.body_rootid[m.geom_bodyid]
  planes = np.flatnonzero((m.geom_type == mujoco.mjtGeom.mjGEOM_PLANE) & (mat[:, 2, 2] > 0.5))
  for joint in np.flatnonzero(m.jnt_type == mujoco.mjtJoint.mjJNT_FREE):
    geoms = np.flatnonzero(solid & (tree == m.body_rootid[m.jnt_bodyid[joint]]))
    heights = []
    for plane in planes if len(geoms) else ():
      normal = mat[plane, :, 2]
      low = (center[geoms] - d.geom_xpos[plane]) @ normal - np.sum(np.abs(normal @ mat[geoms]) * m.geom_aabb[geoms, 3:], axis=1)
      heights.append(low.min() / normal[2])
    if heights:
      d.qpos[m.jnt_qposadr[joint] + 2] -= min(heights) + depth
