"""Actuators: what they do with a control."""
