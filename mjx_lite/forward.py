"""The step and its stages, on the native layout (world axis last).

Each stage reads arrays from Data, calls one algorithm, and stores the returned record: this file lists which stage reads and
writes which field. Values that are too large for Data (the factor of M, the constraint Jacobian) are passed on in `Work`. A
stage that is called alone computes these values again from Data.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mjx_lite.actuator import activation, history
from mjx_lite.actuator import force as actuator_force
from mjx_lite.actuator.state import UserLaws
from mjx_lite.collision import driver, mixing, surface
from mjx_lite.collision.shapes import NO_CONTACT
from mjx_lite.constraint import adhesion, assemble, contact, contact_force, discrete, equality, jacobian, limit, soft
from mjx_lite.constraint.rows import Jacobian, Rows
from mjx_lite.integrate import adaptive, advance, rk4
from mjx_lite.integrate import euler as euler_
from mjx_lite.integrate import implicit as implicit_
from mjx_lite.math import linalg, safe, vector
from mjx_lite.model import callbacks as user
from mjx_lite.model import pytree, status
from mjx_lite.model.callbacks import Callbacks
from mjx_lite.model.enums import MAXVAL, BiasType, ConstraintType, DynType, GainType, IntegratorType, SensorType, Stage
from mjx_lite.model.status import Warning
from mjx_lite.model.types import Data, Model
from mjx_lite.ops import linear
from mjx_lite.ops.select import join, put
from mjx_lite.sensor import driver as sensor
from mjx_lite.smooth import (
  applied,
  com,
  derivative,
  effective,
  energy,
  fluid,
  inertia,
  mass,
  momentum,
  plastic,
  tendon_force,
  tendon_inertia,
)
from mjx_lite.smooth import kinematics as kinematics_
from mjx_lite.smooth import passive as passive_
from mjx_lite.smooth import rne as rne_
from mjx_lite.smooth import tendon as tendon_
from mjx_lite.smooth import transmission as transmission_
from mjx_lite.solver import cost, dual, implicit_diff, noslip, operator, primal, statistics


class Work(NamedTuple):
  """Values that the stages of one step pass on besides Data."""

  factor: Any  # of M
  rows: Rows


# ------------------------------------------------------------------------------------------------------- position


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
  return d.replace(**mass.packed(m, _factor(m, d), d.cdof)._asdict())


def collision(m: Model, d: Data) -> Data:
  """Compute contacts."""
  d = _collision(m, d)
  if m.layout.callbacks.contact is None or not m.plan.sizes["ncon"]:
    return d
  keep = user.call(m, d, "contact", m.plan.sizes["ncon"]).astype(bool)
  c = d.contact
  dist, exclude = jnp.where(keep, c.dist, jnp.asarray(NO_CONTACT, c.dist.dtype)), jnp.where(keep, c.exclude, -1)
  return d.replace(contact=c.replace(dist=dist, exclude=exclude))


def _collision(m: Model, d: Data) -> Data:
  c = driver.collide(m, d.geom_xpos, d.geom_xmat)
  if m.plan.contact.chosen:
    lost = status.mark(d.status, Warning.PAIRFULL, c.lost_pair)
    d = d.replace(status=status.mark(lost, Warning.CONTACTFULL, c.lost_contact))
  params = {k: x for k, x in c.params._asdict().items() if k not in ("margin", "gap")}
  params.update({k: x for k in ("geom", "dim", "adhesion") if (x := getattr(c, k)) is not None})
  if "geom_surfacevel" not in m.layout.pruned:
    geom: Any = m.plan.collision.slot_geom if c.geom is None else c.geom
    params["surfacevel"] = surface.velocity(m, geom, d.geom_xpos, d.geom_xmat, c.pos, c.frame)
  if c.full is not None:
    d = d.replace(status=status.mark(d.status, Warning.CONTACTFULL, c.full))
  if c.lost_search is not None:
    d = d.replace(status=status.mark(d.status, Warning.CCD, c.lost_search))
  return d.replace(
    contact=d.contact.replace(
      dist=c.dist, pos=c.pos, frame=c.frame, includemargin=c.params.margin, exclude=c.exclude, **params
    )
  )  # fmt: skip


def make_constraint(m: Model, d: Data) -> Data:
  """Compute constraint rows."""
  return _make_constraint(m, d)[0]


def _has_rows(m: Model) -> bool:
  """Return whether constraint rows can be active. Without dofs, C has contacts but no rows."""
  return bool(m.plan.sizes["nefc"] and m.nv)


def _make_constraint(m: Model, d: Data, factor: Any = None) -> tuple[Data, Rows]:
  """Compute constraint rows. `factor` is the factor of M, if it is known."""
  solve = None
  if m.opt.use_diagexact and _has_rows(m):
    factor = _factor(m, d) if factor is None else factor
    solve = functools.partial(mass.solve, m, factor)
  rows = assemble.make_constraint(m, _equality_state(d), _contacts(m, d), solve)
  has_rows = (d.contact.exclude == 0) & (m.nv > 0)
  d = d.replace(
    efc_pos=rows.pos, efc_margin=rows.margin,
    efc_frictionloss=rows.frictionloss, efc_diagA=rows.diagA, efc_KBIP=rows.KBIP, efc_D=rows.D, efc_R=rows.R,
    efc_vel=rows.vel, efc_aref=rows.aref, contact=d.contact.replace(mu=jnp.where(has_rows, rows.contact_mu, 0)),
  )  # fmt: skip
  return d.replace(efc_type=_row_types(m, d)) if m.plan.contact.mixed else d, rows


def _row_types(m: Model, d: Data) -> jax.Array:
  """Return the types of the rows (nefc, W), where the types of contact rows depend on the geoms in contact."""
  first = m.plan.contact_force.first_row
  frictional = jnp.repeat(d.contact.dim > 1, m.plan.contact.nrow, axis=0)
  cone = m.plan.rows.type[first:, None]
  kind = jnp.where(frictional, cone, int(ConstraintType.CONTACT_FRICTIONLESS)).astype(d.efc_type.dtype)
  return join([d.efc_type[:first], kind])


def transmission(m: Model, d: Data) -> Data:
  """Compute actuator lengths and moments."""
  c = d.contact
  t = transmission_.transmission(
    m,
    transmission_.Pose(
      d.qpos,
      d.xquat,
      d.site_xpos,
      d.site_xmat,
      d.subtree_com,
      d.cdof,
      d.ten_length,
      d.ten_J,
      c.pos,
      c.frame,
      c.exclude,
      c.geom,
    ),
  )
  return d.replace(actuator_length=t.length, actuator_moment=t.moment)


def fwd_position(m: Model, d: Data) -> Data:
  """Compute everything that depends on positions only, without constraint rows, which need velocities too."""
  d = tendon(m, camlight(m, com_pos(m, kinematics(m, d))))
  d = factor_m(m, tendon_armature(m, crb(m, d)))
  return transmission(m, collision(m, d))


# ------------------------------------------------------------------------------------------------------- velocity


def com_vel(m: Model, d: Data) -> Data:
  """Compute body velocities."""
  return d.replace(**com.com_vel(m, d.cdof, d.qvel)._asdict())


def passive(m: Model, d: Data) -> Data:
  """Compute passive forces."""
  f = passive_.passive(m, d.qpos, d.qvel, d.cdof, d.xipos, d.subtree_com, d.plastic)
  if m.ntendon:
    t = tendon_force.forces(m, d.ten_length, d.ten_velocity, d.ten_J, d.plastic)
    f = f._replace(spring=f.spring + t.spring, damper=f.damper + t.damper, passive=f.passive + t.spring + t.damper)
  d = d.replace(**{f"qfrc_{k}": x for k, x in f._asdict().items()})
  if not m.plan.fluid.exists or not m.opt.use_passive:
    d = d.replace(qfrc_fluid=jnp.zeros_like(d.qvel))
  else:
    drag = fluid.fluid(m, d.cdof, d.cvel, d.xipos, d.ximat, d.geom_xpos, d.geom_xmat, d.subtree_com)
    d = d.replace(qfrc_fluid=drag, qfrc_passive=d.qfrc_passive + drag)
  if m.plan.contact.adhesive:
    pull = adhesion.force(m, d.contact, d.cdof, d.subtree_com) if m.opt.use_passive else jnp.zeros_like(d.qvel)
    d = d.replace(qfrc_adhesion=pull, qfrc_passive=d.qfrc_passive + pull)
  if m.layout.callbacks.passive is None or not m.opt.use_passive:
    return d
  return d.replace(qfrc_passive=d.qfrc_passive + user.call(m, d, "passive", m.nv))


def rne(m: Model, d: Data, flg_acc: bool = False) -> Data:
  """Compute the bias force; with flg_acc, include the inertial forces of qacc, without armature."""
  if flg_acc:
    carried = rne_.rne_postconstraint(m, d.cinert, d.cdof, d.cvel, d.cdof_dot, d.qvel, d.qacc, jnp.zeros_like(d.cvel))
    return d.replace(qfrc_bias=vector.dot(d.cdof, carried.cfrc_int[m.dof_bodyid]))
  return d.replace(qfrc_bias=rne_.rne(m, d.cinert, d.cdof, d.cvel, d.cdof_dot, d.qvel))


def tendon_bias(m: Model, d: Data) -> Data:
  """Add the bias force of the tendons' armature."""
  if not m.plan.tendon_inertia.present:
    return d
  bias = tendon_inertia.bias(m, d.site_xpos, d.subtree_com, d.cvel, d.cdof_dot, d.qvel, d.ten_J)
  return d.replace(qfrc_bias=d.qfrc_bias + bias)


