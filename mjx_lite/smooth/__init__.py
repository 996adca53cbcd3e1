"""Dynamics without constraints: poses, inertia, bias, passive and applied forces."""
