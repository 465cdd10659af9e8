#!/usr/bin/env bash
# exactextract 0.3.0, rioxarray 0.19.0: zonal statistics of a raster sorted by y are empty.
#
# Guess: an xarray.DataArray is placed by its coordinates, whichever way y runs.
# Seen: a raster opened by rioxarray and sorted by y (or joined with data that ascends) covers no polygon: count 0, mean
# NaN, no warning. The GeoTransform that rioxarray keeps in spatial_ref still says north up. The same pixels
# with the same coordinates, made in memory, are right, and so is a crop of the file. With rioxarray 0.23.0 and rasterio
# 1.5.2 it is the same.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check \
    exactextract==0.3.0 rioxarray==0.19.0 rasterio==1.4.4 xarray==2026.9.0 geopandas==1.2.0 shapely==2.2.0 numpy==2.4.6
cd "$folder"
"$folder/venv/bin/python" -W ignore - > "$folder/seen" <<'PYTHON'
import geopandas
import numpy as np
import rasterio
import rioxarray
import shapely
import xarray
from exactextract import exact_extract

pixels = np.arange(100, dtype=np.float32).reshape(10, 10)
with rasterio.open(
    "scene.tif", "w", driver="GTiff", width=10, height=10, count=1, dtype="float32",
    crs="EPSG:32637", transform=rasterio.transform.from_origin(500000, 4000010, 1, 1),
) as file:
    file.write(pixels[None])
field = geopandas.GeoDataFrame(geometry=[shapely.box(500000, 4000008, 500010, 4000010)], crs="EPSG:32637")
opened = rioxarray.open_rasterio("scene.tif").squeeze(drop=True)
places = {"y": opened.y.values, "x": opened.x.values}
made = xarray.DataArray(pixels, places, ("y", "x")).rio.write_crs("EPSG:32637")
for name, raster in (
    ("opened", opened), ("opened, cropped", opened[:5]), ("opened, sorted", opened.sortby("y")),
    ("made", made), ("made, sorted", made.sortby("y")),
):
    found = exact_extract(raster, field, ["count", "mean"])[0]["properties"]
    print(f"{name}: count {found['count']:.0f}, mean {found['mean']:.1f}")
PYTHON
diff "$folder/seen" - <<'EXPECTED'
opened: count 20, mean 9.5
opened, cropped: count 20, mean 9.5
opened, sorted: count 0, mean nan
made: count 20, mean 9.5
made, sorted: count 20, mean 9.5
EXPECTED
echo "as described"
