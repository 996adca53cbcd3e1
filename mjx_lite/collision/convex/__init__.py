"""Convex shapes: support functions, distance and depth, contact manifolds."""