def energy_pos(m: Model, d: Data) -> Data:
  """Compute the potential energy."""
  return d.replace(energy=jnp.stack([energy.potential(m, d.qpos, d.xipos, d.ten_length, d.plastic), d.energy[1]]))


def energy_vel(m: Model, d: Data) -> Data:
  """Compute the kinetic energy."""
  return d.replace(energy=jnp.stack([d.energy[0], energy.kinetic(m, d.cinert, d.cdof, d.M, d.qvel)]))


def fwd_velocity(m: Model, d: Data) -> Data:
  """Compute everything that depends on positions and velocities only."""
  return _fwd_velocity(m, d)[0]


def _fwd_velocity(m: Model, d: Data, factor: Any = None) -> tuple[Data, Rows]:
  d = d.replace(actuator_velocity=transmission_.velocity(m, d.actuator_moment, d.qvel))
  if m.ntendon:
    d = d.replace(ten_velocity=tendon_.velocity(m, d.ten_J, d.qvel))
  d = tendon_bias(m, rne(m, passive(m, com_vel(m, d))))
  return _make_constraint(m, d, factor)


# --------------------------------------------------------------------------------------------------- acceleration


def fwd_actuation(m: Model, d: Data) -> Data:
  """Compute actuator forces and the time derivatives of activations."""
  if not m.opt.use_actuation or not m.nactuator:
    return d.replace(**{k: jnp.zeros_like(getattr(d, k)) for k in ("act_dot", "actuator_force", "qfrc_actuator")})
  ctrl, bad = actuator_force.effective_ctrl(m, d.time, d.ctrl, d.history)
  a = actuator_force.actuation(
    m, ctrl, d.act, d.actuator_length, d.actuator_velocity, d.actuator_moment, d.qfrc_gravcomp, _user_laws(m, d)
  )
  return d.replace(
    act_dot=a.act_dot, actuator_force=a.force, qfrc_actuator=a.qfrc, status=status.mark(d.status, Warning.BADCTRL, bad)
  )


def _user_laws(m: Model, d: Data) -> UserLaws:
  """Return the values of the user's functions for the actuators of type USER."""
  kinds = (m.actuator_dyntype == DynType.USER, m.actuator_gaintype == GainType.USER, m.actuator_biastype == BiasType.USER)
  sizes = ("act_dyn", m.na), ("act_gain", m.nactuator), ("act_bias", m.nactuator)
  return UserLaws(*(user.call(m, d, *x) if k.any() else None for k, x in zip(kinds, sizes, strict=True)))


def _control(m: Model, d: Data) -> Data:
  """Set the controls by the user's function, if there is one."""
  return d if m.layout.callbacks.control is None else d.replace(ctrl=user.call(m, d, "control", m.nu).astype(d.ctrl.dtype))


def fwd_acceleration(m: Model, d: Data) -> Data:
  """Compute the smooth force and the acceleration without constraints."""
  return _fwd_acceleration(m, d, _factor(m, d), _effective(m, d))


def _effective(m: Model, d: Data) -> effective.Effective | None:
  """Return the metric of the discrete integrator; None for other integrators."""
  if not (m.opt.is_discrete and m.nv):
    return None
  slopes = drag = None
  if m.plan.effective.has_actuator and m.opt.use_actuation:
    ctrl, _ = actuator_force.effective_ctrl(m, d.time, d.ctrl, d.history)
    x = (ctrl, d.act, d.actuator_length, d.actuator_velocity, d.qfrc_actuator, _user_laws(m, d))
    slopes = actuator_force.length_slope(m, *x), actuator_force.velocity_slope(m, *x)
  if derivative.with_medium(m):
    pose = (d.xipos, d.ximat, d.geom_xpos, d.geom_xmat, d.subtree_com)
    drag = derivative.of_trees(m, d.qvel, d.cinert, d.cdof, *pose, bias=False, drag_only=True)
  return effective.build(
    m,
    effective.Inputs(
      d.M, d.qpos, d.qvel, d.plastic, d.ten_length, d.ten_velocity, d.ten_J, d.actuator_moment, d.actuator_velocity,
      slopes, drag,
    ),
  )  # fmt: skip


