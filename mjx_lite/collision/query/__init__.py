"""Queries: rays and signed distances of geoms."""
