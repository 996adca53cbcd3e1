"""Contact detection: candidate pairs of geoms, broad phase, narrow phase, contact parameters."""
