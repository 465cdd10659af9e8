"""Rasters with known roads: perfect masks, and predictions with simulated errors."""
