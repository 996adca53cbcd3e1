"""Scalar rules of JAX's primitives, one function for each. The engine's own primitives bring theirs along."""

from mjx_lite.compiler.rules import control, elementwise, index, moves, sums

__all__ = ["control", "elementwise", "index", "moves", "sums"]
