"""Images to predictions: a GeoTIFF and a runner in, a GeoTIFF of probabilities and speeds out."""
