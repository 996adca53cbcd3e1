"""Volumes of sites: points inside, rays that hit, signed distances, protrusion of objects."""
