"""Arguments: every one that MJX knows, and those that had another name here."""

import inspect
import warnings

import jax
import mujoco
import numpy as np
import pytest
from models import load

import mjx_lite as mjx

theirs = pytest.importorskip("mujoco.mjx")
IO = ("put_model", "make_data", "put_data", "get_data", "get_data_into")


def _shared():
  for name in sorted(set(dir(theirs)) & set(mjx.__all__)):
    if inspect.isfunction(getattr(theirs, name)):
      yield name


def _is_own(name, option):
  """Whether one of our functions has an argument of this name itself."""
  return option in inspect.signature(getattr(mjx, name)).parameters


@pytest.mark.parametrize("name", list(_shared()))
def test_every_argument_of_mjx_is_taken_by_its_name(name):
  ours = inspect.signature(getattr(mjx, name)).parameters
  rest = any(p.kind == p.VAR_KEYWORD for p in ours.values())
  for option, p in inspect.signature(getattr(theirs, name)).parameters.items():
    assert option in ours or rest, option
    if option in ours:
      assert list(ours).index(option) == list(inspect.signature(getattr(theirs, name)).parameters).index(option), option
    elif p.default is p.empty:
      raise AssertionError(f"{option} is required there")


@pytest.mark.parametrize("name", IO)
def test_every_option_of_mjx_is_passed_over_with_a_warning(name):
  model = load("trees")
  data, m = mujoco.MjData(model), mjx.put_model(model)
  d = mjx.make_data(m)
  args = dict(
    put_model=[(model,)], make_data=[(model,), (m,)], put_data=[(model, data), (m, data)], get_data=[(model, d)],
    get_data_into=[(data, model, d)],
  )  # fmt: skip
  for option in inspect.signature(getattr(theirs, name)).parameters:
    if _is_own(name, option):
      continue
    for given in args[name]:
      with pytest.warns(UserWarning, match=rf"{name}\(\.\.\., {option}=\) has no meaning") as seen:
        getattr(mjx, name)(*given, **{option: 7})
      assert [x.filename for x in seen] == [__file__]  # the user's line
      with warnings.catch_warnings():
        warnings.simplefilter("error")
        getattr(mjx, name)(*given, **{option: None})


@pytest.mark.parametrize("name", IO)
def test_what_neither_knows_is_refused(name):
  model = load("trees")
  m, data = mjx.put_model(model), mujoco.MjData(model)
  d = mjx.make_data(m)
  args = dict(put_model=(model,), make_data=(m,), put_data=(model, data), get_data=(model, d), get_data_into=(data, model, d))
  with pytest.raises(TypeError, match=rf"{name} got an unexpected argument 'njmaxx'; did you mean 'njmax'"):
    getattr(mjx, name)(*args[name], njmaxx=3)
  with pytest.raises(TypeError, match=rf"{name} got an unexpected argument 'nonsense'\."):
    getattr(mjx, name)(*args[name], nonsense=3)


def test_what_belongs_to_put_model_is_named():
  model = load("boxes")
  m = mjx.put_model(model)
  assert mjx.make_data(model, ncon_max=3).contact.dist.shape == (3,)
  assert mjx.put_data(model, mujoco.MjData(model), ncon_max=3).contact.dist.shape == (3,)
  with pytest.raises(TypeError, match="make_data: ncon_max are arguments of put_model"):
    mjx.make_data(m, ncon_max=3)
  with pytest.raises(TypeError, match="put_data: dtype are arguments of put_model"):
    mjx.put_data(m, mujoco.MjData(model), dtype=np.float32)


def test_old_names_of_arguments_still_work():
  model = load("trees")
  m, data = mjx.put_model(model), mujoco.MjData(model)
  with pytest.warns(DeprecationWarning, match=r"mj_model=\) is now m="):
    d = mjx.put_data(mj_model=model, d=data)
  with pytest.warns(DeprecationWarning, match=r"mj_data=\) is now d="):
    mjx.put_data(model, mj_data=data)
  for call in (
    lambda: mjx.get_data(mj_model=model, d=d), lambda: mjx.get_data_into(data, mj_model=model, d=d),
    lambda: mjx.get_state(m, d, sig=2), lambda: mjx.state_size(m, sig=2), lambda: mjx.set_state(m, d, d.qpos, sig=2),
  ):  # fmt: skip
    with pytest.warns(DeprecationWarning, match="is now"):
      call()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rne_with_accelerations_is_that_of_c(dtype):
  model = load("trees")
  data = mujoco.MjData(model)
  data.qvel[:] = 0.3
  mujoco.mj_forward(model, data)
  m = mjx.put_model(model, dtype=dtype)
  d = mjx.put_data(m, data)
  tolerance = 1e-9 if dtype == np.float64 else 1e-3
  for flag in (False, True):
    wanted = np.zeros(model.nv)
    mujoco.mj_rne(model, data, flag, wanted)
    for call in (mjx.rne, jax.jit(mjx.rne, static_argnums=2)):
      np.testing.assert_allclose(call(m, d, flag).qfrc_bias, wanted, rtol=tolerance, atol=tolerance * np.abs(wanted).max())
    many = jax.vmap(lambda d: mjx.rne(m, d, flg_acc=flag))(jax.tree.map(lambda x: x[None], d))  # noqa: B023
    np.testing.assert_allclose(many.qfrc_bias[0], wanted, rtol=tolerance, atol=tolerance * np.abs(wanted).max())
