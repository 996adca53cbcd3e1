"""Derivatives of a step are finite where geometry and dynamics are singular: all such places in two small worlds."""

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

import mjx_lite as mjx

# at rest, quaternions the identity: coincident centres, a centre inside a box, parallel capsules, exact touching without
# friction, a massless body
CONTACTS = """
<mujoco>
  <option iterations="20"/>
  <default><geom size="0.1"/></default>
  <worldbody>
    <geom type="plane" size="1 1 1"/>
    <body><freejoint/><geom pos="0 0 3"/></body>
    <body><freejoint/><geom pos="0 0 3"/></body>
    <body pos="2 0 3"><freejoint/><geom type="box" size="0.2 0.2 0.2"/></body>
    <body pos="2 0 3"><joint type="slide"/><geom size="0.05"/></body>
    <body pos="4 0 0.1"><freejoint/><geom type="capsule" size="0.1 0.2" euler="0 90 0" friction="0 0 0"/></body>
    <body pos="4 0 0.3"><freejoint/><geom type="capsule" size="0.1 0.2" euler="0 90 0"/><body><inertial pos="0 0 0" mass="0"
      diaginertia="0 0 0"/></body></body>
  </worldbody>
</mujoco>
"""
# straight and empty tendons, no activation, quaternions that are not unit, springs at rest
JOINTS = """
<mujoco>
  <option density="1.2" viscosity="0.1"/>
  <worldbody>
    <site name="w"/><site name="w2"/>
    <body>
      <joint name="ball" type="ball" stiffness="1" damping="0.1" range="0 0.5" limited="true"/><geom size="0.1" pos="0 0 0.2"/>
      <site name="a"/><site name="b" pos="0 0 0.5"/>
      <body pos="0 0 0.5">
        <joint name="h" axis="0 1 0" stiffness="1" frictionloss="0.1"/>
        <geom type="capsule" size="0.05 0.1" fluidshape="ellipsoid"/>
        <site name="c" pos="0 0 0.2"/><site name="d" pos="0 0 -0.5"/>
      </body>
    </body>
  </worldbody>
  <tendon>
    <spatial stiffness="1" damping="0.1"><site site="w"/><site site="a"/></spatial>
    <spatial name="t" stiffness="1"><site site="a"/><site site="b"/><site site="c"/></spatial>
    <spatial stiffness="1" armature="0.1"><site site="w2"/><site site="d"/></spatial>
  </tendon>
  <equality><weld site1="a" site2="d"/></equality>
  <actuator>
    <muscle tendon="t" lengthrange="0.1 1"/><position joint="ball" gear="1 0 0" kp="1"/>
    <general site="c" refsite="b" gear="0 0 0 1 0 0" gainprm="1"/>
  </actuator>
</mujoco>
"""
FIELDS = ("body_mass", "body_inertia", "geom_size", "geom_friction", "geom_pos", "site_pos", "jnt_stiffness")


@pytest.fixture(scope="module", params=[CONTACTS, JOINTS], ids=["contacts", "joints"])
def model(request):
  return mujoco.MjModel.from_xml_string(request.param)


def loss(model, dtype):
  """Scalar of a step as a function of state and parameters, and where to take it."""
  m = mjx.put_model(model, dtype=dtype, keep=("jnt_stiffness",))
  d = mjx.make_data(m)
  quats = [a + (3 if t == 0 else 0) for a, t in zip(model.jnt_qposadr, model.jnt_type, strict=True) if t < 2]
  qpos = d.qpos.at[np.array(quats[1:], int)].set(2.0)  # the first stays a unit quaternion

  def f(x):
    m2 = m.replace(**x["parameters"])
    after = mjx.step(m2, d.replace(qpos=x["qpos"], qvel=x["qvel"], act=x["act"], ctrl=x["ctrl"]))
    return jnp.sum(jnp.sin(after.qvel)) + jnp.sum(after.qpos**2) + jnp.sum(after.act)

  return f, dict(qpos=qpos, qvel=d.qvel, act=d.act, ctrl=d.ctrl, parameters={k: getattr(m, k) for k in FIELDS})


# slow: single precision, with less room for squares and quotients, is the harder one
@pytest.mark.parametrize("dtype", [pytest.param(np.float64, marks=pytest.mark.slow), np.float32])
def test_gradient_is_finite(model, dtype):
  f, x = loss(model, dtype)
  value, grad = mjx.jit(jax.value_and_grad(f))(x)
  assert np.isfinite(value)
  for path, g in jax.tree_util.tree_leaves_with_path(grad):
    assert np.isfinite(g).all(), (jax.tree_util.keystr(path), g)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("of", ["state", "parameters"])
def test_second_derivatives_are_finite(model, dtype, of):
  """Forward over reverse: hessian and jacfwd and jacrev with it."""
  f, x = loss(model, dtype)
  if of == "state":
    part, rest = {k: x[k] for k in ("qpos", "qvel", "act", "ctrl")}, dict(parameters=x["parameters"])
  else:
    part, rest = dict(parameters=x["parameters"]), {k: x[k] for k in ("qpos", "qvel", "act", "ctrl")}
  h = mjx.jit(jax.hessian(lambda y: f({**y, **rest})))(part)
  for path, g in jax.tree_util.tree_leaves_with_path(h):
    assert np.isfinite(g).all(), jax.tree_util.keystr(path)
