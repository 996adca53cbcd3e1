"""Checks of the engine: `compare` with MuJoCo C field by field, `check_grad` of gradients with differences."""
