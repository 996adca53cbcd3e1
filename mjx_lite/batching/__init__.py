"""World axis: `jax.vmap` becomes the last axis of the engine's arrays."""
