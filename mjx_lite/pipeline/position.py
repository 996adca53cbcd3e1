"""Stages that depend on positions.

Tests: tests/parity/test_stages.py, tests/parity/test_stages_alone.py.
"""

from typing import Any

import jax
import jax.numpy as jnp

from mjx_lite.actuator import transmission as transmission_
from mjx_lite.collision import driver, surface
from mjx_lite.collision.shapes import NO_CONTACT
from mjx_lite.model import callbacks as user
from mjx_lite.model import status
from mjx_lite.model.status import Warning
from mjx_lite.model.types import Data, Model
from mjx_lite.smooth import (
  com,
  inertia,
  mass,
)
from mjx_lite.smooth import kinematics as kinematics_
from mjx_lite.tendon import inertia as tendon_inertia
from mjx_lite.tendon import tendon as tendon_


def kinematics(m: Model, d: Data) -> Data:
  """Compute poses of bodies, joints, geoms and sites."""
  return d.replace(**kinematics_.kinematics(m, d.qpos, d.mocap_pos, d.mocap_quat)._asdict())


def com_pos(m: Model, d: Data) -> Data:
  """Compute centres of mass, and inertias and dof axes about the tree's centre of mass."""
  return d.replace(**com.com_pos(m, d.xipos, d.ximat, d.xmat, d.xanchor, d.xaxis)._asdict())


def camlight(m: Model, d: Data) -> Data:
  """Compute poses of cameras and lights."""
  return d.replace(**com.camlight(m, d.xpos, d.xquat, d.subtree_com)._asdict())


def tendon(m: Model, d: Data) -> Data:
  """Compute tendon lengths and their Jacobian."""
  if not m.ntendon:
    return d
  t = tendon_.tendon(m, d.qpos, d.site_xpos, d.geom_xpos, d.geom_xmat, d.subtree_com, d.cdof)
  return d.replace(**t._asdict())


def crb(m: Model, d: Data) -> Data:
  """Compute composite inertias and M."""
  return d.replace(**inertia.crb(m, d.cinert, d.cdof)._asdict())


def composite(m: Model, d: Data) -> jax.Array:
  """Return composite inertias (nbody, 10, W), computed again if Data does not keep them."""
  return d.crb if hasattr(d, "crb") else inertia.crb(m, d.cinert, d.cdof).crb


def tendon_armature(m: Model, d: Data) -> Data:
  """Add the armature of the tendons to M."""
  return d.replace(M=d.M + tendon_inertia.inertia(m, d.ten_J)) if m.plan.tendon_inertia.present else d


def factor_m(m: Model, d: Data) -> Data:
  """Compute the sparse factor of M."""
  return d.replace(**mass.packed(m, mass_factor(m, d), d.cdof)._asdict())


def collision(m: Model, d: Data) -> Data:
  """Compute contacts."""
  c = driver.collide(m, d.geom_xpos, d.geom_xmat)
  if c.found is not None:
    d = d.replace(status=status.mark_found(d.status, c.found, m.plan.collision.limits))
  params = {k: x for k, x in c.params._asdict().items() if k not in ("margin", "gap")}
  params.update({k: x for k in ("geom", "dim", "adhesion") if (x := getattr(c, k)) is not None})
  if "geom_surfacevel" not in m.layout.pruned:
    geom: Any = m.plan.collision.slot_geom if c.geom is None else c.geom
    params["surfacevel"] = surface.velocity(m, geom, d.geom_xpos, d.geom_xmat, c.pos, c.frame)
  if c.full is not None:
    d = d.replace(status=status.mark(d.status, Warning.CONTACTFULL, c.full))
  if c.lost_search is not None:
    d = d.replace(status=status.mark(d.status, Warning.CCD, c.lost_search))
  d = d.replace(
    contact=d.contact.replace(
      dist=c.dist, pos=c.pos, frame=c.frame, includemargin=c.params.margin, exclude=c.exclude, **params
    )
  )  # fmt: skip
  return d if m.layout.callbacks.contact is None else _without_refused(m, d)


def _without_refused(m: Model, d: Data) -> Data:
  """Take out the contacts that the user's function does not want."""
  if not m.plan.sizes["ncon"]:
    return d
  keep = user.call(m, d, "contact", m.plan.sizes["ncon"]).astype(bool)
  c = d.contact
  dist, exclude = jnp.where(keep, c.dist, jnp.asarray(NO_CONTACT, c.dist.dtype)), jnp.where(keep, c.exclude, -1)
  return d.replace(contact=c.replace(dist=dist, exclude=exclude))


def transmission(m: Model, d: Data) -> Data:
  """Compute actuator lengths and moments."""
  c = d.contact
  t = transmission_.transmission(
    m,
    transmission_.Pose(
      qpos=d.qpos,
      xquat=d.xquat,
      site_xpos=d.site_xpos,
      site_xmat=d.site_xmat,
      subtree_com=d.subtree_com,
      cdof=d.cdof,
      ten_length=d.ten_length,
      ten_J=d.ten_J,
      contact_pos=c.pos,
      contact_frame=c.frame,
      contact_exclude=c.exclude,
      contact_geom=c.geom,
    ),
  )
  return d.replace(actuator_length=t.length, actuator_moment=t.moment)


def fwd_position(m: Model, d: Data) -> Data:
  """Compute everything that depends on positions only, without constraint rows, which need velocities too."""
  d, _ = poses_and_inertias(m, d)
  d = collision(m, d)
  return transmission(m, d)


def poses_and_inertias(m: Model, d: Data) -> tuple[Data, Any]:
  """Compute poses, tendons and M, and return the factor of M besides."""
  d = kinematics(m, d)
  d = com_pos(m, d)
  d = camlight(m, d)
  d = tendon(m, d)
  d = crb(m, d)
  d = tendon_armature(m, d)
  factor = mass_factor(m, d)
  return d.replace(**mass.packed(m, factor, d.cdof)._asdict()), factor


def mass_factor(m: Model, d: Data) -> Any:
  """Return the factor of M."""
  return mass.factor(m, d.cinert, d.cdof, d.M)