def _in_metric(m: Model, d: Data, rows: Rows, metric: effective.Effective) -> tuple[Data, Rows, jax.Array]:
  """Convert the rows of `make_constraint` to the effective metric. Also return the mask (nv, W) of dofs that rows act on."""
  if not _has_rows(m):
    return d, rows, jnp.zeros(d.qvel.shape, bool)
  pull = adhesion.share(m, d.contact.adhesion, d.contact.dim) if m.plan.contact.adhesive else None
  rows, touched = discrete.in_metric(m, rows, d.cdof, _shrinkage(m, d, rows, metric), pull)
  return d.replace(efc_aref=rows.aref, efc_R=rows.R, efc_D=rows.D, efc_diagA=rows.diagA), rows, touched


def _shrinkage(m: Model, d: Data, rows: Rows, metric: effective.Effective) -> jax.Array:
  """Return the factor (nefc, W) of the rows' inverse inertia in the effective metric: from diagonals, or exact."""
  if not m.opt.use_diagexact:
    diagonal = d.M[m.plan.inertia.diagonal_entry], jnp.diagonal(metric.matrix).T
    return discrete.shrinkage(m, rows, d.cdof, *diagonal)
  factors = mass.dense_factor(m, metric.backbone), _factor(m, d)
  solvers = [functools.partial(mass.solve, m, f) for f in factors]
  ahead, behind = (jacobian.inverse_diagonal(m, rows.jacobian, d.cdof, f) for f in solvers)
  return jacobian.first_of_contact(m, safe.divide(ahead, behind))


def _turn_freely(m: Model, d: Data, metric: effective.Effective, touched: jax.Array) -> Data:
  """Make the gyroscopic force implicit for the free bodies that no row acts on. Source: `mjd_freeGyro`."""
  p = m.plan.derivative
  if not len(p.free_body):
    return d
  force = d.qfrc_smooth + metric.shift
  turned = implicit_.solve_free(m, d.qacc, _free_effective(m, d, metric), force)
  if m.opt.contact_gradient in soft.WEIGHTS:
    turned = soft.felt(turned, d.qacc - d.qacc_smooth)
  return d.replace(qacc=jnp.where(_turns_freely(m, metric, touched), turned, d.qacc))


def _free_effective(m: Model, d: Data, metric: effective.Effective) -> jax.Array:
  """Return the metric's blocks (n, 6, 6, W) of trees with one free joint only, with their bias force included."""
  dof = m.plan.derivative.free_dof
  block = metric.matrix[dof[:, :, None], dof[:, None]]
  return block + implicit_.free_bias(m, d.qvel, d.xpos, d.xmat, d.subtree_com, composite(m, d))


def _turns_freely(m: Model, metric: effective.Effective, touched: jax.Array) -> jax.Array:
  """Return the mask (nv, W) of dofs of free bodies that no row acts on and that the metric does not couple."""
  dof = m.plan.derivative.free_dof
  alone = ~metric.coupled & ~jnp.any(touched[dof], axis=1)
  spread = np.zeros((m.nv, 1), bool)
  return put(jnp.asarray(spread), dof.ravel(), jnp.repeat(alone, 6, axis=0))


def _remade(m: Model, d: Data) -> tuple[Data, Rows]:
  """Return rows rebuilt from Data; with the discrete integrator, the rows before the conversion to its metric."""
  return _make_constraint(m, d) if m.opt.is_discrete else (d, _rows(m, d))


def _fwd_acceleration(m: Model, d: Data, factor: Any, metric: effective.Effective | None = None) -> Data:
  xfrc = applied.xfrc_accumulate(m, d.cdof, d.xipos, d.subtree_com, d.xfrc_applied)
  passive, actuator = linear.materialized((d.qfrc_passive, d.qfrc_actuator))
  smooth = linear.apart(passive - d.qfrc_bias + d.qfrc_applied + actuator + xfrc, passive, d.qfrc_bias, actuator)
  if metric is not None:
    acc = linalg.factor_solve(linalg.cholesky(metric.matrix), smooth + metric.shift)
    return d.replace(qfrc_smooth=smooth, qacc_smooth=acc)
  return d.replace(qfrc_smooth=smooth, qacc_smooth=mass.solve(m, factor, smooth))


def solve(m: Model, d: Data) -> Data:
  """Compute constraint forces and the acceleration."""
  return _solve(m, d, _rows(m, d), _effective(m, d))


def _solve(m: Model, d: Data, rows: Rows, in_metric: effective.Effective | None = None) -> Data:
  if not _has_rows(m):
    return d.replace(qacc=d.qacc_smooth, qfrc_constraint=jnp.zeros_like(d.qacc), solver_niter=d.solver_niter * 0)
  problem = _problem(m, d, rows, in_metric)
  metric, smooth = problem.metric, problem.qfrc_smooth
  solution = implicit_diff.solve(problem, d.qacc_warmstart)
  force = cost.zones(m.plan, rows, solution.jar).force if solution.force is None else solution.force
  qfrc = jacobian.mul_t(m, rows.jacobian, d.cdof, force)
  converged = solution.stopped | (primal.steepness(problem, solution.ma - smooth - qfrc) < m.opt.tolerance)
  qacc, niter = solution.qacc, solution.niter
  if m.opt.noslip_iterations:
    refined = noslip.refine(problem, dual.build(problem, operator.factor_m(m, metric)), force)
    force, qacc, niter = refined.force, refined.qacc, niter + refined.niter
    qfrc = jacobian.mul_t(m, rows.jacobian, d.cdof, force)
  return d.replace(
    qacc=qacc, efc_force=force, efc_state=cost.state(m.plan, rows, solution.jar), qfrc_constraint=qfrc,
    solver_niter=niter, status=status.mark(d.status, Warning.SOLVER, ~converged),
  )  # fmt: skip


