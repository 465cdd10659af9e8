"""Rasters whose roads are known: perfect masks, and maps with the errors that networks make."""
