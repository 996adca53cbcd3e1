"""All index tables of a model, made once by `put_model`."""

from typing import Any, NamedTuple

import numpy as np

from mjx_lite.actuator import plan as actuator
from mjx_lite.collision import driver
from mjx_lite.constraint import assemble, contact, jacobian
from mjx_lite.integrate import advance
from mjx_lite.smooth import articulated, com, inertia, kinematics, passive, transmission


class Plan(NamedTuple):
  """Index tables of the subsystems."""

  kinematics: kinematics.KinematicsPlan
  com: com.ComPlan
  inertia: inertia.InertiaPlan
  articulated: articulated.ArticulatedPlan
  passive: passive.PassivePlan
  transmission: transmission.TransmissionPlan
  actuator: actuator.ActuatorPlan
  collision: driver.CollisionPlan
  contact: contact.ContactPlan
  rows: assemble.RowPlan
  jacobian: jacobian.JacobianPlan
  advance: advance.AdvancePlan

  @property
  def sizes(self) -> dict[str, int]:
    """Sizes of Data: contact slots, constraint rows, and entries of the actuators' moments (fewer than mjModel.nJmom)."""
    return dict(ncon=len(self.collision.slot_pair), nefc=len(self.rows.type), nJmom=len(self.transmission.entry_out))


def plan(s: dict[str, Any], values: dict[str, np.ndarray], pruned: frozenset[str], filter_parent: bool) -> Plan:
  """Plan every subsystem.

  Args:
    s: static fields of the model, by mjModel's names.
    values: float fields as they are when the model is put, by mjModel's names.
    pruned: float fields whose terms are left out.
    filter_parent: whether geoms of parent and child do not collide.
  """
  collision = driver.plan(s, filter_parent)
  contacts = contact.plan(s, collision.slot_body, collision.slot_dim)
  rows = assemble.plan(s, "dof_frictionloss" not in pruned, contacts)
  return Plan(
    kinematics.plan(s), com.plan(s), inertia.plan(s), articulated.plan(s), passive.plan(s, pruned),
    transmission.plan({**s, "slot_body": collision.slot_body}), actuator.plan(s, values),
    collision, contacts, rows, jacobian.plan(s, rows.equality, rows.friction_dof, rows.limit), advance.plan(s),
  )  # fmt: skip
