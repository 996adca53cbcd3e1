"""A joint that starts exactly at its limit: whether its row is there in the first step is decided by the last digit.

A row exists where its distance is below the margin, and has a finite force from there on. So a start that differs in the last
digit of single precision ends elsewhere, in C's double precision as well: what differs is round-off, not the comparison.
"""

import jax
import mujoco
import numpy as np
import pytest

import mjx_lite as mjx

ARM = """
<mujoco><worldbody><body>
  <joint axis="0 {axis} 0" range="{low} {high}" limited="true" margin="{margin}" solreflimit=".01 .2"/>
  <geom type="capsule" size=".03" fromto="0 0 0 .3 0 0"/>
</body></worldbody></mujoco>
"""
STARTS = (40, 10.7, -0.3, 33.3)  # [degree], where the joint's range ends


def make(end, upper, margin=0):
  low, high = (-90, end) if upper else (end, 90)
  return mujoco.MjModel.from_xml_string(ARM.format(axis=1 if upper else -1, low=low, high=high, margin=margin))


def of_c(model, start, steps):
  data, path = mujoco.MjData(model), []
  data.qpos[0] = start
  for _ in range(steps):
    mujoco.mj_step(model, data)
    path.append(data.qpos[0])
  return np.array(path)


@pytest.mark.parametrize("transform", ["eager", "jit", "vmap"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("margin", [0, 0.125])
def test_no_row_exactly_at_the_limit(margin, dtype, transform):
  """A distance of zero makes no row where there is no margin; one that is negative in the last digit does."""
  m = mjx.put_model(make(40, True, margin), dtype=dtype)
  calls = {"eager": mjx.forward, "jit": jax.jit(mjx.forward), "vmap": jax.jit(jax.vmap(mjx.forward, in_axes=(None, 0)))}
  end = np.asarray(m.jnt_range, dtype)[0, 1]
  for start, there in ((end, margin > 0), (np.nextafter(end, dtype(1)), True), (end - dtype(0.25), False)):
    d = mjx.make_data(m).replace(qpos=np.array([start], dtype))
    d = jax.tree.map(lambda x: np.stack([x, x]), d) if transform == "vmap" else d
    active = np.asarray(calls[transform](m, d).efc_D) > 0
    assert np.all(active.any(axis=-1) == there), start


def test_single_precision_is_as_far_from_c_as_c_from_itself():
  steps, far = 200, []
  for end in STARTS:
    model = make(end, True)
    start = float(model.jnt_range[0, 1])
    right = of_c(model, start, steps)
    ulp = float(np.spacing(np.float32(abs(start))))
    spread = max(np.abs(of_c(model, start + k * ulp, steps) - right).max() for k in (-1, 1))
    for dtype in (np.float32, np.float64):
      m = mjx.put_model(model, dtype=dtype)
      d = mjx.make_data(m).replace(qpos=np.array([start], dtype))
      path = jax.jit(lambda m, d: jax.lax.scan(lambda d, _: (e := mjx.step(m, d), e.qpos[0]), d, None, length=steps)[1])(m, d)
      error = np.abs(np.asarray(path, float) - right).max()
      assert error < (1e-10 if dtype == np.float64 else 1.5 * spread + 1e-5), end
    far.append(spread)
  assert max(far) > 1e-4  # one digit of single precision is worth so much
