"""Turns a plan into the shapes to draw in a box, each of a material at a height."""
