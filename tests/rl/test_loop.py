"""The loop of the learners: interrupted and called again, it ends as if it had not been."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mjx_lite.rl import loop


def program(worlds, learner, key):
  """Every part of the state depends on all that came before it."""
  move = jax.random.normal(key, (3,)) + jax.random.normal(worlds["key"])
  worlds = {**worlds, "x": 0.9 * worlds["x"] + move, "key": jax.random.split(worlds["key"])[0]}
  learner = {"w": learner["w"] + worlds["x"], "count": learner["count"] + 1, "renewed": worlds["renewed"]}
  return worlds, learner, {"return": jnp.sum(worlds["x"]), "length": jnp.ones(())}


def starts(worlds, key):
  """Part of the state, too."""
  return {**worlds, "x": worlds["x"] + jax.random.normal(key), "renewed": worlds["renewed"] + 1}


def train_dummy(iterations=7, width=3, **options):
  worlds = {"x": jnp.zeros(width), "key": jax.random.key(3), "empty": jnp.zeros((2, 0)), "renewed": jnp.zeros((), jnp.int32)}
  learner = {"w": jnp.ones(width), "count": jnp.zeros((), jnp.int32), "renewed": jnp.zeros((), jnp.int32)}
  options |= dict(starts=starts, renew=3)
  return loop.run(jax.jit(program), worlds, learner, jax.random.key(0), iterations=iterations, steps=5, **options)


def test_resumes_from_a_checkpoint_with_the_same_result(tmp_path):
  whole, curve = train_dummy()
  seen = []

  def stop(i, entry, learner):
    seen.append(i)
    if len(seen) == 4:
      raise KeyboardInterrupt

  options = dict(checkpoint=tmp_path / "run", every=2, progress=stop)
  with pytest.raises(KeyboardInterrupt):
    train_dummy(**options)
  found, again = train_dummy(**options)
  assert seen == [0, 1, 2, 3, 2, 3, 4, 5, 6]  # what was after the checkpoint is made again
  assert found["renewed"] == 2  # before the fourth and the seventh iteration
  assert again == curve and [x["steps"] for x in curve] == [5 * (i + 1) for i in range(7)]
  for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(whole), strict=True):
    assert a.dtype == b.dtype
    np.testing.assert_array_equal(a, b)
  assert len(train_dummy(iterations=9, **options)[1]) == 9  # and further, from the last iteration
  with pytest.raises(ValueError, match="of another task"):
    train_dummy(width=1, **options)


def test_the_bar_shows_the_last_return_that_is_known(monkeypatch):
  shown, known = [], iter([np.nan, 3.0, np.nan, np.nan, 5.0])

  class Bar(list):
    def set_postfix(self, what):
      shown.append(what)

  monkeypatch.setattr(loop.tqdm, "trange", lambda *args, **options: Bar(range(*args[:2])))
  step = lambda worlds, learner, key: (worlds, learner, dict.fromkeys(("return", "length"), next(known)))  # noqa: E731
  curve = loop.run(step, 0, 0, jax.random.key(0), iterations=5, steps=1, starts=lambda w, k: w, renew=9)[1]
  np.testing.assert_equal([x["return"] for x in curve], [np.nan, 3, np.nan, np.nan, 5])
  assert [x.get("return") for x in shown] == [None, "3", "3", "3", "5"]
