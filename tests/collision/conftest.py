"""64 bits for every test of the colliders; a test that means float32 casts its inputs."""

import jax

jax.config.update("jax_enable_x64", True)
