"""Rooms of `training.predict`: windows of an image, through a network, into a GeoTIFF."""
