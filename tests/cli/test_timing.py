"""What is counted of a compiled program."""

import jax
import jax.numpy as jnp

from mjx_lite.cli import timing
from mjx_lite.ops import linear


def program(function, *args):
  return timing.compile_program(function, *args, jit=jax.jit)


def test_kernels_of_loops_count_as_often_as_they_run():
  x = jnp.ones((64, 64))

  def body(_, y):
    return jnp.sin(y @ y)

  once, many = (program(lambda x, n=n: jax.lax.fori_loop(0, n, body, x), x) for n in (10, 50))
  assert once.kernels == many.kernels < once.launches < many.launches
  assert abs(many.launches / once.launches - 5) < 1
  assert many.peak_bytes >= x.nbytes


def test_a_barrier_starts_no_work():
  """Two kernels, with a barrier in the compiled program between them."""
  found = timing.compile_program(lambda x: jnp.cos(linear.materialize(jnp.sin(x))), jnp.ones((64, 64)))
  text = found.call.as_text()  # pyright: ignore[reportFunctionMemberAccess]
  assert (" call(" in text) == (jax.default_backend() == "cpu")
  assert found.kernels == found.launches == (2 if jax.default_backend() == "cpu" else 1)


def test_the_dearest_branch_counts():
  x = jnp.ones((64, 64))

  def far(y):
    for _ in range(4):
      y = jnp.sin(y @ y)
    return y

  plain = program(far, x)
  chosen = program(lambda x, on: jax.lax.cond(on, far, lambda y: y, x), x, True)
  assert chosen.launches >= plain.launches >= 8
