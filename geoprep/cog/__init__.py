"""Write Cloud Optimised GeoTIFFs of bytes, for predictions and exports."""
