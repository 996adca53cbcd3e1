"""Compiler from JAX programs to machine code. It knows JAX and no physics."""

from mjx_lite.compiler import rules  # each rule registers itself

__all__ = ["rules"]
