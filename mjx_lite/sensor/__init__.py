"""Sensors: what a model measures of itself, stage by stage."""
