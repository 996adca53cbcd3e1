"""A humanoid balances on one leg: LQR about a pose that MuJoCo C finds, through the contacts of the foot."""

import pathlib

import jax.numpy as jnp
import mujoco
import numpy as np
import pytest
import scipy.optimize

import mjx_lite as mjx
from mjx_lite import control

BENT = ("left_hip_roll", "spine_roll", "left_ankle", "left_hip_pitch")
SOLE = ("left_foot_outer", "left_foot_inner")


def one_leg():
  """Model and MjData on the left leg: the centre of mass above the flat foot, the servos' torques and the ground hold it."""
  c = mujoco.MjModel.from_xml_path(str(pathlib.Path(mjx.__file__).parent / "models" / "humanoid.xml"))
  d, foot, sole = mujoco.MjData(c), c.body("left_foot").id, [c.geom(x).id for x in SOLE]
  at = lambda name: c.joint(name).qposadr[0]  # noqa: E731
  lifted = c.key_qpos[0].copy()
  for name, angle in dict(right_hip_pitch=0.5, right_knee=0.7, right_shoulder_roll=0.5, left_shoulder_roll=0.3).items():
    lifted[at(name)] += angle

  def pose(z):
    d.qpos[:] = lifted
    d.qpos[3:7] = [np.cos(z[0] / 2), np.sin(z[0] / 2), 0, 0]
    d.qpos[[at(x) for x in BENT]] += z[1:]
    mujoco.mj_kinematics(c, d)
    mujoco.mj_comPos(c, d)
    away = d.subtree_com[1] - d.geom_xpos[sole].mean(0)
    return np.concatenate([10 * away[:2], 10 * d.xmat[foot, 6:8], 0.1 * z])

  pose(scipy.optimize.least_squares(pose, np.zeros(5)).x)
  qpos = d.qpos.copy()

  def lifting(height):
    d.qpos[:], d.qpos[2] = qpos, height
    d.qvel[:], d.qacc[:] = 0, 0
    mujoco.mj_inverse(c, d)
    return d.qfrc_inverse[2]

  touching = qpos[2] - min(d.geom_xpos[sole, 2] - c.geom_size[sole, 0])
  lifting(scipy.optimize.brentq(lifting, touching - 0.01, touching - 1e-6))
  moment = np.zeros((c.nu, c.nv))
  mujoco.mju_sparse2dense(moment, d.actuator_moment, d.moment_rownnz, d.moment_rowadr, d.moment_colind)
  d.ctrl[:] = np.linalg.lstsq(moment.T, d.qfrc_inverse, rcond=None)[0]
  return c, d


@pytest.mark.slow
def test_lqr_balances_a_humanoid_on_one_leg():
  c, mj_data = one_leg()
  assert np.abs(mj_data.ctrl).max() < 1
  com, foot = np.zeros((3, c.nv)), np.zeros((3, c.nv))
  mujoco.mj_jacSubtreeCom(c, mj_data, com, 1)
  mujoco.mj_jacBodyCom(c, mj_data, foot, None, c.body("left_foot").id)
  sway = (com - foot)[:2]
  Q = np.zeros((2 * c.nv, 2 * c.nv))
  Q[: c.nv, : c.nv] = 1000 * sway.T @ sway + np.diag([0.0] * 6 + [1.0] * (c.nv - 6))
  Q[c.nv :, c.nv :] = 1e-3 * np.eye(c.nv)
  m = mjx.put_model(c)
  d = mjx.put_data(c, mj_data)
  push = jnp.zeros(c.nv).at[:2].set(0.05)  # [m/s]

  @mjx.jit
  def balance(d):
    A, B = control.linearize(m, d)
    K = control.lqr(A, B, jnp.asarray(Q), jnp.eye(c.nu)).K
    balanced = mjx.rollout(m, d.replace(qvel=push), control.feedback(m, d, K), steps=800)[0]
    return balanced.qpos, mjx.rollout(m, d.replace(qvel=push), steps=400)[0].qpos

  balanced, fallen = balance(d)
  np.testing.assert_allclose(balanced[:3], mj_data.qpos[:3], atol=0.02)
  assert fallen[2] < 0.5 < balanced[2]
