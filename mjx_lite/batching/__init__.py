"""World axis: `jax.vmap` becomes the last axis of the engine's arrays."""

from mjx_lite.batching import derivatives as derivatives  # registers its rules
