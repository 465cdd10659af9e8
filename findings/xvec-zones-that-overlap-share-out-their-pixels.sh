#!/usr/bin/env bash
# xvec 0.5.2, rioxarray 0.19.0: zonal statistics of overlapping zones give each pixel to the later zone alone.
#
# Guess: zonal_stats returns the statistics of each zone by itself, as method="iterate" does; the default, "rasterize",
# may lose small zones and thin lines, as its documentation says.
# Seen: a city of 100 pixels, a park of 36 in it. Listed before the park the city has 64 pixels and their mean; listed
# after it, it has 100, and the park none. Two circles around bus stops share out their overlap by their order in the
# table, and of two equal zones the first is empty. Nothing warns. With method="iterate" all of them are right.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-compile \
    xvec==0.5.2 rioxarray==0.19.0 rasterio==1.4.4 xarray==2026.9.0 geopandas==1.2.0 shapely==2.2.0 pyproj==3.7.2 \
    joblib==1.5.3 numpy==2.4.6 pandas==2.3.3
cd "$folder"
"$folder/venv/bin/python" -W ignore - > "$folder/seen" <<'PYTHON'
import geopandas
import numpy as np
import rioxarray  # noqa: F401
import shapely
import xarray
import xvec  # noqa: F401

centres = np.arange(12) + 0.5
raster = xarray.DataArray(np.ones((12, 12)), {"y": centres[::-1], "x": centres}, ("y", "x"))
raster[3:9, 3:9] = 5
raster = raster.rio.write_crs("EPSG:32637")
city, park = shapely.box(1, 1, 11, 11), shapely.box(3, 3, 9, 9)
stops = [shapely.Point(5, 6).buffer(3), shapely.Point(7, 6).buffer(3)]
for name, zones in (
    ("city, park", [city, park]), ("park, city", [park, city]), ("stops", stops), ("park twice", [park, park]),
):
    zones = geopandas.GeoSeries(zones, crs="EPSG:32637")
    for method in ("rasterize", "iterate"):
        found = raster.xvec.zonal_stats(
            zones, x_coords="x", y_coords="y", stats=["count", "mean"], method=method, n_jobs=1
        )
        print(f"{name}, {method}:", *(f"{count:.0f} of {mean:.2f}" for count, mean in found.transpose("geometry", ...)))
PYTHON
diff "$folder/seen" - <<'EXPECTED'
city, park, rasterize: 64 of 1.00 36 of 5.00
city, park, iterate: 100 of 2.44 36 of 5.00
park, city, rasterize: nan of nan 100 of 2.44
park, city, iterate: 36 of 5.00 100 of 2.44
stops, rasterize: 12 of 3.67 32 of 4.50
stops, iterate: 32 of 4.50 32 of 4.50
park twice, rasterize: nan of nan 36 of 5.00
park twice, iterate: 36 of 5.00 36 of 5.00
EXPECTED
echo "as described"
