"""Compiler from JAX programs to machine code. It knows JAX and no physics."""
