"""Index tables of the actuators: the actuators of each law, and the addresses of their inputs, states and outputs.

There are three index spaces: actuators (nactuator), controls (nu) and outputs (nout). An actuator has any number of controls
and of states, and one output or three.

Tests: tests/actuator/test_actuator_trajectories.py, tests/actuator/test_servos.py.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from mjx_lite.actuator import history
from mjx_lite.model.enums import BiasType, CtrlChart, CtrlInput, DynType, GainType, JointType, TrnType

# columns of ActuatorPlan.slot
SLEW, INTEGRAL, TEMPERATURE, BRISTLE, CURRENT = range(5)
# columns of ActuatorPlan.input
INPUTS = (CtrlInput.POS, CtrlInput.VEL, CtrlInput.FF, CtrlInput.VOLTAGE)
# values of ActuatorPlan.circle
NO_CIRCLE, BALL_CIRCLE, SITE_CIRCLE = range(3)


class Group(NamedTuple):
  """The actuators that share a law."""

  kind: int
  actuators: np.ndarray  # ids
  first_ctrl: np.ndarray  # address of each actuator's first control, -1 for none
  last_act: np.ndarray  # address of each actuator's last state, -1 for none
  outputs: np.ndarray  # all outputs of these actuators, in order


class ActuatorPlan(NamedTuple):
  """Index tables, by actuator unless said otherwise; -1 means none."""

  dynamics: tuple[Group, ...]
  gains: tuple[Group, ...]
  biases: tuple[Group, ...]
  slot: np.ndarray  # (nactuator, 5) addresses of the states slew, integral, temperature, bristle, current
  input: np.ndarray  # (nactuator, 4) addresses of the controls position, velocity, feed-forward, voltage
  source: np.ndarray  # address in (ctrl, act) of the gain's input
  circle: np.ndarray  # kind of circle on which a setpoint is: NO_CIRCLE, BALL_CIRCLE or SITE_CIRCLE
  owner: np.ndarray  # (nout,) actuator of an output
  act_owner: np.ndarray  # (na,) actuator of a state
  ctrl0: np.ndarray  # (nu,) controls after a reset
  tendon_out: np.ndarray  # outputs on tendons whose total force is limited
  tendon: np.ndarray  # tendons of these outputs
  delayed: np.ndarray  # actuators with a history
  delayed_ctrl: np.ndarray  # (n, d) controls of these actuators
  history: history.HistoryPlan
  history0: np.ndarray  # (nhistory, 2) initial history: a constant, and a multiple of the timestep


def plan(s: Mapping[str, Any], values: Mapping[str, np.ndarray]) -> ActuatorPlan:
  """Build the index tables.

  Args:
    s: static fields of the model.
    values: float fields of the model when it is put. Positive parameters determine the states of an actuator, so these states
      are fixed then.
  """
  owner = np.repeat(np.arange(s["nactuator"]), s["actuator_outnum"])
  slot = slots(s, values)
  tendon_out, tendon = _limited_tendons(s)
  delayed = np.flatnonzero(s["actuator_history"][:, 0] > 0)
  buffers = history.plan(s["actuator_history"][delayed, 0], s["actuator_historyadr"][delayed], s["actuator_ctrlnum"][delayed])
  column = np.arange(buffers.value.shape[2])
  ctrl0 = _initial_ctrl(s)
  delayed_ctrl = np.where(column < s["actuator_ctrlnum"][delayed, None], s["actuator_ctrladr"][delayed, None] + column, -1)
  return ActuatorPlan(
    dynamics=_groups(s, s["actuator_dyntype"], DynType.NONE),
    gains=_groups(s, s["actuator_gaintype"], None),
    biases=_groups(s, s["actuator_biastype"], BiasType.NONE),
    slot=slot,
    input=_inputs(s),
    source=_source(s, slot),
    circle=_circle(s),
    owner=owner,
    act_owner=np.repeat(np.arange(s["nactuator"]), s["actuator_actnum"]),
    ctrl0=ctrl0,
    tendon_out=tendon_out,
    tendon=tendon,
    delayed=delayed,
    delayed_ctrl=delayed_ctrl,
    history=buffers,
    history0=history.initial(buffers, s["nhistory"], np.append(ctrl0, 0)[delayed_ctrl]),
  )


def slots(s: Mapping[str, Any], values: Mapping[str, np.ndarray]) -> np.ndarray:
  """Return the addresses (nactuator, 5) of the states of motors and controllers, -1 for none. Source: `mj_dcmotorSlots`."""
  dyn, gain = values["actuator_dynprm"], values["actuator_gainprm"]
  has = np.zeros((s["nactuator"], 5), bool)
  motor, pid = s["actuator_dyntype"] == DynType.DCMOTOR, s["actuator_dyntype"] == DynType.PID
  has[motor] = np.stack([dyn[:, 7], gain[:, 5], dyn[:, 2], dyn[:, 5], dyn[:, 0]], axis=1)[motor] > 0
  has[pid, SLEW] = dyn[pid, 1] > 0
  has[pid, INTEGRAL] = gain[pid, 0] > 0
  return np.where(has, s["actuator_actadr"][:, None] + has.cumsum(axis=1) - 1, -1)


def _groups(s, kinds, ignored) -> tuple[Group, ...]:
  groups = []
  for kind in np.unique(kinds):
    if kind == ignored:
      continue
    actuators = np.flatnonzero(kinds == kind)
    adr, num = s["actuator_outadr"][actuators], s["actuator_outnum"][actuators]
    last = s["actuator_actadr"] + s["actuator_actnum"] - 1
    outputs = np.concatenate([a + np.arange(n) for a, n in zip(adr, num, strict=True)])
    ctrl = np.where(s["actuator_ctrlnum"][actuators] > 0, s["actuator_ctrladr"][actuators], -1)
    act = np.where(s["actuator_actnum"][actuators] > 0, last[actuators], -1)
    groups.append(Group(int(kind), actuators, first_ctrl=ctrl, last_act=act, outputs=outputs))
  return tuple(groups)


def _inputs(s) -> np.ndarray:
  """Return the controls of controllers in the order of INPUTS; absent controls take no address."""
  has = (s["actuator_ctrlspec"][:, None] & np.array(INPUTS)) > 0
  has &= np.isin(s["actuator_gaintype"], (GainType.PID, GainType.DCMOTOR))[:, None]
  return np.where(has, s["actuator_ctrladr"][:, None] + has.cumsum(axis=1) - 1, -1)


def _source(s, slot) -> np.ndarray:
  """Return the address in (ctrl, act) of the gain's input, -1 for none.

  A PID controller reads its integral, a DC motor its current; any other actuator reads its last state, or else its control.
  """
  ctrl = np.where(s["actuator_ctrlnum"] > 0, s["actuator_ctrladr"], -1)
  act = np.where(s["actuator_actnum"] > 0, s["actuator_actadr"] + s["actuator_actnum"] - 1, -1)
  pid, motor = s["actuator_gaintype"] == GainType.PID, s["actuator_gaintype"] == GainType.DCMOTOR
  act = np.where(pid, slot[:, INTEGRAL], np.where(motor, slot[:, CURRENT], act))
  return np.where(act >= 0, s["nu"] + act, np.where(pid | motor, -1, ctrl))


def _circle(s) -> np.ndarray:
  """Find the servos and controllers whose transmission can make a full rotation. Source: `wrapPeriod`."""
  dyn = (DynType.NONE, DynType.INTEGRATOR, DynType.FILTER, DynType.FILTEREXACT)
  servo = (s["actuator_gaintype"] == GainType.FIXED) & (s["actuator_biastype"] == BiasType.AFFINE)
  servo = servo & np.isin(s["actuator_dyntype"], dyn) | (s["actuator_gaintype"] == GainType.PID)
  trn, target = s["actuator_trntype"], s["actuator_trnid"]
  joint = np.isin(trn, (TrnType.JOINT, TrnType.JOINTINPARENT))
  joint[joint] = s["jnt_type"][target[joint, 0]] == JointType.BALL
  site = (trn == TrnType.SITE) & (target[:, 1] >= 0)
  return np.where(servo & joint, BALL_CIRCLE, np.where(servo & site, SITE_CIRCLE, NO_CIRCLE))


def _limited_tendons(s) -> tuple[np.ndarray, np.ndarray]:
  on = s["actuator_trntype"] == TrnType.TENDON
  on[on] = s["tendon_actfrclimited"][s["actuator_trnid"][on, 0]].astype(bool)
  return s["actuator_outadr"][on], s["actuator_trnid"][on, 0]


def _initial_ctrl(s) -> np.ndarray:
  """Return zero controls, with the identity for commanded quaternions. Source: `mj_resetCtrl`."""
  ctrl = np.zeros(s["nu"])
  quat = (s["actuator_gaintype"] == GainType.SO3) & (s["actuator_ctrlspec"] == CtrlChart.QUAT)
  ctrl[s["actuator_ctrladr"][quat]] = 1
  return ctrl
