"""Data definitions, and the world axis."""
