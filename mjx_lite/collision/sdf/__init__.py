"""Signed distance fields of meshes."""