def _problem(m: Model, d: Data, rows: Rows, in_metric: effective.Effective | None) -> primal.Problem:
  """Return the solver's minimization problem."""
  metric, smooth = operator.Metric(d.cinert, d.cdof, d.M), d.qfrc_smooth
  if in_metric is not None:
    metric, smooth = metric._replace(effective=in_metric.matrix, backbone=in_metric.backbone), smooth + in_metric.shift
  return primal.Problem(m, metric, rows, smooth, d.qacc_smooth, 1 / mass.trace(m, d.cinert, d.cdof, d.M))


# ------------------------------------------------------------------------------------------- on demand, not in a step


def solver_statistics(m: Model, d: Data) -> statistics.SolverStatistics:
  """Return what each iteration of the solver does in the state of d. The solver runs again; a step does not pay for this.

  Differs: C writes the statistics into MjData in every step.

  Args:
    m: the model.
    d: Data after forward, which leaves the warm start unchanged.
  """
  if not _has_rows(m):
    return statistics.none(m.opt.iterations, d.solver_niter * 0, d.qpos.dtype)
  metric, (d, rows) = _effective(m, d), _remade(m, d)
  if metric is not None:
    d, rows, _ = _in_metric(m, d, rows, metric)
  return statistics.collect(_problem(m, d, rows, metric), d.qacc_warmstart)


def subtree_vel(m: Model, d: Data) -> Data:
  """Compute velocities of the subtrees' centres of mass, and angular momenta about these centres."""
  return d.replace(**momentum.subtree_vel(m, d.cinert, d.cvel, d.subtree_com)._asdict())


def rne_postconstraint(m: Model, d: Data) -> Data:
  """Compute body accelerations relative to free fall, external and internal wrenches, all about the trees' centres of mass."""
  c = d.contact
  is_world = (np.arange(m.nbody) == 0)[:, None, None]
  ext = jnp.where(is_world, 0, applied.about_tree(m, d.xipos, d.subtree_com, d.xfrc_applied))
  if m.plan.contact.ncon:
    force = contact_force.local(m, d.efc_force, c)
    ext = ext + contact_force.on_bodies(m, force, c, d.subtree_com)
  if len(m.plan.rows.equality.point):
    ext = ext + equality.on_bodies(m, m.plan.rows.equality, _equality_state(d), d.efc_force)
  if len(m.plan.tendon.every_tendon):
    ext = ext + tendon_.on_bodies(m, _tension(m, d), d.site_xpos, d.geom_xpos, d.geom_xmat, d.subtree_com)
  carried = rne_.rne_postconstraint(m, d.cinert, d.cdof, d.cvel, d.cdof_dot, d.qvel, d.qacc, ext)
  return d.replace(**carried._asdict())


def _tension(m: Model, d: Data) -> jax.Array:
  """Return the sum of all forces along the tendons (ntendon, W)."""
  out = tendon_force.tension(m, d.ten_length, d.ten_velocity, d.plastic) + jacobian.on_tendons(m, d.efc_force)
  if len(m.plan.tendon_force.actuator):
    out = out + tendon_force.of_actuators(m, d.actuator_force)
  if m.plan.rows.equality.tendon.any():
    out = out + equality.on_tendons(m, m.plan.rows.equality, _equality_state(d), d.efc_force)
  if m.plan.tendon_inertia.present:
    x = (d.site_xpos, d.subtree_com, d.cvel, d.cdof_dot, d.qvel, d.qacc, d.ten_J)
    out = out + tendon_inertia.tension(m, *x)
  return out


# -------------------------------------------------------------------------------------------------------- sensors


def sensor_pos(m: Model, d: Data) -> Data:
  """Compute sensors that need positions only, and the energies if sensors read them.

  Differs: the sensor of kinetic energy always reads the energy of the present state. With the flag ENERGY, C reads that of the
  previous call: `mj_fwdVelocity`, which marks the energy as old, comes after the sensors that need positions only.
  """
  d = _sensors(m, d, m.plan.sensor.position)
  if not m.opt.use_sensor or SensorType.E_POTENTIAL not in m.plan.sensor.energies:
    return d
  d = energy_pos(m, d)
  return energy_vel(m, d) if SensorType.E_KINETIC in m.plan.sensor.energies else d


def sensor_vel(m: Model, d: Data) -> Data:
  """Compute sensors that need velocities."""
  return _sensors(m, d, m.plan.sensor.velocity)


def sensor_acc(m: Model, d: Data) -> Data:
  """Compute sensors that need accelerations or forces."""
  return _sensors(m, d, m.plan.sensor.acceleration)


def _sensors(m: Model, d: Data, stage: sensor.StagePlan) -> Data:
  if not m.opt.use_sensor or not stage.groups:
    return d
  d = _on_demand(m, d, stage)
  found = sensor.run(m, d, stage)
  if found.lost is not None:
    d = d.replace(status=status.mark(d.status, Warning.CCD, found.lost))
  return d.replace(sensordata=found.values)


def _on_demand(m: Model, d: Data, stage: sensor.StagePlan) -> Data:
  """Compute fields that the sensors of a stage read and that no other stage needs."""
  d = subtree_vel(m, d) if "subtree_vel" in stage.needs else d
  return rne_postconstraint(m, d) if "rne_postconstraint" in stage.needs else d


# ---------------------------------------------------------------------------------------------------------- inverse


def inverse(m: Model, d: Data, *, callbacks: Callbacks | None = None) -> Data:
  """Compute the force `qfrc_inverse` that produces `qacc`, and the constraint forces at that acceleration.

  With the flag INVDISCRETE, `qacc` is the difference of two velocities over the timestep, as the integrator would make it.

  Args:
    m: the model.
    d: the Data, with `qacc`.
    callbacks: the user's functions in the loop; static.

  Source: `mj_inverse`.
  """
  m = user.attach(m, callbacks)
  d, work = _forward_velocity(m, d)
  return _inverse(m, d, work, sensors=True)


def _inverse(m: Model, d: Data, work: Work, sensors: bool = False) -> Data:
  """Compute the part of `inverse` that depends on acceleration, from the rows of `make_constraint`."""
  if m.opt.is_discrete and m.nv:
    return _inverse_discrete(m, d, work, sensors)
  qacc = _continuous(m, d, work.factor) if m.opt.use_invdiscrete and m.nv else d.qacc
  d = _inverse_constraint(m, d, qacc, work.rows)
  if sensors:
    d = sensor_acc(m, d.replace(qacc=qacc)).replace(qacc=d.qacc)
  force = mass.mul(m, d.cinert, d.cdof, d.M, qacc) + d.qfrc_bias - d.qfrc_passive - d.qfrc_constraint
  return d.replace(qfrc_inverse=force)


