"""From and to mujoco: models, data, names, states."""
