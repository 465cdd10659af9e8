"""Turns a plan into the shapes to draw in a box, each of a material at a height.

``world.Ground`` gives the shapes; ``spectra`` the reflectance of materials.
"""
