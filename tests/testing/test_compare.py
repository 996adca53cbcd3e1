"""The comparison with C itself: it finds a planted difference and names it. No engine is run here."""

import mujoco
import numpy as np
import pytest

from mjx_lite.cli import common
from mjx_lite.testing import compare


@pytest.fixture(scope="module")
def stepped():
  """The shipped humanoid on the ground, after one step of C, twice."""
  m = compare.optimal(common.load_model("humanoid"))
  d = common.initial_data(m)
  d.qpos[2] -= 0.005
  for _ in range(3):
    mujoco.mj_step(m, d)
  assert d.ncon
  return m, d


def _differences(m, ours, theirs):
  known = {field for fields in compare.STAGE_FIELDS.values() for field in fields}
  return list(compare._differences(m, ours, theirs, known))


def _copy(m, d):
  other = mujoco.MjData(m)
  mujoco.mj_copyData(other, m, d)
  return other


def test_equal_data_have_no_difference(stepped):
  m, d = stepped
  errors = _differences(m, _copy(m, d), d)
  assert all(error.ok and error.worst == 0 for error in errors)
  # the stages and the fields come in the order of the table
  order = [field for fields in compare.STAGE_FIELDS.values() for field in fields]
  assert [e.field for e in errors] == [field for field in order if field in {e.field for e in errors}]
  assert {"xpos", "contact.dist", "efc_J", "M", "qacc", "qpos"} <= {e.field for e in errors}


@pytest.mark.parametrize(
  "field, index, stage, name",
  [
    ("xpos", (7, 2), "kinematics", "body 'left_foot' component 2"),
    ("qacc", (8,), "solve", "joint 'spine_roll' dof 0"),
    ("qpos", (3,), "integrate", "joint 'root' component 3"),
    ("actuator_force", (0,), "fwd_actuation", "actuator 'spine_yaw'"),
    ("efc_aref", (5,), "reference_constraint", "row 5, contact 1 of 'floor' and 'left_foot_outer' direction 1"),
    ("M", (4,), "crb", "joint 'root' dof 2, joint 'root' dof 1"),
  ],
)
def test_a_planted_difference_is_named(stepped, field, index, stage, name):
  m, d = stepped
  if field == "xpos":
    index = (mujoco.mj_name2id(m, mujoco.mjtObj.mjOBJ_BODY, "left_foot"), 2)
  if field == "M":
    index = (int(m.M_rowadr[2]) + 1,)
  ours = _copy(m, d)
  getattr(ours, field)[index] += 1.0
  bad = [e for e in _differences(m, ours, d) if not e.ok]
  assert [(e.stage, e.field, e.element, e.name) for e in bad] == [(stage, field, index, name)]
  assert field in str(bad[0]) and name in str(bad[0])


def test_another_number_of_contacts_is_a_difference(stepped):
  m, d = stepped
  ours = _copy(m, d)
  ours.qpos[2] += 1
  mujoco.mj_forward(m, ours)
  bad = [e for e in _differences(m, ours, d) if not e.ok]
  assert any(e.field == "ncon" and e.ours == 0 and e.theirs == d.ncon and np.isinf(e.worst) for e in bad)


def test_relative_error_of_nan_and_of_integers():
  error = compare.relative_error(np.array([np.nan, 1.0, 2.0]), np.array([1.0, 1.0, 1.0]))
  np.testing.assert_array_equal(error, [np.inf, 0, 1])
  np.testing.assert_array_equal(compare.relative_error(np.array([1, 2]), np.array([1, 3])), [0, np.inf])


def test_unknown_field_is_refused(stepped):
  m, d = stepped
  with pytest.raises(ValueError, match="no_such_field"):
    compare.compare_stages(m, d, ["no_such_field"])
