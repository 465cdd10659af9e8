"""Shapes to pixels: reflectance under sun, haze and trees (``render``), counts (``products``)."""
