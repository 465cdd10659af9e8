"""Tiles of a split, wherever their pixels are: in memory, on a device, in the store."""
