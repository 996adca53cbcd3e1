"""The environment: a model, the initial states of episodes, the observation, the reward and the termination.

Tests: tests/envs/test_envs.py.
"""

import pathlib
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import mujoco
import numpy as np

import mjx_lite as mjx
from mjx_lite import viz
from mjx_lite.envs.state import State
from mjx_lite.rollout import STEPPED

ASSETS = pathlib.Path(__file__).parent / "assets"


# fields of Data that the substeps return: the state and the sensor readings; any other field would be written in each substep
_RETURNED = (*STEPPED, "sensordata")


class Env:
  """One world of a task. `jax.vmap` makes a batch; `wrap` adds the batch, episodes and automatic resets.

  A task defines `xml_path` (or receives a path at construction), `ctrl_dt`, and the methods `start`, `observe`, `score` and
  `failed`. Each method takes the Model as an argument, so that a caller can pass a changed Model (`model=`). No method changes
  the environment.
  """

  xml_path: pathlib.Path | str
  ctrl_dt = 0.02  # time between actions [s]; a multiple of the model's timestep

  def __init__(self, xml_path: str | pathlib.Path | None = None, *, ctrl_dt: float | None = None, **put_options: Any):
    """Load the model.

    Args:
      xml_path: another model for the same task.
      ctrl_dt: time between actions [s].
      **put_options: arguments of `put_model` (dtype, keep, tile, ...).
    """
    self.xml_path = xml_path or self.xml_path
    self.ctrl_dt = ctrl_dt or self.ctrl_dt
    self.mj_model = mujoco.MjModel.from_xml_path(str(self.xml_path))
    self._mjx_model = mjx.put_model(self.mj_model, **put_options)  # Playground's wrappers replace the attribute of this name
    ratio = self.ctrl_dt / self.mj_model.opt.timestep
    self.n_substeps = round(ratio)
    if self.n_substeps < 1 or abs(ratio - self.n_substeps) > 1e-6:
      raise ValueError(f"ctrl_dt = {self.ctrl_dt} is not a multiple of the timestep {self.mj_model.opt.timestep} of the model.")

  # methods that a task defines

  def start(self, m: mjx.Model, d: mjx.Data, key: jax.Array) -> mjx.Data:
    """Return the Data at the start of a new episode, from the Data of the reference configuration."""
    raise NotImplementedError

  def observe(self, m: mjx.Model, d: mjx.Data) -> Any:
    """Return the observation: an array, or a dict of arrays."""
    raise NotImplementedError

  def score(self, m: mjx.Model, before: mjx.Data, d: mjx.Data, action: jax.Array) -> dict[str, jax.Array]:
    """Return the terms of a step's reward by name. The reward is their sum; the terms are also the metrics of the step."""
    raise NotImplementedError

  def failed(self, m: mjx.Model, d: mjx.Data) -> jax.Array:
    """Return whether the episode terminates in this state; by default never."""
    return jnp.zeros((), bool)

  # methods that a learner calls

  def reset(self, key: jax.Array, model: Any = None) -> State:
    """Start a new episode.

    Args:
      key: a key of jax.random.
      model: a changed model (`with_params`); the environment's own model by default.
    """
    m = self.model if model is None else model
    d = mjx.kinematics(m, self.start(m, mjx.make_data(m), key))
    zero = jnp.zeros((), d.qpos.dtype)
    terms = jax.eval_shape(self.score, m, d, d, jax.ShapeDtypeStruct((self.action_size,), d.qpos.dtype))
    return State(data=d, obs=self.observe(m, d), reward=zero, done=zero, metrics={k: zero for k in terms}, info={})

  def step(self, state: State, action: jax.Array, model: Any = None) -> State:
    """Apply one action for `n_substeps` steps of the simulator.

    In the returned Data, the state and the poses are current. `sensordata` is that of the last substep. All other fields
    have their values from the reset.

    Args:
      state: the state before the step.
      action: (nu,) in [-1, 1]; -1 and 1 are the ends of the control ranges.
      model: the model with which the episode was started.
    """
    m = self.model if model is None else model
    action = jnp.asarray(action, state.data.ctrl.dtype)  # the learner's dtype may differ
    if action.shape != (self.action_size,):
      raise ValueError(f"an action of one world must have the shape ({self.action_size},), not {action.shape}.")
    before = state.data.replace(ctrl=self.control(m, action))
    end, _ = mjx.rollout(m, before, steps=self.n_substeps, record=())
    d = mjx.kinematics(m, before.replace(**{name: getattr(end, name) for name in _RETURNED}))
    terms = self.score(m, before, d, action)
    done = self.failed(m, d).astype(d.qpos.dtype)
    return state.replace(
      data=d, obs=self.observe(m, d), reward=sum(terms.values(), jnp.zeros_like(done)), done=done,
      metrics={**state.metrics, **terms},
    )  # fmt: skip

  def set_state(self, state: State, qpos: jax.Array, qvel: jax.Array, model: Any = None) -> State:
    """Return the state with another configuration and velocity, in the same episode."""
    m = self.model if model is None else model
    d = mjx.kinematics(m, state.data.replace(qpos=qpos, qvel=qvel))
    return state.replace(data=d, obs=self.observe(m, d))

  def render(
    self,
    trajectory: State | Sequence[State],
    height: int = 240,
    width: int = 320,
    camera: Any = None,
    scene_option: mujoco.MjvOption | None = None,
    modify_scene_fns: None = None,
    **options: Any,
  ) -> np.ndarray:
    """Render images of an episode with `viz.render` and the compiled MuJoCo model.

    Args:
      trajectory: a State; a list of consecutive States; or States stacked by `jax.lax.scan`. The States are those of one
        world, or of a batch of worlds (steps, worlds, ...).
      height: height of an image [pixel].
      width: width of an image [pixel].
      camera: a camera of the model; a free camera if None.
      scene_option: MuJoCo's MjvOption.
      modify_scene_fns: an argument of Playground; not supported.
      **options: arguments of `viz.render`: grid, overlays, fps, path, ...

    Returns:
      RGB bytes: (height, width, 3) for one State of one world, otherwise (images, height, width, 3).
    """
    if modify_scene_fns is not None:
      raise NotImplementedError(
        "modify_scene_fns is not supported, because another process draws. Use scene_option or overlays."
      )
    if isinstance(trajectory, Sequence):
      if not trajectory:
        raise ValueError("the trajectory has no State: give at least one.")
      state = {k: np.stack([np.asarray(getattr(s.data, k)) for s in trajectory]) for k in viz.STATE}
    else:
      state = {k: np.asarray(getattr(trajectory.data, k)) for k in viz.STATE}
    if state["qpos"].ndim == 3:  # viz expects the world axis first
      state = {k: np.swapaxes(x, 0, 1) for k, x in state.items()}
    options = {"dt": self.dt, "height": height, "width": width, "camera": camera, "scene_option": scene_option, **options}
    return viz.render(self.mj_model, state, **options)

  def control(self, m: mjx.Model, action: jax.Array) -> jax.Array:
    """Map an action in [-1, 1] linearly to the control ranges; a control without a range gets the action unchanged."""
    low, high = m.actuator_ctrlrange[:, 0], m.actuator_ctrlrange[:, 1]
    inside = 0.5 * (low + high) + 0.5 * (high - low) * jnp.clip(action, -1, 1)
    return jnp.where(m.actuator_ctrllimited.astype(bool), inside, action)

  @property
  def dt(self) -> float:
    """Time between actions [s]."""
    return self.ctrl_dt

  @property
  def sim_dt(self) -> float:
    """Time step of the simulator [s]."""
    return float(self.mj_model.opt.timestep)

  @property
  def action_size(self) -> int:
    """Number of controls."""
    return self.mj_model.nu

  @property
  def observation_size(self) -> Any:
    """Length of the observation; a dict of shapes by name if the observation is a dict."""
    obs = jax.eval_shape(self.reset, jax.random.key(0)).obs
    return {k: v.shape for k, v in obs.items()} if isinstance(obs, dict) else obs.shape[-1]

  @property
  def model(self) -> mjx.Model:
    """The Model."""
    return self._mjx_model

  @property
  def mjx_model(self) -> mjx.Model:
    """The Model, under the name that MuJoCo Playground uses."""
    return self._mjx_model

  @property
  def sys(self) -> mjx.Model:
    """The Model, under the name that Brax uses. Brax's wrapper for domain randomization replaces this attribute."""
    return self._mjx_model

  @sys.setter
  def sys(self, model: mjx.Model) -> None:
    self._mjx_model = model

  @property
  def unwrapped(self) -> "Env":
    """The environment without wrappers: this environment itself."""
    return self
