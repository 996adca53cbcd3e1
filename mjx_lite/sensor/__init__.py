"""Sensors of a model, stage by stage."""
