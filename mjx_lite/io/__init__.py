"""Conversion from and to mujoco: models, data, names, states."""
