"""Functions of arrays (..., 1), one for each kind of operation, and what straight code has to make of them."""

import jax
import jax.numpy as jnp
import numpy as np

SWING = """<mujoco><worldbody><geom type="plane" size="1 1 .1"/><body pos="0 0 .25"><joint axis="0 1 0"/>
  <geom type="capsule" fromto="0 0 0 .2 0 -.1" size=".05"/><body pos=".2 0 -.1"><joint axis="0 1 0" range="-30 30"/>
  <geom size=".06"/></body></body></worldbody></mujoco>"""


def assert_close(got, want, tol=5e-4, double=1e-9):
  for (path, a), b in zip(jax.tree_util.tree_flatten_with_path(got)[0], jax.tree.leaves(want), strict=True):
    name = jax.tree_util.keystr(path)
    assert a.shape == b.shape and a.dtype == b.dtype, name
    a, b = np.asarray(a), np.asarray(b)
    if b.dtype in (np.float32, np.float64):
      scale, least = max(1.0, np.abs(b[np.isfinite(b)]).max(initial=0)), tol if b.dtype == np.float32 else double
      np.testing.assert_allclose(a, b, rtol=least, atol=least * scale, err_msg=name)
    elif "niter" not in name:  # which round-off may change
      np.testing.assert_array_equal(a, b, err_msg=name)


def alone(function, *args):
  """The same by XLA, world by world."""

  def one(*x):
    return jax.tree.map(lambda y: y[..., 0], function(*(y[..., None] for y in x)))

  return jax.tree.leaves(jax.vmap(one, in_axes=-1, out_axes=-1)(*args))


FUNCTIONS = {
  "exp": jnp.exp,
  "log": lambda x: jnp.log(jnp.abs(x)),
  "expm1": jnp.expm1,
  "rounding": lambda x: (jnp.floor(x), jnp.ceil(x), jnp.round(x), jnp.sign(x), x.astype(int)),
  "sums": lambda x: (jnp.sum(x, 0), jnp.cumsum(x, 0), jnp.max(x, 0), jnp.argmax(x, 0), jnp.argmin(x, 0)),
  "choice": lambda x: jnp.where(x > 0.3, jnp.sqrt(jnp.abs(x)), 1 / (x - 1)) * jnp.clip(x, -1, 1) ** 3,
  "flags": lambda x: (x > 0) ^ (jnp.roll(x, 1, 0) < 0.5) | ~jnp.isfinite(x / 0.0) & (x == x),
  "products": lambda x: jnp.einsum("iw,jw->ijw", x, jnp.flip(x, 0)),
  "fetched": lambda x: x.at[jnp.clip(jnp.floor(x[:2, 0]).astype(int), 0, 5)].get(mode="clip"),
  "filled": lambda x: x.at[jnp.floor(x[:2, 0]).astype(int) + 1].get(mode="fill", wrap_negative_indices=False),
  "put": lambda x: (x.at[np.array([4, 1])].set(x[:2] + 1), x.at[np.array([2, 2, 0])].add(x[:3])),
  "sorted": lambda x: (jnp.sort(x, 0), jnp.argsort(jnp.floor(x), 0, stable=True)),
  "table": lambda x: jnp.asarray(np.arange(9.0, dtype=np.float32) ** 2)[jnp.clip(x[:, :] * 3, 0, 8).astype(int)],
  "written": lambda x: jax.lax.dynamic_update_slice(x, 7 + x[:1], (jnp.abs(x[0, 0] * 2).astype(int), 0)),
  "slice": lambda x: jax.lax.dynamic_slice(x, (jnp.abs(x[1, 0] * 2).astype(int), 0), (2, 1)),
  "loop": lambda x: jax.lax.while_loop(
    lambda s: jnp.all(s[1] < 9), lambda s: (s[0] * 0.7 + x[0], s[1] + 0.1 + jnp.abs(s[0])), (x[1], x[2])),
  "loops": lambda x: jax.lax.fori_loop(0, jnp.abs(x[0, 0] * 3).astype(int), lambda k, a: jax.lax.while_loop(
    lambda b: jnp.all(b < 9) & (a[0, 0] > 0.1), lambda b: 1.1 * b + jnp.abs(x[3]) + 1, a[:1]) * 0.3 + 0.1 * a, x),
  "swapped": lambda x: jax.lax.fori_loop(0, jnp.abs(x[0, 0] * 3).astype(int), lambda k, s: (s[1], s[0] + 1), (x, 2 * x)),
  "branches": lambda x: jax.lax.cond(x[0, 0] > 0, lambda y: y + 1, lambda y: 2 * y, x),
  "scan": lambda x: jax.lax.scan(lambda s, r: (s * 0.5 + r, s), x[0], x, reverse=True),
}  # fmt: skip


def assert_operation(name, run, seed, dtype=np.float32):
  """Of many values, among them 0, infinities and what is not a number; worlds that fill no block. run(function, x)."""
  rng, is_double = np.random.default_rng(seed), dtype == np.float64
  x = rng.normal(0, 1.5, (6, 37)).astype(dtype)
  if name in ("exp", "expm1", "log"):
    x = rng.uniform(*((-740, 715) if is_double else (-100, 95)), x.shape).astype(dtype)
    x = np.exp(0.8 * x) if name == "log" else x * rng.choice([1, 1e-3], x.shape).astype(dtype)
    x[0, :8] = 0, np.inf, -np.inf, np.nan, 1, 0.999999, 1.000001, 709.7 if is_double else 88.7
  tolerance, least = (3e-15, 1e-306) if is_double else (3e-6, 1e-37)
  for a, b in zip(run(FUNCTIONS[name], x), alone(FUNCTIONS[name], x), strict=True):
    assert a.dtype == b.dtype
    np.testing.assert_allclose(a, b, rtol=tolerance, atol=least if name == "exp" else tolerance)


def put_away(x):
  """Many numbers that are wanted again, also in a loop and behind it."""
  y = x[:, None] * x[None]

  def body(s):
    return 0.9 * s[0] + y[3], s[1] + 1 + jnp.abs(x[0])

  looped = jax.lax.while_loop(lambda s: jnp.all(s[1] < 30), body, (x, x[1]))
  return jnp.sum(y * looped[0], axis=1) + jnp.flip(x, 0), looped
