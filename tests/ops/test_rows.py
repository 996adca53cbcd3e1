"""Work on rows: of all rows together, and of a kernel's loop that ends at each world's last row."""

import jax
import jax.numpy as jnp
import lane_tests
import numpy as np
import pytest
import straight

from mjx_lite.ops import lanes, rows

N, WIDTH = 9, 21


def _rows(dtype):
  """Rows of which each world uses a different number, 0 and all among them; the others are zero."""
  rng = np.random.default_rng(0)
  number = np.arange(WIDTH) % (N + 1)
  used = np.arange(N)[:, None] < number
  return rng.normal(size=(N, 4, WIDTH)).astype(dtype) * used[:, None], used


def _square(x):
  return x * x, jnp.sum(x, axis=1)


def _total(x, used):
  return rows.total(_square, x, rows.upto(used))


def _each(x, used):
  return rows.each(_square, x, rows.upto(used))


def _every(x, used):
  return rows.each(_square, x + 1)


def _each_of_before(x, used):
  """Rows that are not used are those of before: here what all rows would give."""
  return rows.each(_square, x, rows.upto(used), (x * 0, x[:, 0] * 0))


def _updated(x, used):
  y = rows.update(lambda row, old: old + 2 * row, x, rows.upto(used), x + 1)
  return y, rows.total(_square, rows.each_below(lambda row: row + 1, x, rows.upto(used)), rows.upto(used))[0] * 0


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("function", [_total, _each, _every, _each_of_before, _updated])
def test_a_loop_over_rows_gives_what_all_rows_give(function, dtype):
  args = _rows(dtype)
  with lanes.packed():
    found = lane_tests.run(function, *args, has_loops=True)
  for a, b in zip(found, straight.alone(function, *args), strict=True):
    np.testing.assert_allclose(a, b, rtol=10 * np.finfo(dtype).eps, atol=10 * np.finfo(dtype).eps)


def test_a_loop_ends_at_the_last_row():
  """The state counts the rows: each world has its own number."""
  x, used = _rows(np.float32)
  used[3] = False  # a hole does not end the loop

  def count(x, used):
    return rows.fold(lambda row, s: s + 1 + 0 * row[0, 0], x, rows.upto(used), jnp.zeros(1, x.dtype))

  with lanes.packed():
    (found,) = lane_tests.run(lambda x, used: [count(x, used)], x, used, has_loops=True)
  last = np.where(used.any(axis=0), N - np.argmax(used[::-1], axis=0), 0)
  np.testing.assert_array_equal(found, last)
  assert set(last) == {0, 1, 2, 3, *range(5, N + 1)}


@pytest.mark.parametrize("function", [_total, _each, _every])
def test_no_rows(function):
  x, used = np.zeros((0, 4, 5), np.float32), np.zeros((0, 5), bool)
  with lanes.packed():
    found = function(jnp.asarray(x[..., :1]), jnp.asarray(used[..., :1]))
  assert all(not np.asarray(y).any() for y in found)


def test_each_lane_goes_over_its_own_rows():
  """In their order, and over no others."""
  x, _ = _rows(np.float32)
  mask = np.random.default_rng(1).random((N, WIDTH)) < 0.4
  mask[:, 0], mask[:, 1] = False, True

  def follow(x, mask):
    weight = 1 + jnp.arange(N, dtype=x.dtype)[:, None, None]
    return rows.fold_where(lambda row, s: (s[0] + 1, 0.5 * s[1] + row[0, 0]), x * weight, mask, (mask[0] * 0, 0 * x[0, 0]))

  with lanes.packed():
    number, total = lane_tests.run(follow, x, mask, has_loops=True)
  np.testing.assert_array_equal(number, mask.sum(axis=0))
  expected = np.zeros(WIDTH)
  for k in range(N):
    expected = np.where(mask[k], 0.5 * expected + (k + 1) * x[k, 0], expected)
  np.testing.assert_allclose(total, expected, rtol=1e-6, atol=1e-6)


TABLE = np.linspace(-1, 1, 7)


def _queue(x, used):
  """Rows of the chosen items, from a table at an index that the items have, and the default rows of the others."""
  table = x[0, 0] * TABLE.astype(x.dtype)[:, None]

  def make(k):
    row = lanes.row(k).take(x)
    return row * jnp.sin(row) + table[k % 7]

  if not lanes.packs():
    made = jnp.concatenate([make(jnp.int32(k)) for k in range(len(x))])
    return jnp.where(used[:, None], made, 2 * x)
  return lanes.in_queue(used, make, 2 * x)


def _forward(function, x, used):
  return jax.jvp(lambda x: function(x, used), (x,), (jnp.sin(x),))[1]  # empty rows stay empty


def _backward(function, x, used):
  out, back = jax.vjp(lambda x: function(x, used), x)
  return back(jax.tree.map(lambda y: y + 1, out))[0] * (used[:, None] if function in (_total, _each) else 1)


def _forward_over_backward(function, x, used):
  return jax.jvp(lambda x: _backward(function, x, used), (x,), (jnp.sin(x),))[1]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("function", [_total, _each, _every, _queue])
@pytest.mark.parametrize("derivative", [_forward, _backward, _forward_over_backward])
def test_derivatives_of_loops_over_rows(derivative, function, dtype):
  x, used = _rows(dtype)

  def total(x, used):
    return jax.tree.leaves(derivative(function, x, used))

  with lanes.packed():
    found = lane_tests.run(total, x, used, has_loops=True)
  for a, b in zip(found, straight.alone(total, x, used), strict=True):
    np.testing.assert_allclose(a, b, rtol=50 * np.finfo(dtype).eps, atol=50 * np.finfo(dtype).eps)


def test_reverse_mode_touches_only_the_rows_of_an_iteration():
  """The cotangents of what the loop reads are added where it read, whatever the number of rows."""

  def additions(number):
    x = np.ones((number, 4, 8), np.float32)
    with lanes.packed():
      p, outs, _ = lane_tests.program(lambda x: [_backward(_queue, x, x[:, 0] > 0)], x, has_loops=True)
    order, _ = p.reached(np.concatenate([y.ravel() for y in outs]).tolist(), 0)
    inside = p.reached([k for n in order if p.op[n] == "loop" for k in p.payload[n].last], 1)[0]
    return sum(p.op[k] == "add" for k in inside)

  assert additions(N) == additions(4 * N) > 0
