"""All index tables of a model, which `put_model` makes once.

Tests: tests/parity/test_stages.py, tests/io/test_io.py.
"""

from typing import Any, NamedTuple

import numpy as np

from mjx_lite.actuator import plan as actuator
from mjx_lite.actuator import transmission
from mjx_lite.collision import driver
from mjx_lite.constraint import assemble, contact, contact_force, jacobian
from mjx_lite.integrate import advance
from mjx_lite.math.symmetric import SymmetricPlan
from mjx_lite.sensor import driver as sensor
from mjx_lite.smooth import (
  articulated_plan,
  com,
  derivative,
  effective,
  fluid,
  geom_const,
  inertia,
  joint_params,
  kinematics,
  passive,
  plastic,
  set_const,
)
from mjx_lite.smooth import jacobian as body_jacobian
from mjx_lite.tendon import force as tendon_force
from mjx_lite.tendon import inertia as tendon_inertia
from mjx_lite.tendon import tendon


class Plan(NamedTuple):
  """Index tables of the subsystems."""

  kinematics: kinematics.KinematicsPlan
  com: com.ComPlan
  inertia: SymmetricPlan
  articulated: articulated_plan.ArticulatedPlan
  joint_params: joint_params.JointParamsPlan
  passive: passive.PassivePlan
  plastic: plastic.PlasticPlan
  fluid: fluid.FluidPlan
  tendon: tendon.TendonPlan
  tendon_force: tendon_force.TendonForcePlan
  tendon_inertia: tendon_inertia.TendonInertiaPlan
  transmission: transmission.TransmissionPlan
  derivative: derivative.DerivativePlan
  effective: effective.EffectivePlan
  actuator: actuator.ActuatorPlan
  collision: driver.CollisionPlan
  contact: contact.ContactPlan
  rows: assemble.RowPlan
  jacobian: jacobian.JacobianPlan
  advance: advance.AdvancePlan
  jacobians: body_jacobian.JacobiansPlan
  contact_force: contact_force.ContactForcePlan
  geom_const: geom_const.GeomConstPlan
  set_const: set_const.SetConstPlan
  sensor: sensor.SensorPlan

  @property
  def sizes(self) -> dict[str, int]:
    """Sizes of Data: contact slots, constraint rows, entries of the actuators' moments (fewer than mjModel.nJmom), limits."""
    return dict(
      ncon=len(self.collision.slot_pair), nefc=len(self.rows.type), nJmom=len(self.transmission.entry_out),
      nlimit=len(self.collision.limits),
    )  # fmt: skip


def plan(
  s: dict[str, Any],
  values: dict[str, np.ndarray],
  pruned: frozenset[str],
  collision: driver.CollisionPlan,
  elliptic: bool,
  timestep: float,
) -> Plan:
  """Make the index tables of every subsystem.

  Args:
    s: static fields of the model, by mjModel's names.
    values: float fields with their values in put_model, by mjModel's names.
    pruned: float fields whose terms are left out.
    collision: candidates and contact slots.
    elliptic: whether friction cones are elliptic.
    timestep: timestep in put_model [s].
  """
  contacts = contact.plan(s, collision, elliptic, "geom_adhesion" not in pruned)
  about_com, inertias, tendons = com.plan(s), inertia.plan(s), tendon.plan(s)
  moments = transmission.plan({**s, **_pairs_of_bodies(s, collision, contacts.chosen)})
  slopes = derivative.plan(s, inertias, moments, tendons)
  rows = assemble.plan(s, pruned, contacts, tendons.movable)
  slots = dict(slot_body=collision.slot_body, slot_geom=np.reshape(collision.slot_geom, (-1, 2)), slot_chosen=contacts.chosen)
  sensors = sensor.plan({**s, **slots, "row_type": rows.type, "row_id": rows.id}, values, timestep)
  is_ellipsoid = values["geom_fluid"][:, 0] > 0
  return Plan(
    kinematics=kinematics.plan(s), com=about_com, inertia=inertias, articulated=articulated_plan.plan(s),
    joint_params=joint_params.plan(s), passive=passive.plan(s, pruned), plastic=plastic.plan(s),
    fluid=fluid.plan(s, pruned, about_com, is_ellipsoid),
    tendon=tendons, tendon_force=tendon_force.plan(s, pruned, tendons), tendon_inertia=tendon_inertia.plan(s, pruned, tendons),
    transmission=moments, derivative=slopes, effective=effective.plan(s, moments, tendons, slopes),
    actuator=actuator.plan(s, values), collision=collision, contact=contacts, rows=rows, jacobian=jacobian.plan(s, rows),
    advance=advance.plan(s), jacobians=body_jacobian.plan(s),
    contact_force=contact_force.plan(s, collision.slot_body, rows.address),
    geom_const=geom_const.plan(s, is_ellipsoid), set_const=set_const.plan(s, about_com), sensor=sensors,
  )  # fmt: skip


def _pairs_of_bodies(s: dict[str, Any], c: driver.CollisionPlan, chosen: bool) -> dict[str, Any]:
  """Return the tables of bodies that can touch."""
  pair_body = s["geom_bodyid"][np.stack([c.geom1, c.geom2], axis=-1)].astype(int).reshape(-1, 2)
  return dict(slot_body=c.slot_body, slot_chosen=chosen, pair_body=pair_body)