def _inverse_discrete(m: Model, d: Data, work: Work, sensors: bool) -> Data:
  """Compute `_inverse` with the discrete integrator, whose acceleration always is a difference of velocities."""
  metric: Any = _effective(m, d)
  d, rows, touched = _in_metric(m, d, work.rows, metric)
  d = _inverse_constraint(m, d, d.qacc, rows)
  d = sensor_acc(m, d) if sensors else d
  force = vector.mat_vec(metric.matrix, d.qacc)
  if len(m.plan.derivative.free_body):
    turned = implicit_.mul_free(m, force, _free_effective(m, d, metric), d.qacc)
    force = jnp.where(_turns_freely(m, metric, touched), turned, force)
  return d.replace(qfrc_inverse=force - metric.shift + d.qfrc_bias - d.qfrc_passive - d.qfrc_constraint)


def _inverse_constraint(m: Model, d: Data, qacc: jax.Array, rows: Rows) -> Data:
  """Compute constraint forces at an acceleration (nv, W). Source: `mj_invConstraint`."""
  if not _has_rows(m):
    return d.replace(qfrc_constraint=jnp.zeros_like(qacc))
  jar = jacobian.mul(m, rows.jacobian, d.cdof, qacc) - rows.aref
  force = cost.zones(m.plan, rows, jar).force
  return d.replace(
    efc_force=force, efc_state=cost.state(m.plan, rows, jar), qfrc_constraint=jacobian.mul_t(m, rows.jacobian, d.cdof, force)
  )


def _continuous(m: Model, d: Data, factor: Any) -> jax.Array:
  """Return the acceleration for which the model's integrator gives the change of velocity `qacc`. Source: `mj_discreteAcc`."""
  if m.opt.integrator == IntegratorType.EULER:
    if not euler_.is_damped(m):
      return d.qacc
    force = euler_.mul(m, d.cinert, d.cdof, d.M, d.qvel, d.qacc)
  elif m.opt.integrator in (IntegratorType.IMPLICIT, IntegratorType.IMPLICITFAST):
    full = m.opt.integrator == IntegratorType.IMPLICIT
    packed, trees = _smooth_vel(m, d, bias=full)
    if full:
      force = implicit_.mul_full(m, d.M, packed, trees, d.qacc)
    else:
      force = implicit_.mul_fast(m, d.M, packed, trees, _free_blocks(m, d, packed, trees), d.qacc)
  else:
    raise ValueError(
      f"inverse dynamics with the flag INVDISCRETE is not defined for {IntegratorType(m.opt.integrator).name}: "
      "use EULER, IMPLICIT or IMPLICITFAST, or leave the flag off."
    )
  return mass.solve(m, factor, force)


def _compare_inverse(m: Model, d: Data) -> Data:
  """Compute `solver_fwdinv`: errors of inverse dynamics in constraint forces and inputs; zero without active constraints.

  Source: `mj_compareFwdInv`.
  """
  if not _has_rows(m):
    return d.replace(solver_fwdinv=jnp.zeros_like(d.solver_fwdinv))
  back = _inverse(m, d, Work(_factor(m, d), _remade(m, d)[1]))
  xfrc = applied.xfrc_accumulate(m, d.cdof, d.xipos, d.subtree_com, d.xfrc_applied)
  misses = d.qfrc_constraint - back.qfrc_constraint, d.qfrc_applied + d.qfrc_actuator + xfrc - back.qfrc_inverse
  norms = jnp.stack([safe.sqrt(vector.total(x * x)) for x in misses])
  constrained = jnp.any(d.efc_D > 0, axis=0)
  return d.replace(qfrc_inverse=back.qfrc_inverse, solver_fwdinv=jnp.where(constrained, norms, 0))


# ----------------------------------------------------------------------------------------------------------- step


def forward(
  m: Model, d: Data, *, skip_stage: int = Stage.NONE, skip_sensor: bool = False, callbacks: Callbacks | None = None
) -> Data:
  """Compute everything that the state and the inputs determine, without a change of time.

  Args:
    m: the model.
    d: the Data.
    skip_stage: Stage.POS if d already has all results that depend on positions, Stage.VEL if it has all results that depend
      on positions and velocities; static.
    skip_sensor: leave sensordata as it is; static.
    callbacks: the user's functions in the loop; static.

  Source: `mj_forwardSkip`.
  """
  m = user.attach(m, callbacks)
  d, work = _forward_velocity(m, d, int(skip_stage), skip_sensor)
  return _forward_acceleration(m, _control(m, d) if m.opt.use_actuation else d, work, skip_sensor)


def _forward_unwatched(m: Model, d: Data) -> Data:
  """Run forward without energies and sensors, which only the user reads."""
  d, work = _forward_velocity(m, d, skip_sensor=True, energies=False)
  return _forward_acceleration(m, _control(m, d) if m.opt.use_actuation else d, work, skip_sensor=True)


def _forward_velocity(
  m: Model, d: Data, skip_stage: int = Stage.NONE, skip_sensor: bool = False, energies: bool = True
) -> tuple[Data, Work]:
  energies = energies and m.opt.use_energy
  if skip_stage < Stage.POS:
    d = tendon(m, camlight(m, com_pos(m, kinematics(m, d))))
    d = tendon_armature(m, crb(m, d))
    factor = _factor(m, d)
    d = d.replace(**mass.packed(m, factor, d.cdof)._asdict())
    d = transmission(m, collision(m, d))
    d = d if skip_sensor else sensor_pos(m, d)
    d = energy_pos(m, d) if energies else d
  else:
    factor = _factor(m, d)
  if skip_stage >= Stage.VEL:
    d, rows = _remade(m, d)
    return d, Work(factor, rows)
  d, rows = _fwd_velocity(m, d, factor)
  d = d if skip_sensor else sensor_vel(m, d)
  return (energy_vel(m, d) if energies else d), Work(factor, rows)


def _forward_acceleration(m: Model, d: Data, work: Work, skip_sensor: bool = False) -> Data:
  d = fwd_actuation(m, d)
  metric, rows = _effective(m, d), work.rows
  if metric is None:
    d = _solve(m, _fwd_acceleration(m, d, work.factor), rows)
  else:
    d, rows, touched = _in_metric(m, d, rows, metric)
    d = _solve(m, _fwd_acceleration(m, d, work.factor, metric), rows, metric)
    d = _turn_freely(m, d, metric, touched)
  return d if skip_sensor else sensor_acc(m, d)


def step(m: Model, d: Data, *, callbacks: Callbacks | None = None) -> Data:
  """Advance the state by one timestep.

  Args:
    m: the model.
    d: the Data.
    callbacks: the user's functions in the loop; static.
  """
  m = user.attach(m, callbacks)
  return _integrate(m, _check_acc(m, forward(m, _check_state(m, d))), m.opt.integrator)


