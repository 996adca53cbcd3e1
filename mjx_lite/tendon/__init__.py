"""Tendons: paths, lengths, Jacobian, passive forces and inertia; all inputs are fields of Model and Data."""
