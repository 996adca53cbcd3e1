"""mjx_lite: MuJoCo's runtime as pure functions in JAX."""
