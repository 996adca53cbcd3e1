"""Shapes of sites that sensors know; the tests of points and rays are in `site_volume/volume.py`."""

from mjx_lite.sensor.site_volume.volume import SHAPES as ZONES

__all__ = ["ZONES"]
