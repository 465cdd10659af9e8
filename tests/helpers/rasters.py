"""Rasters for tests."""

import rasterio
from affine import Affine

PLACE = Affine(1, 0, 400_000, 0, -1, 6_000_000)


def write_raster(path, bands, *, crs="EPSG:32637", transform=None, names=(), tags=None, **more):
    """Write (y, x) or (band, y, x) as GeoTIFF; return its path."""
    bands = bands if bands.ndim == 3 else bands[None]
    count, height, width = bands.shape
    profile = {"driver": "GTiff", "dtype": bands.dtype.name, "count": count, "crs": crs}
    profile |= {"height": height, "width": width, "transform": transform or PLACE}
    path.parent.mkdir(parents=True, exist_ok=True)
    with rasterio.open(path, "w", **profile | more) as file:
        file.write(bands)
        if names:
            file.descriptions = names
        if tags:
            file.update_tags(**tags)
    return path