def step1(m: Model, d: Data, *, callbacks: Callbacks | None = None) -> Data:
  """Run the part of a step before the control is needed. A control function of the user is called at its end.

  Args:
    m: the model.
    d: the Data.
    callbacks: the user's functions in the loop; static.
  """
  m = user.attach(m, callbacks)
  return _control(m, _forward_velocity(m, _check_state(m, d))[0])


def step2(m: Model, d: Data, *, callbacks: Callbacks | None = None) -> Data:
  """Run the rest of the step, with the control now set. If the integrator is RK4, Euler's method is used, as in C.

  Args:
    m: the model.
    d: Data after `step1`, with the control.
    callbacks: the user's functions in the loop; static.
  """
  m = user.attach(m, callbacks)
  d, rows = _remade(m, d)
  d = _check_acc(m, _forward_acceleration(m, d, Work(_factor(m, d), rows)))
  return _integrate(m, d, IntegratorType.EULER if m.opt.integrator == IntegratorType.RK4 else m.opt.integrator)


def _integrate(m: Model, d: Data, integrator: int) -> Data:
  return INTEGRATORS[integrator](m, _compare_inverse(m, d) if m.opt.use_fwdinv else d)


def euler(m: Model, d: Data) -> Data:
  """Advance the state by semi-implicit Euler, implicit in the joints' damping. Source: `mj_Euler`."""
  force = d.qfrc_smooth + d.qfrc_constraint
  return _advance(m, d, euler_.acceleration(m, d.cinert, d.cdof, d.M, d.qvel, d.qacc, force))


def implicit(m: Model, d: Data) -> Data:
  """Advance the state implicitly in velocity, by the option `implicit` or `implicitfast`. Source: `mj_implicit`."""
  if not m.nv:
    return _advance(m, d, d.qacc)
  force = d.qfrc_smooth + d.qfrc_constraint
  packed, trees = _smooth_vel(m, d, bias=m.opt.integrator == IntegratorType.IMPLICIT)
  if m.opt.integrator == IntegratorType.IMPLICIT:
    return _advance(m, d, implicit_.full(m, d.M, packed, trees, force))
  acc = implicit_.fast(m, d.cinert, d.cdof, d.M, packed, trees, force)
  if len(m.plan.derivative.free_body):
    acc = implicit_.solve_free(m, acc, _free_blocks(m, d, packed, trees), force)
  return _advance(m, d, acc)


def _free_blocks(m: Model, d: Data, packed: jax.Array, medium: Any) -> jax.Array:
  return implicit_.free_blocks(m, d.M, packed, medium, d.qvel, d.xpos, d.xmat, d.subtree_com, composite(m, d))


def deriv_smooth_vel(m: Model, d: Data, bias: bool = True) -> jax.Array:
  """Return the derivative (nv, nv) of the smooth forces with respect to velocity, within the sparsity of the trees.

  Args:
    m: the model.
    d: Data after forward.
    bias: whether to include qfrc_bias.

  Source: `mjd_smooth_vel`.
  """
  packed, trees = _smooth_vel(m, d, bias)
  out = inertia.unpack(m.plan.derivative.packing, packed)
  return out if trees is None else out + trees


def _smooth_vel(m: Model, d: Data, bias: bool) -> tuple[jax.Array, Any]:
  """Return derivatives of smooth forces: of dampers and actuators packed; of medium and bias force per tree, or None."""
  slope = None
  if derivative.with_actuators(m):
    ctrl, _ = actuator_force.effective_ctrl(m, d.time, d.ctrl, d.history)
    slope = actuator_force.velocity_slope(
      m, ctrl, d.act, d.actuator_length, d.actuator_velocity, d.qfrc_actuator, _user_laws(m, d)
    )
  packed = derivative.packed(m, d.qvel, d.ten_velocity, d.ten_J, d.actuator_moment, slope)
  if not bias and not derivative.with_medium(m):
    return packed, None
  pose = (d.xipos, d.ximat, d.geom_xpos, d.geom_xmat, d.subtree_com)
  return packed, derivative.of_trees(m, d.qvel, d.cinert, d.cdof, *pose, bias=bias)


def step_map(m: Model, d: Data) -> Data:
  """Advance the state by the discrete integrator: qacc is the change of velocity itself. Source: `mj_discrete`."""
  return _advance(m, d, d.qacc)


def rungekutta4(m: Model, d: Data) -> Data:
  """Advance the state by Runge-Kutta of order 4, with three more evaluations of forward, without sensors.

  Derived fields are those of the fourth stage, as in C. But actuator lengths and velocities and tendon lengths are those of the
  first stage if the end of the step reads them. C leaves `ten_J` of the first stage too; here it is of the fourth stage, as are
  the constraint rows, which are written out with it.

  Source: `mj_RungeKutta`.
  """
  h = m.opt.timestep
  # the scan's carry needs a constant structure: without optional fields, and with shared arrays broadcast to all worlds
  lacking = dict.fromkeys(name for name in pytree.handed_names(Data) if name not in pytree.kept(d))

  def rates(d, qvel):
    return rk4.Rates(qvel, d.qacc, d.act_dot)

  def stage(carry, coefficients):
    last, rate, total = carry
    place, weight = coefficients
    ahead = place * h
    way = ahead * rate.qvel
    moved = last.replace(
      qpos=advance.integrate_pos(m, d.qpos, way, 1), qvel=d.qvel + ahead * rate.qacc,
      act=d.act + ahead * rate.act_dot, time=d.time + ahead,
    )  # fmt: skip
    moved = _forward_unwatched(m, moved).replace(**lacking)
    moved = jax.tree.map(lambda x, like: jnp.broadcast_to(x, like.shape), moved, d)
    rate = rates(moved, rk4.position_rate(m, way, moved.qvel))
    return (moved, rate, jax.tree.map(lambda s, x: s + weight * x, total, rate)), None

  first = rates(d, d.qvel)
  carry = d, first, jax.tree.map(lambda x: rk4.FIRST_WEIGHT * x, first)
  (last, _, mean), _ = jax.lax.scan(stage, carry, jnp.asarray(rk4.STAGES, d.qpos.dtype))
  last = energy_vel(m, energy_pos(m, last)) if m.opt.use_energy else last.replace(energy=jnp.zeros_like(d.energy))
  whose = {
    "actuator_velocity": d if activation.reads_velocity(m) else last, "ten_length": d if m.nplastic else last, "ten_J": last,
  }  # fmt: skip
  left = {k: getattr(x, k) for k, x in whose.items()}
  left["actuator_length"] = jnp.where(activation.reads_length(m), d.actuator_length, last.actuator_length)
  began = {k: getattr(d, k) for k in left}
  start = last.replace(qpos=d.qpos, qvel=d.qvel, act=d.act, time=d.time, act_dot=mean.act_dot, **began)
  past = _record(m, d)  # sensor values of the first stage
  return _advance(m, start, mean.qacc, mean.qvel, past).replace(qacc=mean.qacc, act_dot=last.act_dot, **left)


