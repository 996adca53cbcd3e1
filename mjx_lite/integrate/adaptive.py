"""A step as substeps of controlled error, by the Runge-Kutta pair of orders 3 and 2 of Bogacki and Shampine.

Stiff contacts last for less than a timestep. A step of fixed length is then a bad map, and so is its exact derivative. Here the
equations of motion are integrated with substeps whose estimated errors are below a tolerance.

*Derivative.* A loop, which is never differentiated, finds the lengths of the substeps. The derivative is that of the accepted
substeps, as a fixed sequence of maps; rejected substeps have no part in it. The lengths count as constant fractions of the
timestep.

*Limit.* If the force jumps when a contact begins (solimp[0] > 0), the time of the jump depends on the state. A fixed sequence
of substeps does not contain this dependence, so the derivative misses it. With solimp[0] = 0 the force begins at zero.

Source: P. Bogacki, L. F. Shampine, A 3(2) pair of Runge-Kutta formulas, Appl. Math. Lett. 2 (1989).

Tests: tests/transforms/test_adaptive.py.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name

from mjx_lite.solver.implicit_diff import SOLUTION

# stages after the first: time as a fraction of the substep, and weights of the earlier rates; the last stage is at the end
FRACTION = np.array([1 / 2, 3 / 4, 1])
MEAN = np.array([[1, 0, 0, 0], [0, 1, 0, 0], [2 / 9, 1 / 3, 4 / 9, 0]])
ERROR = np.array([-5 / 72, 1 / 12, 1 / 9, -1 / 8])  # difference of the two orders
SIZES = "substeps"  # checkpoint name of the lengths, which reverse mode saves

_SAFETY, _SHRINK, _GROW = 0.9, 0.2, 5.0
_LEAST = 1e-9  # fraction of the timestep below which a substep is accepted whatever its error


class Adaptive(NamedTuple):
  """Accuracy of the substeps of a step.

  Derivatives are less exact than values in steps in which a contact begins, ends, sticks or slips: by a few percent at a
  tolerance of 1e-6. For other tolerances this error scales with the square root of the tolerance.

  Attributes:
    tolerance: largest estimated error of a substep: of positions [m, rad], and of velocities and activations relative to
      1 + their size. Below 1e-5 use 64 bits.
    max_substeps: largest number of substeps of a timestep. The last substep covers the rest of the timestep, whatever its
      error; an error above the tolerance sets `Warning.SUBSTEPS`. Only the substeps that are needed are computed.
  """

  tolerance: float = 1e-6
  max_substeps: int = 256


class Search(NamedTuple):
  """State of the loop that finds the lengths."""

  state: Any
  sizes: jax.Array  # (max_substeps, W) accepted lengths [s], then zeros
  accepted: jax.Array  # (W,) number of accepted lengths
  remaining: jax.Array  # (W,) rest of the timestep [s]
  trial: jax.Array  # (W,) next length to try [s]
  missed: jax.Array  # (W,) whether the error of the last possible substep was too large


# m, d, state (the fields of d that change), length (W,), tolerance -> state, error (W,) in units of the tolerance
Substep = Callable[[Any, Any, Any, jax.Array, float], tuple[Any, jax.Array]]


def search(substep: Substep, o: Adaptive, m: Any, d: Any, state: Any) -> Search:
  """Find the substeps of a timestep, each as long as its error allows."""
  total = jnp.broadcast_to(m.opt.timestep, d.time.shape)
  zero = jnp.zeros_like(total)
  sizes = jnp.zeros((o.max_substeps, *total.shape), total.dtype)
  index = np.arange(o.max_substeps)[:, None]

  def body(s):
    last = s.accepted == o.max_substeps - 1
    h = jnp.where(last, s.remaining, jnp.minimum(s.trial, s.remaining))
    after, error = substep(m, d, s.state, h, o.tolerance)
    rough = error > 1
    accept = (s.remaining > 0) & (~rough | last | (h <= _LEAST * total))
    grow = jnp.clip(_SAFETY * jnp.maximum(error, 1e-12) ** (-1 / 3), _SHRINK, _GROW)
    return Search(
      state=jax.tree.map(lambda a, b: jnp.where(accept, a, b), after, s.state),
      sizes=jnp.where((index == s.accepted) & accept, h, s.sizes),
      accepted=s.accepted + accept,
      remaining=jnp.where(accept, jnp.where(h < s.remaining, s.remaining - h, 0), s.remaining),
      trial=jnp.where(s.remaining > 0, h * grow, s.trial),
      missed=s.missed | (last & rough & (s.remaining > 0)),
    )

  accepted = jnp.zeros(total.shape, jnp.int32)
  start = Search(state=state, sizes=sizes, accepted=accepted, remaining=total, trial=total, missed=zero > 0)
  return jax.lax.while_loop(lambda s: jnp.any(s.remaining > 0), body, start)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def move(substep: Substep, o: Adaptive, m: Any, d: Any, state: Any) -> tuple[Any, jax.Array, jax.Array]:
  """Return the state after a timestep, whether (W,) the substeps were too few, and their lengths (max_substeps, W)."""
  found = search(substep, o, m, d, state)
  return found.state, found.missed, found.sizes


def _move_jvp(substep, o, primals, tangents):
  m, d, start = primals
  # the values come from the loop, so that no checkpointed forward pass is needed
  state, missed, sizes = move(substep, o, m, d, start)
  shares = checkpoint_name(jax.lax.stop_gradient(sizes / m.opt.timestep), SIZES)
  moving = _moving(primals, tangents)
  _, state_dot = jax.jvp(lambda *x: replay(substep, *moving.tree(*x), shares=shares), moving.leaves, moving.tangents)
  return (state, missed, sizes), (state_dot, np.zeros(missed.shape, jax.dtypes.float0), jnp.zeros_like(sizes))


move.defjvp(_move_jvp, symbolic_zeros=True)


class _Moving(NamedTuple):
  """The part of a pytree that has tangents."""

  leaves: list[jax.Array]
  tangents: list[jax.Array]
  tree: Callable[..., Any]  # builds the whole pytree from such leaves


def _moving(primals: Any, tangents: Any) -> _Moving:
  leaves, structure = jax.tree.flatten(primals)
  dots = structure.flatten_up_to(tangents)
  zero = jax.custom_derivatives.SymbolicZero
  index = [i for i, t in enumerate(dots) if not isinstance(t, zero) and t.dtype != jax.dtypes.float0]

  def tree(*moved):
    full = list(leaves)
    for i, x in zip(index, moved, strict=True):
      full[i] = x
    return structure.unflatten(full)

  return _Moving([leaves[i] for i in index], [dots[i] for i in index], tree)


def replay(substep: Substep, m: Any, d: Any, state: Any, shares: jax.Array) -> Any:
  """Return the state after given substeps, fractions (n, W) of the timestep; a substep is skipped if all its lengths are 0."""

  keep = jax.checkpoint_policies.save_only_these_names(SOLUTION)

  @functools.partial(jax.checkpoint, prevent_cse=False, policy=keep)
  def one(state, share):
    move = lambda s: substep(m, d, s, share * m.opt.timestep, 1.0)[0]  # noqa: E731
    return jax.lax.cond(jnp.any(share > 0), move, lambda s: s, state), None

  return jax.lax.scan(one, state, shares)[0]
