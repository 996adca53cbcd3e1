"""Actuator model: activation dynamics, gains, biases, limits and delays."""
