"""Identification of systems: parametrisations of what is estimated."""
