"""Rollouts: a scan over steps that carries the integration state, in the engine's layout, and records chosen fields.

The scan also carries the computed fields of the last step, which no step reads. If nobody reads these fields of the result,
JAX removes them from the loop, and XLA never sees them.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mjx_lite import api
from mjx_lite.batching import worlds
from mjx_lite.compiler import saved, workarounds
from mjx_lite.integrate.adaptive import Adaptive
from mjx_lite.io.capacity import warn_of_shortage
from mjx_lite.model import pytree
from mjx_lite.model.callbacks import Callbacks
from mjx_lite.model.types import INPUTS, STATE, Data, Model
from mjx_lite.ops import linear
from mjx_lite.pipeline import adaptive_step
from mjx_lite.pipeline import step as native_step

STEPPED = (*STATE, "status")  # fields that a step reads of the step before
RECORD = ("qpos", "qvel")
_CARRIED = tuple(f.name for f in dataclasses.fields(Data) if f.name not in INPUTS)  # inputs keep their values of the start


def rollout(
  m: Model,
  d: Data,
  ctrl: jax.Array | Callable[[Model, Data], jax.Array] | None = None,
  *,
  steps: int | None = None,
  record: Sequence[str] | Callable[[Model, Data], Any] = RECORD,
  checkpoint: int | None = 1,
  devices: Sequence[Any] | None = None,
  callbacks: Callbacks | None = None,
  adaptive: Adaptive | None = None,
) -> tuple[Data, Any]:
  """Take steps from a state, under given controls or under a policy.

  A step reads only the state of the step before. So no step computes a field that nobody reads, and reverse mode stores no
  more than `checkpoint` says. Every field that a compiled function returns counts as read, and every step writes it. Where time
  counts, return only the fields that you need, as `end.qpos`, or only the record. Shapes are those of one world; `jax.vmap`
  batches, and the whole scan then runs in the engine's layout.

  Args:
    m: the model.
    d: the Data at the start; its other inputs (applied forces, mocap poses, ...) stay as they are.
    ctrl: (steps, nu), or a policy: a function of the Model and the Data before a step that returns (nu,), or None for d.ctrl.
    steps: number of steps; the length of ctrl if None.
    record: names of Data's fields ('contact.dist' works), or a function of the Model and the Data after a step. Fields
      other than state belong to the state at the start of the step, as after `step`.
    checkpoint: reverse mode stores the state at every `checkpoint`-th step, and computes the steps between again, then one
      step at a time. 1 stores every state and nothing else; None also stores intermediate values of a policy and of a record
      function.
    devices: divide the worlds among these jax.Devices. d, a ctrl array and the results then have a leading world axis, whose
      length is a multiple of the number of devices; ctrl is (worlds, steps, nu). Do not use jax.vmap with this option.
    callbacks: the user's functions that every step calls.
    adaptive: take each step in substeps of controlled error (Runge-Kutta of order 3, whatever the model's integrator).
      Derivatives through stiff impacts are then those of the motion, not of a coarse step. Set solimp[0] = 0, so that the
      force of a contact begins at zero: a force that jumps has no such derivative.

  Returns:
    the Data after the last step, and the record. The Data has the final state, and computed fields of the state at the start of
    the last step, as after `step`. Its inputs, including `ctrl`, are always those of d; without steps, the Data is d itself.
    The record is stacked over the steps: a dict by name, or the results of the function.

  Warns:
    CapacityWarning: contacts did not fit in some world; once for each model. Inside of `jax.jit` only `Data.status` says it.
  """
  options: dict[str, Any] = dict(steps=steps, record=record, checkpoint=checkpoint, callbacks=callbacks, adaptive=adaptive)
  if devices is not None:
    end, out = _divided(m, d, ctrl, devices, **options)
  else:
    end, out = _one(m, d, ctrl, **options)
  warn_of_shortage(m, end, "rollout")
  return end, out


def _one(
  m: Model, d: Data, ctrl: Any, *, steps: int | None, record: Any, checkpoint: int | None, callbacks: Callbacks | None,
  adaptive: Adaptive | None,
) -> tuple[Data, Any]:  # fmt: skip
  """Run `rollout` on the worlds of one device."""
  d = jax.tree.map(lambda x: worlds.operand(pytree.strong(x), m.layout.dtype), d)
  policy = ctrl if callable(ctrl) else None
  ahead = None if ctrl is None or callable(ctrl) else jnp.asarray(ctrl, d.ctrl.dtype)
  if ahead is not None and ahead.ndim != 2:
    raise ValueError(f"ctrl has to be (steps, nu) for one world, not {ahead.shape}; batch with jax.vmap.")
  length = ahead.shape[0] if ahead is not None and steps is None else steps
  if length is None:
    raise ValueError("rollout needs steps= if ctrl is not an array.")
  if not isinstance(length, int | np.integer) or length < 0:
    raise ValueError(f"steps has to be a whole number, 0 or more, not {length}.")
  if ahead is not None and ahead.shape != (length, m.nu):
    raise ValueError(f"ctrl has shape {ahead.shape}, {length} steps of this model need {(length, m.nu)}.")
  static: dict[str, Any] = dict(steps=int(length), checkpoint=checkpoint)
  if callable(record) or policy is not None:
    record = record if callable(record) else _recorder(tuple(record))
    return _scan(_public_step(callbacks, adaptive), m, d, ahead, policy, record, **static)
  static |= dict(callbacks=callbacks, adaptive=adaptive)
  names = tuple(record)
  return _NATIVE(m, d, record=names, **static) if ahead is None else _NATIVE(m, d, ahead, record=names, **static)


def _rollout(
  m: Model, d: Data, ctrl: jax.Array | None = None, *, record: tuple[str, ...], callbacks: Callbacks | None,
  adaptive: Adaptive | None, **static
) -> tuple[Data, Any]:  # fmt: skip
  step = native_step if adaptive is None else functools.partial(adaptive_step, accuracy=adaptive)

  def take(m, d):  # what depends on the model alone stays in the loop
    return step(linear.depend_on(m, d.qpos), d, callbacks=callbacks)

  return _scan(take, m, d, ctrl, None, _recorder(record), **static)


def _steps(
  m: Model, d: Data, ctrl: jax.Array | None = None, *, record: tuple[str, ...], callbacks: Callbacks | None,
  adaptive: Adaptive | None, **static
) -> tuple[Data, Any]:  # fmt: skip
  """Run `_rollout` as a loop over calls of the engine, so that derivatives are those of one step at a time."""
  return _scan(_public_step(callbacks, adaptive), m, d, ctrl, None, _recorder(record), **static)


def _public_step(callbacks: Callbacks | None, adaptive: Adaptive | None) -> Callable[..., Data]:
  options = {k: x for k, x in dict(callbacks=callbacks, accuracy=adaptive).items() if x is not None}
  return functools.partial(api.step if adaptive is None else _ADAPTIVE_STEP, **options)


_NATIVE = api.one_world(_rollout, opened=_steps)
_ADAPTIVE_STEP = api.one_world(adaptive_step)


def _recorder(names: tuple[str, ...]) -> Callable[[Model, Data], dict[str, Any]]:
  """Return a function that reads fields by name."""

  def read(m, d):
    out = {}
    for name in names:
      x = d
      for part in name.split("."):
        if not hasattr(x, part):
          raise ValueError(f"record has '{name}', and Data has no such field; it takes names, as record=('qpos', 'qvel').")
        x = getattr(x, part)
      out[name] = x
    return out

  return read


def _scan(step, model, d, ctrl, policy, record, *, steps, checkpoint):
  """Scan over the steps, in the layout of `step`; ctrl is (steps, ...)."""

  def one(carry, u):
    now = d.replace(**{k: carry[k] for k in STEPPED})
    if policy is not None:
      u = jnp.asarray(policy(model, now), d.ctrl.dtype)
    after = step(model, now if u is None else now.replace(ctrl=u))
    return jax.tree.map(_fitted, {k: getattr(after, k) for k in carry}, carry), record(model, after)

  # optional fields that d lacks are missing at the end too
  start = {k: x for k in _CARRIED if (x := getattr(d, k)) is not None}
  end, out = checkpointed_scan(one, start, ctrl, steps, checkpoint)
  return d.replace(**end), out


def _fitted(x: jax.Array, like: jax.Array) -> jax.Array:
  """Broadcast an array that all worlds share to one copy per world."""
  return x if x.shape == like.shape else jnp.broadcast_to(x, like.shape)


def state_of(d: Data, end: Data) -> Data:
  """Return a Data with the state of another Data, which is what a step reads of the step before. Other fields stay.

  Args:
    d: the Data.
    end: the Data after some steps from d.
  """
  return d.replace(**{k: getattr(end, k) for k in STEPPED})


def checkpointed_scan(body: Callable[..., Any], carry: Any, xs: Any, length: int, every: int | None) -> tuple[Any, Any]:
  """Run `jax.lax.scan` with reverse mode that stores every `every`-th carry; None stores JAX's own choice."""
  if every is None:
    return jax.lax.scan(body, carry, xs, length=length)
  # results of iterations are stored: accelerations, and lengths of substeps
  one = jax.checkpoint(body, prevent_cse=False, policy=jax.checkpoint_policies.save_only_these_names(saved.NAME))
  if every == 1:
    return jax.lax.scan(one, carry, xs, length=length)
  whole, rest = divmod(length, every)
  segment = jax.checkpoint(lambda c, x: jax.lax.scan(one, c, x, length=every), prevent_cse=False)
  cut = lambda x: x[: whole * every].reshape(whole, every, *x.shape[1:])  # noqa: E731
  carry, ys = jax.lax.scan(segment, carry, jax.tree.map(cut, xs), length=whole)
  ys = jax.tree.map(lambda y: y.reshape(whole * every, *y.shape[2:]), ys)
  if rest:
    carry, more = jax.lax.scan(one, carry, jax.tree.map(lambda x: x[whole * every :], xs), length=rest)
    ys = jax.tree.map(lambda a, b: jnp.concatenate([a, b]), ys, more)
  return carry, ys


def _divided(m: Model, d: Data, ctrl: Any, devices: Sequence[Any], **options: Any) -> Any:
  """Run `rollout` on worlds divided among devices. Each device runs by itself."""
  count, n = len(devices), d.qpos.shape[0]
  if d.qpos.ndim != 2 or n % count:
    raise ValueError(
      f"with devices= the Data needs a leading world axis whose length is a multiple of {count}; qpos has shape {d.qpos.shape}."
    )
  mesh = jax.sharding.Mesh(np.asarray(devices), ("worlds",))
  shared, split = jax.sharding.PartitionSpec(), jax.sharding.PartitionSpec("worlds")
  policy: Any = ctrl if callable(ctrl) else None

  def part(m, d, *given):
    def one(d: Data, *u: jax.Array) -> Any:
      return rollout(m, d, u[0] if u else policy, **options)

    return jax.vmap(one)(d, *given)

  given = () if ctrl is None or policy is not None else (jnp.asarray(ctrl),)
  run = workarounds.shard_map(part, mesh, (shared, split, *(split,) * len(given)), split)
  return jax.jit(run)(m, d, *given)  # without jit, an eager call takes longer than a step