def _advance(m: Model, d: Data, qacc: jax.Array, qvel: jax.Array | None = None, past: jax.Array | None = None) -> Data:
  """Advance the state with an acceleration (nv, W).

  Positions move with the velocity `qvel` (nv, W), or with the new velocity if `qvel` is None. The new history is `past`, or the
  history recorded from d if `past` is None.

  Source: `mj_advance`.
  """
  h = m.opt.timestep
  after = d.qvel + h * qacc
  qvel = after if qvel is None else qvel
  qpos = advance.integrate_pos(m, d.qpos, qvel, h)
  moved = tendon_force.yielded(m, plastic.advance(m, qpos, d.plastic), d.ten_length, d.ten_J, qpos, qvel)
  return d.replace(
    history=_record(m, d) if past is None else past,
    act=activation.advance(m, d.act, d.act_dot, d.actuator_length, d.actuator_velocity),
    qvel=after, qpos=qpos, plastic=moved, time=d.time + h, qacc_warmstart=d.qacc,
  )  # fmt: skip


def _record(m: Model, d: Data) -> jax.Array:
  """Return the history with the controls and the sensors of this step.

  A world that was reset for its bad acceleration records no sensors, because the sensors were read in the bad state.
  """
  past, p = history.record(m, d.history, d.time, d.ctrl), m.plan.sensor
  stages = [x for x in (p.position, p.velocity, p.acceleration) if len(x.late.who)]
  new = past
  for stage in stages:
    new = sensor.record(m, _on_demand(m, d, stage), new, stage)
  if not stages or not m.opt.use_autoreset:
    return new
  return jnp.where(d.status.bits & (1 << int(Warning.BADQACC)) != 0, past, new)


# fields that change between substeps: the state, its rates, and other fields that `_advance` reads
_CARRIED = (
  "time", "qpos", "qvel", "act", "plastic", "qacc_warmstart", "status",
  "qacc", "act_dot", "actuator_length", "actuator_velocity", "ten_length", "ten_J",
)  # fmt: skip
_MOVED = ("qpos", "qvel", "act", "plastic", "qacc_warmstart")


def adaptive_step(m: Model, d: Data, *, accuracy: adaptive.Adaptive, callbacks: Callbacks | None = None) -> Data:
  """Advance the state by one timestep in substeps of controlled error, whatever the model's integrator.

  All fields but the state are as after `step`. Controls and other inputs are constant during the step. Contact parameters that
  are bounded by the timestep keep that bound.

  Args:
    m: the model.
    d: the Data.
    accuracy: error control of the substeps; static.
    callbacks: the user's functions in the loop; static.
  """
  if m.opt.is_discrete:
    raise ValueError("adaptive steps are not defined for the discrete integrator, whose equations depend on the timestep.")
  m = user.attach(m, callbacks)
  d = _check_acc(m, forward(m, _check_state(m, d)))
  after, missed, _ = adaptive.move(_substep, accuracy, m, d, {k: getattr(d, k) for k in _CARRIED})
  found = status.merge(d.status, after["status"])
  moved = {k: after[k] for k in _MOVED}
  return d.replace(
    history=_record(m, d), time=d.time + m.opt.timestep, status=status.mark(found, Warning.SUBSTEPS, missed), **moved
  )


def _substep(m: Model, d: Data, state: dict[str, Any], h: jax.Array, tolerance: float) -> tuple[dict[str, Any], jax.Array]:
  """Return the state after a substep of length h (W,) [s], and its estimated error (W,) in units of the tolerance."""
  base = d.replace(**state)

  def pack(qvel, d):
    return jnp.concatenate([qvel, d.qacc, d.act_dot])

  def stage(carry, coefficients):
    rates, _ = carry
    i, place, mean = coefficients
    qvel, qacc, act_dot = jnp.split(vector.add(mean[k] * rates[k] for k in range(len(adaptive.ERROR))), [m.nv, 2 * m.nv])
    ahead = place * h
    at = m.replace(opt=m.opt.replace(timestep=ahead))
    moved = _forward_unwatched(m, _advance(at, base.replace(act_dot=act_dot), qacc, qvel, base.history))
    rate = pack(rk4.position_rate(m, ahead * qvel, moved.qvel), moved)
    return (jax.lax.dynamic_update_index_in_dim(rates, rate, i, 0), {k: getattr(moved, k) for k in _CARRIED}), None

  first = pack(base.qvel, base)
  rates = jnp.concatenate([first[None], jnp.zeros((3, *first.shape), first.dtype)])
  dtype = first.dtype
  stages = np.arange(1, 4), jnp.asarray(adaptive.PLACE, dtype), jnp.asarray(adaptive.MEAN, dtype)
  (rates, after), _ = jax.lax.scan(stage, (rates, state), stages)
  off = h * vector.add(float(e) * x for e, x in zip(adaptive.ERROR, rates, strict=True))
  size = 1 + jnp.abs(jnp.concatenate([jnp.zeros_like(base.qvel), base.qvel, base.act]))
  return after, jnp.max(jnp.abs(off) / size, axis=0, initial=0) / tolerance


# integrator -> function (m, d after forward) -> d one step later
INTEGRATORS = {
  IntegratorType.EULER: euler,
  IntegratorType.RK4: rungekutta4,
  IntegratorType.IMPLICIT: implicit,
  IntegratorType.IMPLICITFAST: implicit,
  IntegratorType.DISCRETE: step_map,
}


def _check_state(m: Model, d: Data) -> Data:
  """Mark worlds with a bad state, and reset them unless autoreset is off. Source: `mj_checkPos`, `mj_checkVel`."""
  d = d.replace(status=status.clear_bits(d.status))
  bad_pos, bad_vel = _bad(d.qpos), _bad(d.qvel)
  s = status.mark(d.status, Warning.BADQPOS, bad_pos)
  d = d.replace(status=status.mark(s, Warning.BADQVEL, bad_vel & ~bad_pos))
  return _reset_where(m, d, bad_pos | bad_vel)


def _check_acc(m: Model, d: Data) -> Data:
  """Mark worlds with a bad acceleration, and reset them unless autoreset is off. Source: `mj_checkAcc`.

  Differs: C runs forward again after the reset and integrates. Here a reset world rests for this step, and the next step is its
  first step; status and time are C's. A loop around forward would cost every step what one step in a million needs
  (benchmarks/log.md).
  """
  bad = _bad(d.qacc)
  return _reset_where(m, d.replace(status=status.mark(d.status, Warning.BADQACC, bad)), bad)


