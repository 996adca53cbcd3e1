"""Data definitions, the world axis, and the compiler of steps."""
