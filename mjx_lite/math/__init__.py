"""Algebra on arrays whose last axis is the world and whose component axis comes just before it.

A vector is `(..., 3, W)`, a quaternion `(..., 4, W)` (wxyz), a matrix `(..., 3, 3, W)`, a spatial vector
`(..., 6, W)` (rotation first). `W` is 1 where the value is shared by all worlds. No function here depends on a model.
"""