def _bad(x):
  if not len(x):
    return jnp.zeros(x.shape[1:], bool)
  return linear.materialized(vector.fold(jnp.logical_or, ~(jnp.abs(x) <= MAXVAL), 0))


_RESET_FIELDS = (
  "time", "qpos", "qvel", "act", "history", "plastic", "qacc_warmstart", "ctrl", "qfrc_applied", "xfrc_applied",
  "eq_active", "mocap_pos", "mocap_quat", "userdata", "qacc", "qfrc_smooth", "qfrc_constraint",
)  # fmt: skip


def _reset_where(m: Model, d: Data, bad: jax.Array) -> Data:
  """Reset the state, the inputs and the accelerations of the worlds where the mask `bad` (W,) is true."""
  if not m.opt.use_autoreset:
    return d
  d = d.replace(status=status.mark(d.status, Warning.RESET, bad))
  start = reset(m, d)
  return d.replace(**{k: jnp.where(bad, getattr(start, k), getattr(d, k)) for k in _RESET_FIELDS})


def reset(m: Model, d: Data) -> Data:
  """Reset state and inputs to their initial values. Computed fields and counters become zero, constants stay.

  Source: `mj_resetData`.
  """

  def full(x, like):
    return jnp.broadcast_to(x, like.shape).astype(like.dtype)

  zero = jax.tree.map(jnp.zeros_like, d)
  c = d.contact
  contact_ = zero.contact.replace(dim=c.dim, geom=c.geom, efc_address=c.efc_address, exclude=c.exclude * 0 - 1)
  mocap = m.body_mocapid >= 0
  order = m.body_mocapid[mocap].argsort()
  return zero.replace(
    qpos=full(m.qpos0, d.qpos), plastic=full(tendon_force.initial(m, plastic.initial(m)), d.plastic),
    contact=contact_, efc_type=d.efc_type, efc_id=d.efc_id,
    mocap_pos=full(m.body_pos[mocap][order], d.mocap_pos), mocap_quat=full(m.body_quat[mocap][order], d.mocap_quat),
    eq_active=full(jnp.asarray(m.eq_active0, bool)[:, None], d.eq_active),
    ctrl=full(m.plan.actuator.ctrl0[:, None], d.ctrl), history=full(sensor.start(m, m.opt.timestep), d.history),
  )  # fmt: skip


# ------------------------------------------------------------------------------------- what a stage rebuilds alone


def _factor(m: Model, d: Data) -> Any:
  """Return the factor of M."""
  return mass.factor(m, d.cinert, d.cdof, d.M)


def _contacts(m: Model, d: Data) -> driver.Contacts:
  """Return the contacts of Data as the record that collision returned."""
  c = d.contact
  params = mixing.Params(c.includemargin, c.includemargin * 0, c.friction, c.solref, c.solreffriction, c.solimp)
  pull = c.adhesion if m.plan.contact.adhesive else None
  return driver.Contacts(
    c.dist, c.pos, c.frame, params, surfacevel=c.surfacevel, adhesion=pull, exclude=c.exclude, geom=c.geom, dim=c.dim
  )


def _jacobian(m: Model, d: Data) -> Jacobian:
  """Return the constraint Jacobian."""
  _, axis = limit.rows_joint(m, m.plan.rows.limit, d.qpos)
  c = contact.rows_contact(m, m.plan.contact, _contacts(m, d), d.subtree_com)
  e = equality.rows_equality(m, m.plan.rows.equality, _equality_state(d))
  return Jacobian(axis, c.basis, c.mu, e.entries, d.ten_J, c.body)


def _equality_state(d: Data) -> equality.State:
  """Return the fields on which equality constraints depend."""
  return equality.State(
    d.qpos, d.qvel, d.xpos, d.xquat, d.xmat, d.subtree_com, d.cdof, d.cvel, d.cdof_dot, d.ten_length, d.ten_J, d.eq_active
  )


def _rows(m: Model, d: Data) -> Rows:
  """Return the constraint rows."""
  law = d.efc_KBIP if hasattr(d, "efc_KBIP") else _make_constraint(m, d)[1].KBIP
  return Rows(
    _jacobian(m, d), d.efc_D, d.efc_R, d.efc_aref, d.efc_vel, d.efc_pos, d.efc_margin, d.efc_frictionloss, d.efc_diagA,
    law, d.contact.mu,
  )  # fmt: skip


def constraint_jacobian(m: Model, d: Data) -> jax.Array:
  """Return the dense constraint Jacobian J (nefc, nv). Inactive rows keep their values; they are not zero."""
  return jacobian.dense(m, _jacobian(m, d), d.cdof)


def full_m(m: Model, d: Data) -> jax.Array:
  """Return the dense mass matrix M (nv, nv)."""
  return inertia.full(m, d.M)


def mul_m(m: Model, d: Data, vec: jax.Array) -> jax.Array:
  """Return M times a vector (nv,).

  Args:
    m: the model.
    d: Data after `crb`.
    vec: (nv,).
  """
  return mass.mul(m, d.cinert, d.cdof, d.M, vec)


def solve_m(m: Model, d: Data, vec: jax.Array) -> jax.Array:
  """Return M^-1 times a vector (nv,).

  Args:
    m: the model.
    d: Data after `crb`.
    vec: (nv,).
  """
  return mass.solve(m, _factor(m, d), vec)


def xfrc_accumulate(m: Model, d: Data) -> jax.Array:
  """Return the joint-space force (nv,) of xfrc_applied."""
  return applied.xfrc_accumulate(m, d.cdof, d.xipos, d.subtree_com, d.xfrc_applied)


def integrate_pos(m: Model, qpos: jax.Array, qvel: jax.Array, dt: Any) -> jax.Array:
  """Return qpos (nq,) after moving with velocity qvel (nv,) for dt [s].

  Args:
    m: the model.
    qpos: (nq,).
    qvel: (nv,).
    dt: [s].
  """
  return advance.integrate_pos(m, qpos, qvel, dt)


def differentiate_pos(m: Model, dt: Any, qpos1: jax.Array, qpos2: jax.Array) -> jax.Array:
  """Return the velocity (nv,) that takes qpos1 to qpos2 in dt [s].

  Args:
    m: the model.
    dt: [s].
    qpos1: start position (nq,).
    qpos2: end position (nq,).
  """
  return advance.differentiate_pos(m, qpos1, qpos2, dt)
