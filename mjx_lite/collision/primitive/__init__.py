"""Colliders in closed form."""
