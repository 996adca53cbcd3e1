"""One exported program for any number of worlds, from a number on that settles how they would be cut."""

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
from jax import export

import mjx_lite as mjx

XML = """
<mujoco>
  <worldbody><geom type="plane" size="1 1 1"/><body pos="0 0 .09"><freejoint/><geom size=".1"/></body></worldbody>
</mujoco>
"""


def test_a_number_of_worlds_that_is_known_later():
  m = mjx.put_model(mujoco.MjModel.from_xml_string(XML), dtype=np.float32, tile=0)
  d = mjx.make_data(m)
  (b,) = export.symbolic_shape("b", constraints=["b >= 513"])
  shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct((b, *x.shape), x.dtype), d)
  step = jax.jit(jax.vmap(mjx.step, (None, 0)))
  loaded = export.deserialize(export.export(step)(m, shapes).serialize())
  for worlds in (513, 600):
    many = jax.vmap(lambda z: d.replace(qpos=d.qpos.at[2].add(z)))(jnp.linspace(-0.01, 0.01, worlds, dtype=np.float32))
    np.testing.assert_allclose(loaded.call(m, many).qvel, step(m, many).qvel, atol=1e-5)
